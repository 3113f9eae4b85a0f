"""Somebody's objects in words, and whether they are true, whatever they do when they are asked.

Promises: nothing here raises because of what it is given.
"""

SHORT = 60
"""Characters of an object that are shown."""
SENTENCE = 200
"""Characters of an error that are shown."""


def shown(value: object) -> str:
    """The beginning of what it looks like in Python."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 -- somebody's own __repr__
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def said(error: BaseException) -> str:
    """The beginning of what an error says."""
    try:
        return str(error)[:SENTENCE]
    except Exception:  # noqa: BLE001 -- somebody's own __str__
        return "it cannot say why"


def truth(value: object) -> bool | None:
    """Whether it is true; none if it cannot tell."""
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 -- somebody's own __bool__
        return None


def number(value: object) -> float | None:
    """What it is as a float; none if it is no number, or none that a float can be."""
    try:
        return float(value)  # type: ignore[arg-type]  # that is the question
    except Exception:  # noqa: BLE001 -- somebody's own __float__
        return None
