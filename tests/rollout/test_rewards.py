"""Rewards in the rollout path: apart from the slots, in time, and never a score when they fail."""

import asyncio
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.rollout.kit import Rig, played
from tests.rollout.toys import Echo, Slow

from windrow.errors import ConfigError
from windrow.rewards.protocol import Score
from windrow.rollout.env_config import RewardLimits, TagConfig
from windrow.rollout.orders import News, Scored, Unscorable
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.trays import Forget, Job
from windrow.trajectory import Trajectory


class Telling:
    """Scores by the ordinal of the task, and remembers when it was asked."""

    def __init__(self, seconds: float = 0.0, *, parts: dict[str, float] | None = None) -> None:
        self.seconds = seconds
        self.parts = parts or {}
        self.asked: list[Trajectory] = []
        self.at_once = 0
        self.most = 0
        self.spans: list[tuple[float, float]] = []

    async def score(self, trajectory: Trajectory) -> Score:
        self.asked.append(trajectory)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        self.spans.append((began, loop.time()))
        return Score(float(trajectory.task.ordinal), self.parts)


class Raising:
    """Fails so many times."""

    def __init__(self, error: BaseException, times: int = 1_000_000) -> None:
        self.error = error
        self.times = times
        self.calls = 0

    async def score(self, trajectory: Trajectory) -> float:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return 1.0


def test_a_reward_in_this_process_is_given_no_device():
    with pytest.raises(ConfigError, match=r"reward_limits\.device is 0, which only a host on Ray can have"):
        Rig(reward=Telling(), reward_limits=RewardLimits(device=0))


@played
async def test_the_reward_is_the_score_and_the_last_turn_is_credited_with_it():
    rig = Rig(env=partial(Echo, turns=3), tasks=4, reward=Telling())
    batch = await rig.full(n=8)
    tensors = batch.batch
    assert sorted(tensors["episode_scores"].tolist()) == pytest.approx([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    assert tensors["scores"].sum(dim=1).tolist() == pytest.approx(tensors["episode_scores"].tolist())
    assert tensors["step_scores"].sum(dim=1).tolist() == pytest.approx(tensors["episode_scores"].tolist(), abs=1e-5)


@played
async def test_every_component_is_kept_with_the_trajectory_and_measured():
    rig = Rig(tasks=4, reward=Telling(parts={"format": 0.5, "answer": 1.0}))
    batch = await rig.full(n=8)
    assert all(parts == {"format": 0.5, "answer": 1.0} for parts in batch.non_tensor_batch["score_parts"])
    assert batch.meta_info["metrics"]["reward/part/format/mean"] == 0.5


@played
async def test_a_reward_takes_no_slot_of_the_environments():
    """Two slots, eight episodes, each scored for 50 s: all eight are being scored at the same time."""
    reward = Telling(50.0)
    rig = Rig(tasks=4, reward=reward, num_env_groups=1)
    await rig.full(n=8)
    assert reward.most == 8
    assert rig.machine.status().attempts_scoring == 0


@played
async def test_never_more_are_scored_at_once_than_allowed():
    reward = Telling(10.0)
    rig = Rig(tasks=8, reward=reward, reward_limits=RewardLimits(at_once=3))
    await rig.full(n=16)
    assert reward.most == 3


@played
async def test_rewards_of_a_thousand_episodes_overlap_with_generation_and_steps():
    """By the timestamps in the trajectories: while rewards were computed, others generated and stepped."""
    rig = Rig(
        env=partial(Echo, turns=2, step_s=3.0),
        tasks=500,
        keep=True,
        reward=Telling(20.0),
        reward_limits=RewardLimits(at_once=1000),
        num_env_groups=16,
        config={"rollout_batch_size": 1000},
    )
    await rig.full(n=1000)
    trajectories = [*rig.kept.values()]
    assert len(trajectories) == 1000
    playing = sorted((t.began_at, t.ended_at) for t in trajectories)
    overlapped = sum(
        any(began < t.reward_ended_at and t.reward_began_at < ended for began, ended in playing) for t in trajectories
    )
    waited = [t.reward_began_at - t.ended_at for t in trajectories]
    assert max(waited) == 0.0  # each as soon as that sample was ready
    assert overlapped >= 900  # all but those of the last round of episodes
    assert max(t.reward_ended_at for t in trajectories) - playing[0][0] < 1000 * 20.0 / 10


@played
async def test_a_reward_that_raises_is_no_score():
    rig = Rig(tasks=2, reward=Raising(KeyError("answer")), config={"reward_retries": 0})
    assert await rig.batch(n=-1) is None
    assert rig.ledger.attempts.dropped["failed"] >= 1
    assert rig.ledger.attempts.delivered == 0


@played
async def test_a_transient_failure_is_tried_again_without_playing_again():
    reward = Raising(ConnectionError("judge is away"), times=2)
    rig = Rig(tasks=1, reward=reward)
    batch = await rig.full(n=2)
    assert batch.batch["episode_scores"].tolist() == [1.0, 1.0]
    assert rig.log.made == 2


@pytest.mark.parametrize(("retry", "calls"), [("never", 1), ("transient", 1), ("always", 3)])
def test_which_failures_are_tried_again_is_the_users_choice(retry: Any, calls: int):
    @played
    async def body() -> None:
        reward = Raising(ValueError("a bug"))
        limits = RewardLimits(retry=retry, retries=2)
        rig = Rig(tasks=1, group_size=1, reward=reward, reward_limits=limits, config={"reward_retries": 0})
        assert await rig.batch(n=-1) is None
        assert reward.calls == calls

    body()


@played
async def test_a_hanging_reward_ends_at_its_deadline():
    limits = RewardLimits(timeout_s=5.0, retries=0)
    rig = Rig(tasks=1, group_size=1, reward=Telling(1e6), reward_limits=limits, config={"reward_retries": 0})
    assert await rig.batch(n=-1) is None
    assert asyncio.get_running_loop().time() < 20.0
    assert rig.ledger.attempts.dropped["failed"] == 1


@pytest.mark.parametrize(
    "said", [None, "much", float("nan"), float("inf"), Score(float("nan")), Score(1.0, {"a": float("nan")}), []]
)
def test_nonsense_is_a_failure_and_not_a_score(said: Any):
    class Odd:
        async def score(self, trajectory: Trajectory) -> Any:
            return said

    @played
    async def body() -> None:
        rig = Rig(tasks=1, group_size=1, reward=Odd(), config={"reward_retries": 0})
        assert await rig.batch(n=-1) is None
        assert rig.ledger.attempts.dropped["failed"] == 1

    body()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_a_reward_that_wants_to_end_everything_ends_its_own_attempt(error: BaseException):
    @played
    async def body() -> None:
        rig = Rig(tasks=3, group_size=1, reward=Raising(error, times=1), config={"reward_retries": 0})
        batch = await rig.full(n=-1)
        assert len(batch) == 2

    body()


# where it runs, in real time


class Plain:
    """An ordinary function that says where it ran."""

    def score(self, trajectory: Trajectory) -> Score:
        in_main = threading.current_thread() is threading.main_thread()
        return Score(1.0, {"thread": float(not in_main), "pid": float(os.getpid())})


class OneTray:
    """A queue with one episode to score."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.orders = [[Job(0, (trajectory(),))]]
        self.reported = asyncio.Event()

    async def open_tray(self, kind: str, *, in_groups: bool) -> None:
        pass

    async def fetch_unscored(self, kind: str) -> list[Job | Forget]:
        if self.orders:
            return [*self.orders.pop()]
        await self.reported.wait()
        return []

    async def report(self, news: Sequence[News]) -> None:
        self.news.extend(news)
        self.reported.set()


def scored_by(reward: Any, **limits: Any) -> News:
    """What becomes of one episode with a reward, on the real clock."""

    async def body() -> News:
        queue = OneTray()
        worker = RewardWorker("r", "train/", queue, lambda: reward, RewardLimits(**limits), closes=False)
        async with asyncio.timeout(60):
            await worker.run()
        return queue.news[0]

    return asyncio.run(body())


def test_an_ordinary_function_runs_in_a_thread():
    news = scored_by(Plain())
    assert isinstance(news, Scored)
    assert news.trajectories[0].scores == {"thread": 1.0, "pid": os.getpid()}


def test_a_reward_in_a_process_runs_there():
    news = scored_by(Plain(), isolation="process")
    assert isinstance(news, Scored)
    assert news.trajectories[0].scores["pid"] != os.getpid()


class Stuck:
    """Hangs so that only a signal helps."""

    def score(self, trajectory: Trajectory) -> float:
        while True:
            pass


def test_a_reward_that_hangs_in_a_process_is_killed():
    news = scored_by(Stuck(), isolation="process", timeout_s=1.0, retries=0)
    assert isinstance(news, Unscorable)
    assert "took too long" in news.why


# groups


class Ranking:
    """Scores a group together, by the length of what was said."""

    def __init__(self, seconds: float = 0.0, failures: int = 0) -> None:
        self.seconds = seconds
        self.failures = failures
        self.groups: list[list[Trajectory]] = []

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        self.groups.append([*trajectories])
        await asyncio.sleep(self.seconds)
        if len(self.groups) <= self.failures:
            raise ConnectionError("not now")
        return [float(place) for place in range(len(trajectories))]


@played
async def test_a_group_is_scored_together_when_all_of_it_is_there():
    reward = Ranking()
    rig = Rig(tasks=3, group_size=4, reward=reward)
    batch = await rig.full(n=12)
    assert [len(group) for group in reward.groups] == [4, 4, 4]
    assert all(len({t.attempt.group for t in group}) == 1 for group in reward.groups)
    assert sorted(batch.batch["episode_scores"].tolist()) == [0.0] * 3 + [1.0] * 3 + [2.0] * 3 + [3.0] * 3


@played
async def test_spares_are_not_waited_for_by_a_group_reward():
    env = partial(Slow, seconds=1000.0, slow=frozenset({0}))
    rig = Rig(env=env, tasks=2, group_size=2, group_size_redundancy=1, reward=Ranking(5.0), step_timeout_s=2000.0)
    batch = await rig.full(n=4)
    assert len(batch) == 4


@played
async def test_a_member_that_is_cancelled_sends_the_others_of_its_group_back_to_wait():
    """The lease of one runs out while the group is scored; its retry is scored with the one that stayed."""
    reward = Ranking(40.0)
    rig = Rig(
        env=partial(Slow, seconds=30.0, slow=frozenset({0})),
        tasks=1,
        group_size=2,
        num_env_groups=1,
        reward=reward,
        config={"episode_timeout_s": 60.0, "retry_after_s": 0.0, "reward_retries": 3},
    )
    assert await rig.batch(n=-1) is None or reward.groups
    assert rig.machine.status().attempts_scoring == 0


@played
async def test_a_transient_failure_of_a_group_reward_is_tried_again():
    reward = Ranking(failures=1)
    rig = Rig(tasks=1, group_size=4, reward=reward)
    assert len(await rig.full(n=4)) == 4
    assert rig.log.made == 4


class Miscounting:
    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return [1.0]


@played
async def test_a_group_reward_with_too_few_scores_is_refused():
    rig = Rig(tasks=1, group_size=4, reward=Miscounting(), config={"reward_retries": 0})
    assert await rig.batch(n=-1) is None
    assert rig.ledger.groups.dropped["poisoned"] == 1


# endings


@played
async def test_shutdown_breaks_off_what_is_being_scored():
    reward = Telling(1e6)
    rig = Rig(tasks=4, reward=reward, reward_limits=RewardLimits(timeout_s=1e7), config={"episode_timeout_s": 1e8})
    waiting = asyncio.ensure_future(rig.batch(n=8))
    await asyncio.sleep(1000.0)
    assert {sighting.stage for sighting in rig.scheduler.status().episodes} == {"scoring"}
    await rig.scheduler.shutdown()
    assert await waiting is None
    assert reward.at_once == 0


@played
async def test_a_spare_that_is_being_scored_is_broken_off_when_its_group_is_full():
    class Uneven(Telling):
        async def score(self, trajectory: Trajectory) -> Score:
            self.seconds = 1.0 if trajectory.seat < 2 else 1e5
            return await super().score(trajectory)

    reward = Uneven()
    limits = RewardLimits(timeout_s=1e6)
    rig = Rig(tasks=1, group_size=2, group_size_redundancy=1, reward=reward, reward_limits=limits)
    assert len(await rig.full(n=2)) == 2
    assert asyncio.get_running_loop().time() < 100.0
    assert rig.ledger.attempts.dropped["spare"] == 1


@played
async def test_train_and_val_each_have_their_reward():
    train, val = Telling(), Telling()
    rig = Rig(tasks=2, reward=train)
    other = rig.join("val", reward=val, max_tasks=2)
    await rig.full(n=4)
    await rig.full(n=4, of=other)
    assert {t.mode for t in train.asked} == {"train"}
    assert {t.mode for t in val.asked} == {"val"}


@played
async def test_a_scheduler_that_leaves_takes_its_rewards_along_and_the_other_goes_on():
    rig = Rig(tasks=4, reward=Telling(50.0))
    other = rig.join("val", reward=Telling(1e5), max_tasks=2, reward_limits=RewardLimits(timeout_s=1e6))
    waiting = asyncio.ensure_future(rig.batch(n=4, of=other))
    await asyncio.sleep(30.0)
    await other.shutdown()
    assert await waiting is None
    assert len(await rig.full(n=8)) == 8


@played
async def test_each_tag_has_a_reward_of_its_own_or_none():
    rig = Rig(tasks=None)
    reward = Telling()
    tags = {"a": TagConfig(env=lambda: Echo(rig.log), reward=reward), "b": TagConfig(env=lambda: Echo(rig.log))}
    other = rig.join("val", tags=tags, max_tasks=4)
    batch = await rig.full(n=-1, of=other)
    assert {t.task.tag for t in reward.asked} == {"a"}
    assert {*batch.non_tensor_batch["tags"]} == {"a", "b"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"reward": 3}, "reward must be a name, names with weights, or have score or score_group"),
        ({"reward": "mathh"}, "math"),
    ],
)
def test_a_wrong_reward_is_refused_at_once(wrong: dict[str, Any], says: str):
    @played
    async def body() -> None:
        with pytest.raises(ConfigError, match=says):
            Rig(**wrong)

    body()
