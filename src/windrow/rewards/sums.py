"""Several rewards as one: a weighted sum of which every part stays visible.

Promises: the score is the sum of weight × value over the members, and each member's own value stands in `parts` under
its name, with the parts that it has itself behind it (`math`, `math/exact`). What a member raises is raised: a sum
never replaces a missing part by 0. A sum of ordinary functions is one itself, so it can run in a process of its own;
with one asynchronous member it is asynchronous, and each of the others runs where it belongs: in a thread, or in a
process that is killed when the wait for it ends. `close` ends those.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from inspect import isawaitable, iscoroutinefunction
from math import isfinite
from numbers import Real
from typing import Protocol, runtime_checkable

from windrow.envs.protocol import Isolation
from windrow.errors import ConfigError, RewardError, blame
from windrow.nearest import did_you_mean
from windrow.rewards.places import Ask, way_to
from windrow.rewards.protocol import Closable, Placed, Reward, Score
from windrow.trajectory import Trajectory


@runtime_checkable
class Startable(Protocol):
    """A reward that wants to be told when it begins."""

    async def start(self) -> None: ...


class WeightedSum:
    """A weighted sum of rewards, by name."""

    def __init__(self, members: Mapping[str, Reward], weights: Mapping[str, float] | None = None) -> None:
        self._members = dict(members)
        self._weights = dict.fromkeys(members, 1.0) | dict(weights or {})
        self._check()
        self._waits = any(iscoroutinefunction(member.score) for member in self._members.values())
        placed = [member for member in self._members.values() if isinstance(member, Placed)]
        wish: Isolation = "process" if any(member.isolation == "process" for member in placed) else "thread"
        self.isolation: Isolation = "inline" if self._waits else wish
        self._ways: dict[str, Ask] = {}  # to the members, while they are open
        self._stack = AsyncExitStack()
        self.preload = tuple(dict.fromkeys(name for member in placed for name in member.preload))

    @property
    def score(self) -> "Callable[[Trajectory], Score] | Callable[[Trajectory], Awaitable[Score]]":
        """A function, or an asynchronous one if a member is."""
        return self._score_waiting if self._waits else self._score_at_once

    async def start(self) -> None:
        """Start the members that want to be started."""
        for member in self._members.values():
            if isinstance(member, Startable):
                await member.start()

    async def close(self) -> None:
        """Close the members that can be closed."""
        self._ways = {}
        await self._stack.aclose()
        for member in self._members.values():
            if isinstance(member, Closable):
                await member.close()

    def _score_at_once(self, trajectory: Trajectory) -> Score:
        scores: dict[str, Score] = {}
        for name, member in self._members.items():
            with blame(RewardError, "part", repr(name)):
                said = member.score(trajectory)
                if isawaitable(said):
                    raise RewardError(f"part {name!r} must be awaited; declare its score with async def")
                scores[name] = as_score(said)
        return self._add_up(scores)

    async def _score_waiting(self, trajectory: Trajectory) -> Score:
        """All members at once; the first that fails ends the others."""
        scores: dict[str, Score] = {}

        async def ask(name: str, way: Ask) -> None:
            with blame(RewardError, "part", repr(name)):
                scores[name] = as_score(await way("score", trajectory))

        if not self._ways:
            self._ways = {
                name: way_to(each, None, f"part {name!r}", self._stack) for name, each in self._members.items()
            }

        try:
            async with asyncio.TaskGroup() as group:
                for name, way in self._ways.items():
                    group.create_task(ask(name, way), name=f"reward {name}")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # the first; it names its part
        return self._add_up(scores)

    def _add_up(self, scores: Mapping[str, Score]) -> Score:
        parts: dict[str, float] = {}
        for name in self._members:  # in the order they were given, whoever was first
            parts[name] = scores[name].value
            parts |= {f"{name}/{inner}": value for inner, value in scores[name].parts.items()}
        value = sum(self._weights[name] * scores[name].value for name in self._members)
        notes = [f"{name}: {scores[name].note}" for name in self._members if scores[name].note]
        return Score(value, parts, "; ".join(notes))

    def _check(self) -> None:
        """Raise ConfigError if this cannot be summed up."""
        if not self._members:
            raise ConfigError("a weighted sum of nothing; name at least one reward")
        for name, weight in self._weights.items():
            if name not in self._members:
                raise ConfigError(f"a weight for {name!r}, which is no part{did_you_mean(name, self._members)}")
            if not _is_weight(weight):
                raise ConfigError(f"the weight of {name!r} is {weight!r}; give a finite number")
        for name, member in self._members.items():
            if not isinstance(member, Reward):
                raise ConfigError(f"{name!r} is {member!r:.60}, which has no score(trajectory); a sum takes only those")


def _is_weight(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and isfinite(weight)


def as_score(said: object) -> Score:
    """A score with its parts, from what a reward said; raises RewardError if it is none."""
    if isinstance(said, bool) or not isinstance(said, Real | Score):
        raise RewardError(f"a reward said {said!r:.60}; return a number or a Score")
    score = said if isinstance(said, Score) else Score(float(said))
    if not isfinite(score.value):
        raise RewardError(f"a reward said {score.value}; a score is a finite number")
    return score
