"""A cancellation at every await, and an end at every moment, while scores are pending."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, at, later, now, play, played
from tests.rollout.striking import Moment, Strike, at_every_await, struck
from tests.rollout.toys import Echo, Rewriting, talk

from windrow.errors import RewardError
from windrow.rollout.env_config import RewardLimits
from windrow.rollout.reward_workers import RewardWorker
from windrow.trajectory import Trajectory

moments = pytest.mark.parametrize("moment", ["begin", "end"])


class Single:
    """Takes its time in two parts; counts who is being scored."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.busy = 0
        self.done: list[Trajectory] = []

    async def score(self, trajectory: Trajectory) -> float:
        await self.think()
        self.done.append(trajectory)
        return float(trajectory.seat)

    async def think(self) -> None:
        self.busy += 1
        try:
            await asyncio.sleep(self.seconds / 2)
            await asyncio.sleep(self.seconds / 2)
        finally:
            self.busy -= 1


class Together(Single):
    """The same for whole groups."""

    score = None  # type: ignore[assignment]  # it has the other one

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        await self.think()
        self.done += trajectories
        return [float(trajectory.seat) for trajectory in trajectories]


del Together.score  # one or the other
rewards = pytest.mark.parametrize("reward", [Single, Together])


def rig_of(reward: Any, **more: Any) -> Rig:
    given: dict[str, Any] = {"engines": 2, "script": talk(20, 40), "env": partial(Echo, turns=2)}
    given["engine"] = {"load_s": 3.0, "release_s": 3.0, "restore_s": 3.0}
    return Rig(reward=reward, **given | {"config": {"staleness": 1.0, "suspend_mode": "drain"}} | more)


async def stream(rig: Rig) -> None:
    async with aclosing(rig.scheduler.stream()) as groups:
        async for _ in groups:
            return


Call = Callable[[Rig], Coroutine[Any, Any, Any]]
CALLS: dict[str, Call] = {
    "get_batch": lambda rig: rig.scheduler.get_batch(at(1), 8),
    "stream": stream,
    "suspend": lambda rig: rig.scheduler.suspend(),
    "update_weights": lambda rig: rig.scheduler.update_weights(5),
    "shrink_sampler": lambda rig: rig.scheduler.shrink_sampler([1]),
}


@moments
@rewards
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cancelled_while_scores_are_pending_leaves_the_rest_as_it_should_be(
    name: str, reward: Any, moment: Moment
):
    async def scene(strike: Strike) -> None:
        rig = rig_of(reward())
        await rig.full(0)
        await later(3.0)
        assert rig.machine.status().attempts_scoring > 0
        outcome = await struck(CALLS[name](rig), strike)
        assert isinstance(outcome, asyncio.CancelledError) == strike.fell, repr(outcome)
        await later(100)
        for step in (1, 2):
            assert len(await rig.full(step)) == 8
        assert rig.scheduler.status().lost_engines == {}

    assert at_every_await(scene, moment) >= 1


@moments
@rewards
def test_a_cancelled_get_batch_loses_no_score_and_asks_for_none_twice(reward: Any, moment: Moment):
    async def scene(strike: Strike) -> None:
        asked = reward()
        rig = rig_of(asked, tasks=8, keep=True)
        await struck(rig.scheduler.get_batch(at(0), 8), strike)
        assert [len(await rig.full(step)) for step in (0, 1)] == [8, 8]
        assert await rig.batch(2) is None
        assert len({trajectory.attempt for trajectory in asked.done}) == len(asked.done) == 16

    assert at_every_await(scene, moment) >= 1


@moments
@rewards
def test_a_shutdown_that_is_cancelled_while_scores_are_pending_can_be_finished(reward: Any, moment: Moment):
    async def scene(strike: Strike) -> None:
        asked = reward(1000.0)
        rig = rig_of(asked, reward_limits=RewardLimits(timeout_s=1e4))
        waiting = asyncio.ensure_future(rig.batch(0))
        await later(20)
        assert asked.busy > 0
        await struck(rig.scheduler.shutdown(), strike)
        await rig.scheduler.shutdown()
        assert await waiting is None
        assert asked.busy == 0
        assert kit.premises.tasks() == {asyncio.current_task()}

    assert at_every_await(scene, moment) >= 1


@rewards
@pytest.mark.parametrize("which", ["train", "val"])
def test_a_scheduler_may_leave_at_any_moment_of_scoring(reward: Any, which: str):
    """At once, while episodes are played, scored and handed out; the other one goes on, and a new one may come."""

    async def scene(after_s: float) -> None:
        rig = rig_of(reward(), tasks=8)
        val = rig.join("val", reward=reward(), max_tasks=4)
        leaving, staying = (rig.scheduler, val) if which == "train" else (val, rig.scheduler)
        waits = [asyncio.ensure_future(rig.batch(0, of=each)) for each in (leaving, staying)]
        await later(after_s)
        await leaving.shutdown()
        first, second = [await wait for wait in waits]
        assert first is None or len(first) == 8
        assert second is not None
        assert len(second) == 8
        if which == "val":
            again = rig.join("val", reward=reward(), max_tasks=4)
            assert len(await rig.full(0, of=again)) == 8

    for moment in (0.0, 0.1, 2.0, 4.0, 9.0, 12.0, 13.0):
        play(scene(moment))


@rewards
def test_spares_whose_scores_are_broken_off_anywhere_leave_nothing_behind(reward: Any):
    """The group is full while its spare waits for a place, is scored, or rests between two tries."""

    async def scene(places: int, seconds: float) -> None:
        class Uneven(reward):  # type: ignore[misc]  # a class that is given
            tries = 0

            async def think(self) -> None:
                await super().think()
                self.tries += 1
                if self.tries % 3 == 0:
                    raise ConnectionError("not now")

        limits = RewardLimits(at_once=places, retry_after_s=1.0)
        rig = Rig(reward=Uneven(seconds), reward_limits=limits, tasks=6, group_size_redundancy=2)
        assert len(await rig.full(0, 8)) == 8
        assert len(await rig.full(1, 4)) == 4
        await later(50)
        assert rig.machine.status().attempts_scoring == 0
        assert [each for each in rig.scheduler.status().episodes if each.stage == "scoring"] == []
        assert rig.ledger.attempts.dropped == {"spare": 12}

    for places in (1, 2, 16):
        for seconds in (0.0, 0.7, 1.4, 3.1):
            play(scene(places, seconds))


@moments
@rewards
def test_a_score_that_is_cancelled_anywhere_by_nobody_who_may_costs_its_own_attempt(
    reward: Any, moment: Moment, monkeypatch: pytest.MonkeyPatch
):
    """Something cancels the task of a score, as a library may; the others are not held up, and the batch comes."""
    plain = RewardWorker._score

    async def scene(strike: Strike) -> None:
        first = [True]

        async def score(worker: RewardWorker, *given: Any, **more: Any) -> None:
            if not first:
                return await plain(worker, *given, **more)
            first.clear()
            await strike.upon(plain(worker, *given, **more))
            return None

        monkeypatch.setattr(RewardWorker, "_score", score)
        limits = RewardLimits(at_once=2)
        rig = rig_of(reward(), tasks=4, reward_limits=limits, config={"episode_timeout_s": 200.0})
        assert len(await rig.full(0)) == 8
        assert rig.machine.status().attempts_scoring == 0

    assert at_every_await(scene, moment) >= 1


# other disturbances


@rewards
@pytest.mark.parametrize("on_stale", ["wait", "drop", "keep"])
def test_weights_that_change_while_scores_are_pending_make_nothing_older_than_allowed(reward: Any, on_stale: Any):
    @played
    async def body() -> None:
        rig = Rig(reward=reward(50.0), keep=True, config={"staleness": 1.0, "on_stale": on_stale})
        for step in range(3):
            waiting = asyncio.ensure_future(rig.full(step))
            await later(20)
            await rig.scheduler.update_weights(rig.machine.version + 2)
            batch = await waiting
            lag = batch.meta_info["metrics"]["batch/lag_versions/max"]
            assert lag <= (4 if on_stale == "keep" else 1)
            kept = {str(t.attempt): t.oldest_version for t in rig.kept.values()}
            oldest = min(kept[name] for name in batch.non_tensor_batch["traj_name"])
            assert lag == batch.meta_info["version"] - oldest

    body()


@rewards
def test_an_engine_that_is_lost_while_scores_are_pending_costs_nothing(reward: Any):
    @played
    async def body() -> None:
        rig = Rig(tasks=4, engines=2, reward=reward(50.0))
        waiting = asyncio.ensure_future(rig.full(n=8))
        await later(20)
        rig.engines[0].die()
        assert len(await waiting) == 8
        assert rig.log.made == 8

    body()


@played
async def test_a_worker_that_is_lost_while_its_episodes_are_scored_costs_nothing():
    rig = Rig(reward=Single(50.0), tasks=4, num_workers=2)
    waiting = asyncio.ensure_future(rig.full(n=8))
    await later(20)
    await rig.queue.leave("train-worker-0", "it crashed")
    assert len(await waiting) == 8
    assert rig.log.made == 8


@rewards
@pytest.mark.parametrize(
    "given",
    [
        {"max_at_once": 1},
        {"max_at_once": 1, "group_size_redundancy": 2},
        {"num_workers": 3, "config": {"staleness": 2.0}},
        {"config": {"tail": 0.5}},
        {"config": {"rows": "turn"}, "env": partial(Rewriting, turns=3)},
    ],
    ids=str,
)
def test_every_task_is_played_scored_and_handed_out_once(reward: Any, given: dict[str, Any]):
    @played
    async def body() -> None:
        rig = Rig(**{"env": partial(Echo, turns=3, step_s=0.3), "tasks": 10, "reward": reward(7.0)} | given)
        names: list[str] = []
        step = 0
        while (batch := await rig.batch(step)) is not None:
            names += {*batch.non_tensor_batch["traj_name"]}
            step += 1
        assert len(names) == len({*names}) == 20

    body()


@rewards
def test_when_a_run_ends_by_a_failure_the_scores_that_are_pending_are_nobodys_fault(reward: Any):
    """A filter breaks on the first group while the others are being scored."""

    def broken(_: list[Trajectory]) -> bool:
        raise KeyError("filter")

    class Uneven(reward):  # type: ignore[misc]  # a class that is given
        async def think(self) -> None:
            await asyncio.sleep(10.0 if not self.done else 1e4)

    @played
    async def body() -> None:
        limits = RewardLimits(timeout_s=1e6, at_once=2)
        rig = Rig(reward=Uneven(), filter=broken, reward_limits=limits, config={"reward_retries": 0})
        with pytest.raises(RewardError, match=r"filter of g.: KeyError"):
            await rig.full(0)
        await later(10)
        assert rig.ledger.attempts.dropped == {}

    body()


# rewards that do not let themselves be broken off


class Resigning:
    """Cancels the task that it runs in, once."""

    def __init__(self) -> None:
        self.calls = 0

    async def score(self, trajectory: Trajectory) -> float:
        self.calls += 1
        task = asyncio.current_task()
        if self.calls == 1 and task is not None:
            task.cancel()
            await asyncio.sleep(1)
        return 1.0


@played
async def test_a_reward_that_cancels_itself_is_news_at_once_and_not_when_its_lease_runs_out():
    rig = Rig(tasks=3, group_size=1, reward=Resigning(), config={"reward_retries": 0})
    assert len(await rig.full(n=-1)) == 2
    assert now() < 100.0


class Disguising:
    """Makes a passing failure of its cancellation, as some clients of services do."""

    def __init__(self) -> None:
        self.calls = 0

    async def score(self, trajectory: Trajectory) -> float:
        self.calls += 1
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            raise ConnectionError("the connection was closed") from None
        return 1.0


@played
async def test_what_was_broken_off_is_not_tried_again():
    reward = Disguising()
    limits = RewardLimits(timeout_s=1e7)
    rig = Rig(tasks=1, reward=reward, reward_limits=limits, config={"episode_timeout_s": 1e7})
    waiting = asyncio.ensure_future(rig.batch(n=2))
    await later(100)
    assert reward.calls == 2
    began = now()
    await rig.scheduler.shutdown()
    assert await waiting is None
    assert (reward.calls, now()) == (2, began)


class Stubborn(Together):
    """Its first call, when broken off, goes on for a while and answers all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        self.calls += 1
        call = self.calls
        try:
            await asyncio.sleep(1000.0 if call == 1 else 10.0)
        except asyncio.CancelledError:
            await asyncio.sleep(3.0)
        return [100.0 * call + place for place in range(len(trajectories))]


def one_group(reward: Any, **more: Any) -> Rig:
    """One group of two that are played one after the other, for ten seconds each, with a minute for each."""
    config = {"episode_timeout_s": 60.0, "retry_after_s": 0.0, "reward_retries": 3}
    limits = RewardLimits(timeout_s=1e5)
    env = partial(Echo, step_s=10.0)
    return Rig(tasks=1, max_at_once=1, env=env, reward=reward, reward_limits=limits, config=config, **more)


@played
async def test_all_scores_of_a_group_come_from_one_call_even_if_an_older_one_answers_late():
    rig = one_group(Stubborn())
    batch = await rig.full(n=2)
    scores = batch.batch["episode_scores"].tolist()
    assert len({int(score) // 100 for score in scores}) == 1, scores


class Punctual(Together):
    """Its first call answers at a given moment, the others after a second."""

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment
        self.calls = 0

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        self.calls += 1
        await asyncio.sleep(self.moment - now() if self.calls == 1 else 1.0)
        return [1.0 for _ in trajectories]


@pytest.mark.parametrize("moment", [59.9, 60.0, 60.1])
def test_a_group_whose_score_comes_while_a_lease_runs_out_is_scored_again_or_complete(moment: float):
    @played
    async def body() -> None:
        rig = one_group(Punctual(moment))
        assert len(await rig.full(n=2)) == 2
        assert now() < 150.0

    body()
