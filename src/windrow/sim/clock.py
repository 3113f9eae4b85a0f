"""The virtual clock: what will happen, and when.

Promises: happenings come in order of time, and in the order in which they were planned if the times are
equal, so a run is the same every time. Time never goes back. A happening that no longer matters is not taken
out; whoever planned it sees that when it comes.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

Happening = tuple[float, int, Callable[[Any], None], Any]  # Any: each happening has a subject of its own type


class Clock:
    """Jumps from one happening to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[Happening] = []
        self.planned = 0  # happenings so far; breaks ties

    def at(self, time: float, act: Callable[[T], None], subject: T) -> None:
        """Plan `act(subject)` for a point in time that is not past."""
        self.planned += 1
        heappush(self.heap, (time, self.planned, act, subject))

    def after(self, delay: float, act: Callable[[T], None], subject: T) -> None:
        """Plan `act(subject)` for `delay` seconds from now."""
        self.planned += 1
        heappush(self.heap, (self.now + delay, self.planned, act, subject))

    @property
    def next_time(self) -> float:
        """When the next happening is due; never, if there is none."""
        return self.heap[0][0] if self.heap else inf

    def jump(self) -> None:
        """Go to the next happening and let it happen."""
        self.now, _, act, subject = heappop(self.heap)
        act(subject)
