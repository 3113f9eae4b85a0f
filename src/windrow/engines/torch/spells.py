"""When an engine was at work.

Promises: a spell covers forwards that followed each other closely, and nothing on the other side of a closed gate; only
so many are remembered. What was done is told as it was seen on the engine's own clock, together with what that clock
says now, so that another machine can tell when that was.
"""

from collections import deque

from windrow.types import Value

REMEMBERED = 500
"""Spells; some steps of a run, of which a picture is made."""
PAUSE_S = 0.05
"""Forwards that follow each other within this time are one spell; no picture shows less."""


class Activity(Value, frozen=True, kw_only=True):
    """What an engine has done since it was made."""

    now: float
    """On the clock of `spells`."""
    forwards: int
    tokens: int
    """That were sampled."""
    spells: tuple[tuple[float, float], ...]
    """The last ones, in order: beginning and end."""


class Spells:
    """The last spells of an engine; written by one thread, read by any."""

    def __init__(self) -> None:
        self._all: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        self._is_cut = True

    def note(self, began: float, ended: float) -> None:
        """A forward was made."""
        if not self._is_cut and began - self._all[-1][1] <= PAUSE_S:
            self._all[-1] = (self._all[-1][0], ended)
        else:
            self._all.append((began, ended))
        self._is_cut = False

    def cut(self) -> None:
        """Whatever comes next is a spell of its own."""
        self._is_cut = True

    def told(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._all)
