"""Finished episodes for rewards to score."""

import asyncio
from collections.abc import Callable
from typing import Any

from windrow.envs.questions import QuestionEnv
from windrow.requests import FinishReason
from windrow.text import Message
from windrow.trajectory import Ending, Split, Task, Trajectory, Turn
from windrow.types import AttemptId


def said(
    answer: str,
    info: dict[str, Any] | None = None,
    *,
    rewards: tuple[float, ...] = (0.0,),
    tokens: int = 3,
    finish: FinishReason = "stop",
    ending: Ending = "terminated",
    shown: str = "what?",
    index: int = 0,
) -> Trajectory:
    """An episode that ended with an answer."""
    turns = tuple(
        Turn(
            chain=0,
            begin=0,
            end=tokens,
            reward=reward,
            finish=finish,
            seen=(Message("user", shown),) if shown else (),
            action=answer,
        )
        for reward in rewards
    )
    return Trajectory(
        attempt=AttemptId(0, index),
        seat=0,
        mode="train",
        task=Task(ordinal=0, tag="test"),
        chains=(),
        turns=turns,
        score=sum(rewards),
        ending=ending,
        info=info or {},
    )


def answered(
    env: QuestionEnv[Any], policy: Callable[[Any], str], seed: int = 0, split: Split = "held_out"
) -> Trajectory:
    """The episode in which a policy answers an environment's one question."""

    async def play() -> Trajectory:
        shown = await env.start(Task(ordinal=seed, seed=seed, split=split))
        action = policy(env)
        step = await env.step(action)
        await env.close()
        assert step.terminated
        assert step.reward == 0
        return said(action, step.info, shown=str(shown))

    return asyncio.run(play())
