"""What a check has found."""

from typing import Literal

from windrow.types import Value

State = Literal["ok", "warn", "bad"]
"""In order; works, but not for everything or not well; will fail."""


class Finding(Value, frozen=True):
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty if nothing is to be done."""


def graded(name: str, value: float, found: str, advice: str, *, enough: float, least: float) -> Finding:
    """A finding about a quantity: ok with enough of it, bad with less than the least."""
    if value >= enough:
        return Finding(name, "ok", found)
    return Finding(name, "bad" if value < least else "warn", found, advice)
