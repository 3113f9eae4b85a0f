"""Who used which device when, over the last steps of a run.

Promises: it costs a few numbers per trajectory and forgets what is old. An engine counts as busy while an episode that
it sampled for was played, apart from the time in which its devices were lent to training.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from windrow.trajectory import Trajectory
from windrow.types import Value

STEPS = 12
"""That are remembered: more do not fit into a picture."""

Use = Literal["playing", "training", "lent", "weights"]
Interval = tuple[float, float]


class Span(Value, frozen=True):
    """One use of one lane."""

    lane: str
    use: Use
    begin: float
    end: float


class Timeline:
    """What was noted, step by step."""

    def __init__(self, lent: Sequence[str]) -> None:
        """`lent` names the engines whose devices training shares."""
        self._lent = [*lent]
        self._spans: deque[Span] = deque(maxlen=STEPS * 4)
        self._played: deque[Mapping[str, list[Interval]]] = deque(maxlen=STEPS)

    def note(self, use: Use, begin: float, end: float) -> None:
        """Something other than playing was done."""
        lanes = self._lent if use == "lent" else [use]
        self._spans.extend(Span(lane, use, begin, end) for lane in lanes)

    def batch(self, trajectories: Sequence[Trajectory]) -> None:
        """A step's batch was handed out."""
        played: dict[str, list[Interval]] = {}
        for trajectory in trajectories:
            for engine in {*trajectory.engines}:
                played.setdefault(engine, []).append((trajectory.began_at, trajectory.ended_at))
        self._played.append({engine: merged(intervals) for engine, intervals in played.items()})

    def spans(self) -> list[Span]:
        """Everything that is remembered, without overlaps in a lane."""
        found = [*self._spans]
        away = {
            lane: [(span.begin, span.end) for span in found if span.use == "lent" and span.lane == lane]
            for lane in self._lent
        }
        engines = sorted({engine for step in self._played for engine in step})
        for engine in engines:
            busy = merged(interval for step in self._played for interval in step.get(engine, ()))
            found += [Span(engine, "playing", *left) for left in without(busy, away.get(engine, ()))]
        return sorted(found, key=lambda span: (span.lane, span.begin))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times, each once, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def without(intervals: Sequence[Interval], holes: Sequence[Interval]) -> Iterator[Interval]:
    """What is left of some times when others are taken out."""
    for start, end in intervals:
        begin = start
        for first, last in sorted(holes):
            if last <= begin or first >= end:
                continue
            if first > begin:
                yield begin, first
            begin = max(begin, last)
        if begin < end:
            yield begin, end
