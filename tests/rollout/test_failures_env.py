"""Environments that fail: a typed outcome, tried again within a budget, then quarantined; never a score."""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.rollout.kit import Rig, later, now, played
from tests.rollout.toys import Answering, Breaking, Echo, EnvLog, Hanging, first_time

from windrow.core.faults import DeadLetter
from windrow.envs.protocol import Rewritten, Step
from windrow.errors import Refused
from windrow.text import Message
from windrow.trajectory import Task


def only_task(ordinal: int) -> Callable[[Task, int], bool]:
    return lambda task, _: task.ordinal == ordinal


class RaisesWhenMade(Echo):
    def __init__(self, log: EnvLog) -> None:
        if not log.plays[-2]:
            log.plays[-2] = 1
            raise OSError("no display")
        super().__init__(log)


class RaisesAtStart(Echo):
    async def start(self, task: Task) -> Any:
        said = await super().start(task)
        if not self.before:
            raise OSError("no display")
        return said


class Plain(Echo):
    """Not asynchronous at all, and broken at first."""

    def step(self, action: str) -> Any:
        if not self.before:
            raise KeyError("the door")
        return super().step(action)


class NotAwaitable(Echo):
    def step(self, action: str) -> Any:
        return Step(terminated=True) if not self.before else super().step(action)


class TimesOut(Echo):
    async def step(self, action: str) -> Any:
        if not self.before:
            raise TimeoutError
        return await super().step(action)


class StartsOddly(Echo):
    async def start(self, task: Task) -> Any:
        await super().start(task)
        return b"bytes" if not self.before else "text"


def answers(answer: object) -> Callable[[EnvLog], Echo]:
    return partial(Answering, answer=answer, when=first_time)


WRONG: dict[str, Callable[[EnvLog], Any]] = {
    "raises in a step": partial(Breaking, at=1, when=first_time),
    "raises when it is made": RaisesWhenMade,
    "raises at its start": RaisesAtStart,
    "raises before it awaits": Plain,
    "is not awaitable": NotAwaitable,
    "hangs in a step": partial(Hanging, when=first_time),
    "raises a timeout of its own": TimesOut,
    "returns nothing": answers(None),
    "returns a tuple": answers(("obs", 1.0, True, False, {})),
    "rewards with nan": answers(Step(reward=float("nan"), terminated=True)),
    "rewards with infinity": answers(Step(reward=float("inf"), terminated=True)),
    "rewards with text": answers(Step(reward="1", terminated=True)),  # type: ignore[arg-type]
    "rewards with nothing": answers(Step(reward=None, terminated=True)),  # type: ignore[arg-type]
    "rewards with a number too large": answers(Step(reward=10**400, terminated=True)),
    "shows a number": answers(Step(observation=7)),  # type: ignore[arg-type]
    "shows an empty list": answers(Step(observation=[])),
    "shows a list of text": answers(Step(observation=["a"])),  # type: ignore[list-item]
    "shows bytes at first": StartsOddly,
    "rewrites history with nothing": answers(Step(observation=Rewritten(()))),
    "rewrites history with text": answers(Step(observation=Rewritten(("a",)))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
@played
async def test_what_goes_wrong_once_is_tried_again_and_never_scored(name: str):
    rig = Rig(env=WRONG[name], tasks=8, keep=True, config={"env_retries": 100})
    batch = await rig.full(0)
    assert len(batch) == 8
    assert [*rig.ledger.attempts.dropped] == ["failed"]
    failed = rig.ledger.attempts.dropped["failed"]
    assert batch.meta_info["metrics"]["attempt/failed_total/env"] == failed > 0
    assert len(await rig.full(1)) == 8
    assert rig.machine.dead_letters == []
    assert all(kept.turns for kept in rig.kept.values())


@played
async def test_a_task_that_keeps_failing_is_quarantined_and_the_run_goes_on():
    rig = Rig(env=partial(Breaking, when=only_task(1)), tasks=5, config={"env_retries": 2, "retry_after_s": 1.0})
    batch = await rig.full(0)
    assert len(batch) == 8
    (letter,) = rig.machine.dead_letters
    assert isinstance(letter, DeadLetter)
    assert (letter.task, letter.ordinal, letter.failures) == ("task 1", 1, 3)
    assert "environment '' step 0: KeyError: 'the door'" in letter.why
    assert rig.ledger.groups.dropped == {"poisoned": 1}
    assert rig.scheduler.status().scheduling.quarantined == ("task 1",)


@played
async def test_a_retry_rests_first_and_longer_each_time():
    config = {"env_retries": 3, "retry_after_s": 10.0}
    rig = Rig(env=partial(Breaking, when=only_task(0)), tasks=1, group_size=1, config=config)
    assert await rig.batch(0, -1) is None
    assert now() > 10 + 20 + 40
    assert rig.log.plays[0] == 4


@played
async def test_a_quarantined_task_is_not_played_in_the_next_pass():
    rig = Rig(env=partial(Breaking, when=only_task(0)), mode="val", tasks=2, config={"env_retries": 0})
    assert len(await rig.full(0, -1)) == 2
    plays = rig.log.plays[0]
    assert len(await rig.full(1, -1)) == 2
    assert rig.log.plays[0] == plays


@played
async def test_a_hung_step_costs_its_time_limit_and_the_others_nothing():
    rig = Rig(env=partial(Hanging, when=only_task(0)), tasks=3, step_timeout_s=30.0, config={"env_retries": 0})
    batch = await rig.full(0, -1)
    assert len(batch) == 4
    assert 30 < now() < 40
    (letter,) = rig.machine.dead_letters
    assert "it took too long" in letter.why


@played
async def test_an_environment_that_hangs_for_longer_than_an_episode_may_take_is_given_up():
    config = {"env_retries": 0, "episode_timeout_s": 50.0}
    rig = Rig(env=partial(Hanging, when=only_task(0)), tasks=3, step_timeout_s=1e5, config=config)
    assert len(await rig.full(0, -1)) == 4
    assert 50 <= now() < 60
    assert "its lease of 50.0 s ran out" in rig.machine.dead_letters[0].why


class CancelsItself(Echo):
    async def step(self, action: str) -> Any:
        if self.task.ordinal == 0:
            raise asyncio.CancelledError
        return await super().step(action)


@played
async def test_an_environment_that_raises_a_cancellation_does_not_stop_the_run():
    rig = Rig(env=CancelsItself, tasks=3, config={"env_retries": 0, "episode_timeout_s": 50.0})
    assert len(await rig.full(0, -1)) == 4
    assert len(rig.machine.dead_letters) == 1


class ClosesBadly(Echo):
    async def close(self) -> None:
        await super().close()
        raise OSError("still busy")


class ClosesNever(Echo):
    async def close(self) -> None:
        await super().close()
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("env", [ClosesBadly, ClosesNever])
@played
async def test_an_episode_that_was_played_counts_although_its_environment_does_not_close(env: Any):
    rig = Rig(env=env)
    assert len(await rig.full(0)) == 8
    assert rig.ledger.attempts.dropped == {}


@pytest.mark.parametrize("reward", [1, True, np.float32(1.0), np.int64(1), Fraction(1, 1)])
@played
async def test_any_finite_number_is_a_reward(reward: Any):
    rig = Rig(env=partial(Answering, answer=Step(reward=reward, terminated=True)))
    batch = await rig.full(0)
    assert batch.batch["episode_scores"].tolist() == [1.0] * 8


@pytest.mark.parametrize(
    "shown",
    ["", "text", Message("tool", "said"), [Message("user", "a"), Message("tool", "b")], (Message("user", "a"),)],
)
@played
async def test_any_of_the_observations_is_shown(shown: Any):
    rig = Rig(env=partial(Answering, answer=Step(observation=shown)))
    assert len(await rig.full(0)) == 8
    assert rig.ledger.attempts.dropped == {}


@played
async def test_failures_are_no_zeros():
    rig = Rig(env=partial(Breaking, when=first_time), keep=True, config={"env_retries": 8})
    batch = await rig.full(0)
    assert (batch.batch["episode_scores"] > 0).all()


# when the error rate says that the fault is systemic the run stops with the first cause


@played
async def test_when_everything_fails_get_batch_is_refused_with_the_first_cause():
    rig = Rig(env=Breaking, config={"breaker_share": 0.5, "env_retries": 1000, "retry_after_s": 0.0})
    with pytest.raises(
        Refused, match=r"64 of the last 64 attempts failed; the first: g0\.a\d env: .*KeyError: 'the door'"
    ):
        await rig.batch(0)
    assert "KeyError" in rig.scheduler.status().scheduling.halted
    with pytest.raises(Refused, match="attempts failed"):
        await rig.batch(0)


@played
async def test_a_few_failures_do_not_stop_the_run():
    rig = Rig(env=partial(Breaking, when=first_time), config={"breaker_share": 0.9, "env_retries": 50}, tasks=40)
    for step in range(4):
        assert len(await rig.full(step)) == 8
    await later(1)
    assert rig.machine.halted == ""
