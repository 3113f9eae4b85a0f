"""Who used which device when, over the last steps of a run.

Promises: an engine is busy when it says that it computed, whatever it should have done; so an engine that computes on
devices while they are lent to training is seen twice at the same time. What is old is forgotten.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from windrow.engines.torch.spells import Activity
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
        self._played: dict[str, list[Interval]] = {}  # by engine, in order and without overlaps
        self._looks: deque[float] = deque(maxlen=STEPS + 1)

    def note(self, use: Use, begin: float, end: float) -> None:
        """Something other than playing was done."""
        lanes = self._lent if use == "lent" else [use]
        self._spans.extend(Span(lane, use, begin, end) for lane in lanes)

    def look(self, engines: Mapping[str, Activity], asked: float, heard: float) -> None:
        """What engines have told between two moments, once in a step; the same may be told again."""
        self._looks.append(heard)
        oldest = self._looks[0] if len(self._looks) > STEPS else float("-inf")
        for name, activity in engines.items():
            is_ours = asked <= activity.now <= heard  # else it is the clock of another machine
            behind = 0.0 if is_ours else (asked + heard) / 2 - activity.now
            told = [(begin + behind, end + behind) for begin, end in activity.spells]
            known = merged([*self._played.get(name, ()), *told])
            self._played[name] = [each for each in known if each[1] > oldest]

    def spans(self) -> list[Span]:
        """Everything that is remembered."""
        played = [Span(name, "playing", *spell) for name, spells in self._played.items() for spell in spells]
        return sorted([*self._spans, *played], key=lambda span: (span.lane, span.begin))


def collisions(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    """All pairs of a lane that was lent and played at the same time."""
    return [
        (lent, playing)
        for lent in spans
        for playing in spans
        if (lent.use, playing.use) == ("lent", "playing") and lent.lane == playing.lane
        if lent.begin < playing.end and playing.begin < lent.end
    ]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times, each once, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
