"""Rewards that do whatever they can to the run: what it costs is their own attempt."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.rollout.kit import Rig, later, now, played
from tests.rollout.test_rewards import Raising, Ranking, Telling
from tests.rollout.toys import Echo

from windrow.envs.protocol import Step, deadline
from windrow.errors import (
    ConfigError,
    DataError,
    EngineError,
    EngineLost,
    EnvError,
    JudgeError,
    Refused,
    RewardError,
    TrainError,
    WindrowError,
)
from windrow.rewards.protocol import Score
from windrow.rewards.shipped import SHIPPED
from windrow.rollout.config import EnvManagerConfig
from windrow.rollout.env_config import RewardLimits
from windrow.rollout.orders import News, Scored, Unscorable
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.trays import Forget, Job, Trays
from windrow.trajectory import Trajectory
from windrow.types import AttemptId, but

ROOT = Path(__file__).parents[2]

isolations = pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
either = pytest.mark.parametrize("reward", [Telling, Ranking])


class Panic(BaseException):
    """What libraries in other languages raise: no Exception."""


class Failing:
    """Raises what it was given, in an ordinary function."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def score(self, trajectory: Trajectory) -> float:
        raise self.error


class OneEpisode:
    """A queue with one episode to score."""

    def __init__(self, episode: Trajectory) -> None:
        self.news: list[News] = []
        self.trays = Trays()
        self.trays.put("train/", episode)

    async def open_tray(self, kind: str, *, in_groups: bool) -> None:
        self.trays.open(kind, 1)

    async def fetch_unscored(self, kind: str) -> list[Job | Forget]:
        return await self.trays.fetch(kind)

    async def report(self, news: Sequence[News]) -> None:
        self.news.extend(news)
        self.trays.close_all()


def scored_by(reward: Any, episode: Trajectory | None = None, **limits: Any) -> News:
    """What becomes of one episode with a reward, on the real clock."""

    async def body() -> News:
        queue = OneEpisode(episode or trajectory())
        worker = RewardWorker("r", "train/", queue, lambda: reward, RewardLimits(**limits), closes=False)
        async with asyncio.timeout(60):
            await worker.run()
        return queue.news[0]

    return asyncio.run(body())


# what it raises


@pytest.mark.parametrize(
    "error", [Panic("at main.rs"), GeneratorExit(), BaseExceptionGroup("two", [Panic()])], ids=repr
)
def test_a_panic_in_a_reward_costs_its_attempt_only(error: BaseException):
    @played
    async def body() -> None:
        rig = Rig(tasks=3, group_size=1, reward=Raising(error, times=1), config={"reward_retries": 0})
        assert len(await rig.full(n=-1)) == 2
        assert now() < 100.0

    body()


@pytest.mark.parametrize("isolation", ["inline", "thread"])  # of processes it is their guest's promise
def test_a_panic_is_a_failure_wherever_it_happens(isolation: Any):
    news = scored_by(Failing(Panic("at main.rs")), isolation=isolation, retries=0)
    assert isinstance(news, Unscorable)
    assert "Panic" in news.why


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@played
async def test_an_error_without_words_costs_its_attempt_only():
    reward = Raising(SpeechlessError(), times=1)
    rig = Rig(tasks=3, group_size=1, reward=reward, config={"reward_retries": 0})
    assert len(await rig.full(n=-1)) == 2


FILED_ELSEWHERE = [EngineError, EngineLost, ConfigError, EnvError, DataError, Refused, TrainError]


@pytest.mark.parametrize("kind", FILED_ELSEWHERE)
def test_whatever_a_reward_raises_costs_its_attempt_only(kind: type[WindrowError]):
    """A reward may use all of Windrow; what fails there is still the reward's failure."""

    @played
    async def body() -> None:
        reward = Raising(kind("the judge's"), times=1)
        rig = Rig(tasks=3, group_size=1, reward=reward, config={"reward_retries": 0})
        assert len(await rig.full(n=-1)) == 2
        assert rig.ledger.attempts.dropped == {"failed": 1}

    body()


@pytest.mark.parametrize(
    ("error", "isolation"),
    [(ConnectionError("away"), "thread"), (JudgeError("no verdict"), "thread"), (ConnectionError("away"), "process")],
)
def test_what_passes_is_tried_again_wherever_it_runs(error: Exception, isolation: Any, tmp_path: Path):
    class Flaky:
        def score(self, trajectory: Trajectory) -> float:
            if (tmp_path / "was here").exists():
                return 1.0
            (tmp_path / "was here").touch()
            raise error

    assert isinstance(scored_by(Flaky(), isolation=isolation, retry_after_s=0.0), Scored)


def test_a_trajectory_that_cannot_be_sent_to_its_reward_costs_its_attempt_only():
    class Easy:
        def score(self, trajectory: Trajectory) -> float:
            return 1.0

    locked = but(trajectory(), info={"lock": threading.Lock()})
    news = scored_by(Easy(), locked, isolation="process", retries=0)
    assert isinstance(news, Unscorable)
    assert "cannot be sent" in news.why


# what it answers


class Shy:
    def __repr__(self) -> str:
        raise ValueError("do not look at me")


class Mirage(Sequence[float]):
    """As long as it should be, and nothing in it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> Any:
        raise KeyError(place)


class Saying:
    """Answers what it was told to, the first time."""

    def __init__(self, said: Any) -> None:
        self.said = [said]

    async def score(self, trajectory: Trajectory) -> Any:
        return self.said.pop() if self.said else 1.0


class SayingOfAll(Saying):
    score = None  # type: ignore[assignment]  # it has the other one

    async def score_group(self, trajectories: Sequence[Trajectory]) -> Any:
        return self.said.pop() if self.said else [1.0] * len(trajectories)


del SayingOfAll.score  # one or the other


@pytest.mark.parametrize(
    "said",
    [Score(1.0, None), Score(1.0, 5), Score(1.0, "ab"), Shy(), Score(Shy()), Score(1.0, {"a": Shy()})],  # type: ignore[arg-type, dict-item]  # wrong on purpose
    ids=["no parts", "a number", "text", "shy", "shy value", "shy part"],
)
def test_an_answer_that_cannot_even_be_looked_at_costs_its_attempt_only(said: Any):
    @played
    async def body() -> None:
        rig = Rig(tasks=3, group_size=1, reward=Saying(said), config={"reward_retries": 0})
        assert len(await rig.full(n=-1)) == 2

    body()


@pytest.mark.parametrize(
    "said", [Mirage(), [1.0, Shy()], Shy(), {0: 1.0, 1: 2.0}, "ab"], ids=lambda s: type(s).__name__
)
def test_an_answer_for_a_group_that_cannot_be_read_costs_that_group_only(said: Any):
    @played
    async def body() -> None:
        rig = Rig(tasks=3, reward=SayingOfAll(said), config={"reward_retries": 0})
        assert len(await rig.full(n=-1)) == 4
        assert rig.ledger.groups.dropped == {"poisoned": 1}

    body()


@played
async def test_a_part_cannot_hide_a_value_that_is_no_number():
    reward = Saying(Score(float("nan"), {"its value": 1.0}))
    rig = Rig(tasks=3, group_size=1, reward=reward, config={"reward_retries": 0})
    assert len(await rig.full(n=-1)) == 2


@pytest.mark.parametrize("name", ["", None, 1], ids=repr)
def test_a_part_needs_a_name(name: Any):
    @played
    async def body() -> None:
        rig = Rig(tasks=3, group_size=1, reward=Saying(Score(1.0, {name: 1.0})), config={"reward_retries": 0})
        assert len(await rig.full(n=-1)) == 2

    body()


@pytest.mark.parametrize("info", [None, 5, ["a"]], ids=repr)
def test_an_info_that_is_no_dict_is_the_environments_fault(info: Any):
    class Careless(Echo):
        async def step(self, action: str) -> Any:
            return Step(terminated=True, info=info if self.task.ordinal == 0 else {"a": 1})

    class Noting:
        async def score(self, trajectory: Trajectory) -> Score:
            return Score(1.0, {}, "well done")

    @played
    async def body() -> None:
        rig = Rig(env=Careless, tasks=3, group_size=1, reward=Noting(), config={"env_retries": 0})
        assert len(await rig.full(n=-1)) == 2
        assert rig.ledger.attempts.dropped == {"failed": 1}

    body()


class Late:
    """Does not let itself be cancelled."""

    async def score(self, trajectory: Trajectory) -> float:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(3.0)
        return 1.0


@played
async def test_an_answer_after_the_deadline_is_no_score():
    limits = RewardLimits(timeout_s=10.0, retries=0)
    rig = Rig(tasks=1, group_size=1, reward=Late(), reward_limits=limits, config={"reward_retries": 0})
    assert await rig.batch(n=-1) is None
    assert rig.ledger.attempts.dropped == {"failed": 1}


@pytest.mark.parametrize("reward", [Telling, {}, {"math": float("nan")}, {"math": "much"}], ids=repr)
def test_a_reward_that_cannot_work_is_refused_when_it_is_set(reward: Any):
    with pytest.raises(ConfigError):
        EnvManagerConfig(reward=reward).kinds("train")


# what it sees


@isolations
def test_a_reward_sees_its_deadline_wherever_it_runs(isolation: Any):
    class Looking:
        def score(self, trajectory: Trajectory) -> Score:
            due = deadline()
            return Score(1.0, {"left": -1.0 if due is None else due - time.monotonic()})

    news = scored_by(Looking(), isolation=isolation, timeout_s=1000.0)
    assert isinstance(news, Scored)
    assert news.trajectories[0].scores["left"] == pytest.approx(1000.0, abs=60.0)


@played
async def test_tasks_that_a_reward_begins_see_its_deadline():
    seen: list[float | None] = []

    class Nesting:
        async def look(self) -> None:
            await asyncio.sleep(1.0)
            due = deadline()
            seen.append(None if due is None else due - now())

        async def score(self, trajectory: Trajectory) -> float:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.look())
                group.create_task(self.look())
            return 1.0

    rig = Rig(tasks=1, group_size=1, reward=Nesting(), reward_limits=RewardLimits(timeout_s=30.0))
    await rig.full(n=1)
    assert seen == pytest.approx([29.0, 29.0])
    assert deadline() is None


# groups


class Once(Ranking):
    """Fails for good the first time."""

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        self.groups.append([*trajectories])
        if len(self.groups) == 1:
            raise KeyError("rank")
        return [1.0 for _ in trajectories]


@played
async def test_a_failure_of_a_group_reward_is_one_failure_of_its_group():
    rig = Rig(tasks=1, group_size=4, reward=Once(), config={"reward_retries": 1})
    assert len(await rig.full(n=4)) == 4


@pytest.mark.parametrize("reward", [Telling, Ranking])
def test_news_that_come_twice_are_scored_once(reward: Any):
    @played
    async def body() -> None:
        asked = reward(3.0)
        rig = Rig(tasks=4, reward=asked)
        await rig.scheduler.initialize()
        plain = rig.queue.report

        async def twice(news: Sequence[News]) -> None:
            await plain(news)
            await plain(news)

        rig.queue.report = twice  # type: ignore[method-assign]  # as a connection that sends again does
        assert len(await rig.full(n=8)) == 8
        scored = asked.asked if isinstance(asked, Telling) else [t for group in asked.groups for t in group]
        assert len(scored) == 8

    body()


@played
async def test_members_of_a_group_that_failed_together_come_back_together():
    """Rests that differ by more than a lease would keep the first from ever meeting the last."""
    config = {"reward_retries": 10, "retry_after_s": 50.0, "episode_timeout_s": 60.0}
    rig = Rig(tasks=1, group_size=4, reward=Once(), config=config)
    assert len(await rig.full(n=4)) == 4
    assert rig.log.made <= 8


class Uneven(Echo):
    """The first is quick; the second breaks after 40 s, and whoever takes its place needs 40 s as well."""

    async def step(self, action: str) -> Any:
        if self.before:
            await asyncio.sleep(40.0)
        if self.before == 1:
            raise KeyError("door")
        return await super().step(action)


@played
async def test_an_episode_that_only_waits_for_the_others_of_its_group_is_not_too_late():
    config = {"episode_timeout_s": 60.0, "retry_after_s": 0.0}
    rig = Rig(env=Uneven, tasks=1, reward=Ranking(), config=config)
    assert len(await rig.full(n=2)) == 2
    assert rig.log.made == 3


# beside others


@played
async def test_a_scheduler_that_leaves_before_its_workers_began_leaves_none_behind():
    rig = Rig(tasks=2, reward=Telling())
    val = rig.join("val", reward=Telling(), max_tasks=2)
    await rig.scheduler.initialize()
    await later(1)
    await val.initialize()
    await val.shutdown()
    await later(1)
    assert [*rig.machine.status().workers] == ["train-worker-0"]
    again = rig.join("val", reward=Telling(), max_tasks=2)
    assert len(await rig.full(n=-1, of=again)) == 4
    assert len(await rig.full(n=4)) == 4


@played
async def test_a_long_wait_for_scores_says_that_it_waits_for_scores():
    rig = Rig(tasks=4, reward=Telling(900.0), reward_limits=RewardLimits(timeout_s=1e4))
    waiting = asyncio.ensure_future(rig.full(n=8))
    await later(400)
    assert "scor" in rig.scheduler.status().stalled
    assert len(await waiting) == 8


class Departing:
    """A reward by name that ends badly."""

    def __init__(self, how: Any) -> None:
        self.how = how

    async def score(self, trajectory: Trajectory) -> float:
        return 1.0

    async def close(self) -> None:
        if isinstance(self.how, BaseException):
            raise self.how
        await asyncio.sleep(self.how)


@pytest.mark.parametrize("how", [1e9, KeyError("socket"), asyncio.CancelledError(), SystemExit(3)], ids=repr)
def test_however_a_reward_closes_shutdown_ends(how: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SHIPPED, "length", lambda: partial(Departing, how))

    @played
    async def body() -> None:
        rig = Rig(tasks=1, reward="length")
        await rig.full(n=2)
        began = now()
        await rig.scheduler.shutdown()
        assert now() - began < 10.0

    body()


@played
async def test_a_scheduler_that_leaves_has_closed_its_reward_when_it_returns():
    closed: list[str] = []

    class Noting(Departing):
        async def close(self) -> None:
            await asyncio.sleep(1.0)
            closed.append("val")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHIPPED, "length", lambda: partial(Noting, 0.0))
        rig = Rig(tasks=1)
        val = rig.join("val", reward="length", max_tasks=1)
        await rig.full(n=2, of=val)
        await val.shutdown()
        assert closed == ["val"]
        assert len(await rig.full(n=2)) == 2


def not_there() -> Any:
    raise FileNotFoundError("weights")


@played
async def test_a_reward_that_cannot_be_made_is_named_to_whoever_waits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHIPPED, "length", lambda: not_there)
        rig = Rig(tasks=1, reward="length")
        with pytest.raises(RewardError, match="reward of train/ could not be made: FileNotFoundError: weights"):
            await rig.full(n=2)


# what it costs


def test_what_a_fetch_costs_does_not_grow_with_the_groups_that_wait():
    def seconds(groups: int) -> float:
        async def body() -> float:
            trays = Trays()
            trays.open("k", 2)
            one = trajectory()
            for group in range(groups):
                trays.put("k", but(one, attempt=AttemptId(group, 0)))
            began = time.process_time()
            for group in range(groups):
                trays.put("k", but(one, attempt=AttemptId(group, 1)))
                assert len(await trays.fetch("k")) == 1
            return time.process_time() - began

        return min(asyncio.run(body()) for _ in range(3))

    assert seconds(2000) < 8 * seconds(500)


@either
def test_nothing_of_a_batch_that_was_trained_on_is_kept(reward: Any):
    @played
    async def body() -> None:
        tokens: list[weakref.ref[Any]] = []

        def note(group: list[Trajectory]) -> bool:
            tokens.extend(weakref.ref(t.chains[0].token_ids) for t in group)
            return True

        asked = reward(5.0)
        rig = Rig(tasks=4, reward=asked, filter=note)
        batch = await rig.full(n=8)
        await rig.scheduler.mark_trained(batch.meta_info["batch_id"])
        del batch
        (asked.asked if isinstance(asked, Telling) else asked.groups).clear()
        gc.collect()
        assert len(tokens) == 8
        assert [ref for ref in tokens if ref() is not None] == []

    body()


PROGRAM = """
import asyncio, threading
from windrow.rewards.sums import WeightedSum
from windrow.rollout.env_config import RewardLimits
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.trays import Trays
from tests.rollout.given_trajectories import trajectory

class Never:
    def score(self, trajectory):
        threading.Event().wait()

class Quick:
    async def score(self, trajectory):
        return 1.0

class Queue:
    def __init__(self):
        self.trays = Trays()
        self.trays.put("train/", trajectory())

    async def open_tray(self, kind, *, in_groups):
        self.trays.open(kind, 1)

    async def fetch_unscored(self, kind):
        return await self.trays.fetch(kind)

    async def report(self, news):
        print(news[0].why)
        self.trays.close_all()

limits = RewardLimits(timeout_s=0.5, retries=0)

async def main():
    await RewardWorker("r", "train/", Queue(), lambda: {reward}, limits, closes=False).run()

asyncio.run(main())
"""


@pytest.mark.parametrize("reward", ["Never()", "WeightedSum({'a': Never(), 'b': Quick()})"])
def test_a_reward_that_never_returns_does_not_keep_the_program_from_ending(reward: str):
    program = [sys.executable, "-c", PROGRAM.replace("{reward}", reward)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stdout) == (0, "reward of g0.a0: it took too long\n"), ended.stderr
