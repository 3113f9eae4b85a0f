"""Benchmarks: each measures ours beside an alternative, in one run, as medians of alternating rounds.

Time is CPU time for batch, core and engine, which do not wait, and real time for the others.

Promises: nothing is typed in; what is compared is named in words; a busy machine slows both sides.
"""

from collections.abc import Callable
from statistics import median
from time import process_time

from windrow.types import Value


class Result(Value, frozen=True, kw_only=True):
    """One comparison."""

    what: str
    ours: float
    alternative: float
    ratio: float
    """Ours ÷ alternative."""
    unit: str


Say = Callable[[str], None]


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process for one piece of work."""
    began = process_time()
    work()
    return process_time() - began


def alternate(rounds: int, *works: Callable[[], float]) -> list[float]:
    """The median of each measurement, taken in turns so that noise falls on all alike."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, figures in zip(works, taken, strict=True):
            figures.append(work())
    return [median(figures) for figures in taken]


def compared(what: str, ours: float, alternative: float, unit: str) -> Result:
    """A result with its ratio."""
    return Result(what=what, ours=ours, alternative=alternative, ratio=ours / alternative, unit=unit)
