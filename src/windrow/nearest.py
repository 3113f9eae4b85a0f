"""The nearest thing that would work, for the end of an error message."""

import difflib
from collections.abc import Iterable

LISTED = 15  # a longer list of choices hides the message it is meant to help


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, or None if none is like it."""
    names = list(known)
    folded = {name.lower(): name for name in reversed(names)}
    close = difflib.get_close_matches(word.lower(), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean this?`, else `; known are …`, else nothing."""
    names = list(known)
    close = nearest(word, names)
    if close is not None:
        return f"; did you mean {close}?"
    if 0 < len(names) <= LISTED:
        return f"; known are {', '.join(names)}"
    return ""
