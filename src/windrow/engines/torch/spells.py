"""When an engine was at work.

Promises: a spell covers forwards that followed each other closely, and nothing on the other side of a closed gate; only
so many are remembered. What was done is told as it was seen on the engine's own clock, together with what that clock
says now, so that another machine can tell when that was, and nobody is busy for longer than the time that passed.
"""

import time
from collections import deque
from collections.abc import Mapping

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


class Busy(Value, frozen=True, kw_only=True):
    """How long an engine has computed since it was made, the forward that it makes right now included."""

    now: float
    """On its own clock."""
    seconds: float


def busy_share(before: Mapping[str, Busy], after: Mapping[str, Busy]) -> float:
    """Which part of the time between two looks engines computed; those that told nothing new do not count."""
    pairs = [(before[name], after[name]) for name in after if name in before]
    passed = sum(later.now - earlier.now for earlier, later in pairs)
    return sum(later.seconds - earlier.seconds for earlier, later in pairs) / passed if passed else 0.0


class Spells:
    """The last spells of an engine, and how long all of them were; written by one thread, read by any."""

    def __init__(self) -> None:
        self._all: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        self._is_cut = True
        self._worked: tuple[float, float | None] = (0.0, None)  # seconds of forwards, and since when one is made

    def begin(self, now: float) -> None:
        """A forward is made."""
        self._worked = (self._worked[0], now)

    def end(self, now: float) -> None:
        """It was made."""
        seconds, began = self._worked
        assert began is not None
        self._worked = (seconds + now - began, None)
        self.note(began, now)

    def busy(self) -> Busy:
        while True:
            worked = self._worked
            now = time.monotonic()
            if self._worked is worked:  # or a forward began or ended just now
                seconds, began = worked
                return Busy(now=now, seconds=seconds + (0.0 if began is None else now - began))

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
