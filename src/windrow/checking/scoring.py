"""What a played episode was worth: the sum of the environment's rewards, or what a reward says to its trajectory.

Promises: a reward that fails or takes too long is a `RewardError`, never a score.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from windrow.checking.played import Played
from windrow.errors import RewardError, blame
from windrow.loading.words import number, shown
from windrow.rewards.protocol import Closable, GroupReward, Score
from windrow.rewards.sums import Startable
from windrow.text import ByteCodec
from windrow.trajectory import Chain, Segment, Trajectory, Turn
from windrow.types import AttemptId

CODEC = ByteCodec()


class Scorer:
    """Scores finished episodes."""

    def __init__(self, reward: Any, timeout_s: float) -> None:  # noqa: ANN401 -- whatever has `score`
        self._reward = reward
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        if isinstance(self._reward, Startable):
            with blame(RewardError, self._name, "start"):
                await self._reward.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._reward, Closable):
            with blame(RewardError, self._name, "close"):
                await self._reward.close()

    async def score(self, played: Played) -> float:
        """What it was worth."""
        if self._reward is None:
            return played.score
        said = await self._ask(trajectory_of(played))
        value = said.value if isinstance(said, Score) else said
        score = number(value) if isinstance(value, int | float | np.floating) else None
        if score is None or not np.isfinite(score):
            raise RewardError(f"{self._name} returned {shown(said)}; return a finite number or a Score")
        return score

    @property
    def _name(self) -> str:
        return f"reward {type(self._reward).__name__}"

    async def _ask(self, trajectory: Trajectory) -> object:
        with blame(RewardError, self._name):
            async with asyncio.timeout(self._timeout_s):
                if not isinstance(self._reward, GroupReward):
                    return await _called(self._reward.score, trajectory)
                said = await _called(self._reward.score_group, [trajectory])
                return said[0]


async def _called(score: Callable[[Any], Any], what: object) -> Any:  # noqa: ANN401 -- whatever a reward says
    """An asynchronous function here, an ordinary one in a thread."""
    said = score(what) if inspect.iscoroutinefunction(score) else await asyncio.to_thread(score, what)
    return await said if inspect.isawaitable(said) else said


def trajectory_of(played: Played) -> Trajectory:
    """What would remain of the episode if a model had played it, with the bytes of the text as its tokens."""
    tokens: list[int] = []
    segments: list[Segment] = []
    turns: list[Turn] = []
    for place, (action, reward) in enumerate(zip(played.actions, played.rewards, strict=True)):
        shown = CODEC.begin(played.seen[place]).tolist()
        said = [*action.encode("utf-8", "replace"), ByteCodec.END]
        segments += [Segment("environment" if place else "prompt", len(shown)), Segment("policy", len(said), 0)]
        begin = len(tokens) + len(shown)
        tokens += [*shown, *said]
        seen = tuple(played.seen[place])
        turns.append(
            Turn(chain=0, begin=begin, end=len(tokens), reward=reward, finish="stop", seen=seen, action=action)
        )
    return Trajectory(
        attempt=AttemptId(0, 0),
        seat=0,
        mode="val",
        task=played.task,
        chains=(
            Chain(
                token_ids=np.array(tokens, np.int32),
                logprobs=np.zeros(len(tokens), np.float32),
                segments=tuple(segments),
            ),
        ),
        turns=tuple(turns),
        score=played.score,
        ending="terminated" if played.ending == "terminated" else "truncated",
        info=played.info,
    )
