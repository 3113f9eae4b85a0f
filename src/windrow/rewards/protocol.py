"""What a reward promises: a score for a finished episode, or for all of a group together.

A reward has either `score` or `score_group`. Both may be ordinary functions (then they run in a thread) or asynchronous
ones. What one raises is filed as its fault and never becomes a score. One object scores many episodes at once.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from windrow.envs.protocol import Isolation
from windrow.trajectory import Trajectory
from windrow.types import Value


class Score(Value, frozen=True, gc=True):
    """What an episode was worth, and why."""

    value: float
    parts: Mapping[str, float] = {}
    """What it is made of, by name; kept in the trajectory."""
    note: str = ""
    """In words, for whoever looks at the sample."""


Scored = Score | float
"""A bare number is a score without parts."""


@runtime_checkable
class Placed(Protocol):
    """A reward that says itself where it should run."""

    isolation: Isolation
    preload: tuple[str, ...]
    """Modules to load before it is sent to a process of its own, once for all of them."""


@runtime_checkable
class Closable(Protocol):
    """A reward that holds something; one that Windrow made from its name is closed by Windrow."""

    async def close(self) -> None: ...


@runtime_checkable
class Reward(Protocol):
    """Scores one episode, as soon as it is over."""

    def score(self, trajectory: Trajectory) -> Scored | Awaitable[Scored]: ...


@runtime_checkable
class GroupReward(Protocol):
    """Scores the episodes of a group together, when all of them are over."""

    def score_group(self, trajectories: Sequence[Trajectory]) -> Sequence[Scored] | Awaitable[Sequence[Scored]]: ...


AnyReward = Reward | GroupReward
