"""Weighted sums, worked out by hand."""

import asyncio
import pickle
import threading
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.rewards.given import said

from windrow.errors import ConfigError, JudgeError, RewardError
from windrow.rewards.math import MathReward
from windrow.rewards.protocol import Closable, Placed, Reward, Score, Scored
from windrow.rewards.shaping import EnvReward, LengthReward
from windrow.rewards.sums import WeightedSum
from windrow.trajectory import Trajectory


class Says:
    """Always the same."""

    def __init__(self, scored: Any) -> None:
        self.scored = scored

    def score(self, trajectory: Trajectory) -> Scored:
        scored: Scored = self.scored
        return scored


class SaysLater(Says):
    """The same, when the others have had their turn."""

    closed = started = 0

    async def score(self, trajectory: Trajectory) -> Scored:  # type: ignore[override]  # it is asynchronous
        await asyncio.sleep(0)
        scored: Scored = self.scored
        return scored

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.closed += 1


class Breaks:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def score(self, trajectory: Trajectory) -> Scored:
        raise self.error


class BreaksLater(Breaks):
    async def score(self, trajectory: Trajectory) -> Scored:  # type: ignore[override]  # it is asynchronous
        raise self.error


def scored(reward: Reward, trajectory: Trajectory | None = None) -> Score:
    async def wait() -> Scored:
        score = reward.score(trajectory or said(""))
        return score if isinstance(score, Score | float) else await score

    score = asyncio.run(wait())
    assert isinstance(score, Score)
    return score


INNER = Score(0.5, {"a": 1.0, "b": 0.0}, "half right")


@pytest.mark.parametrize("kind", [Says, SaysLater])
def test_a_sum_is_worked_out_and_every_part_kept(kind: Any):
    total = WeightedSum({"one": kind(INNER), "two": Says(-2.0), "three": Says(4)}, {"one": 2.0, "three": 0.25})
    score = scored(total)
    assert score.value == 2.0 * 0.5 + 1.0 * -2.0 + 0.25 * 4
    assert score.parts == {"one": 0.5, "one/a": 1.0, "one/b": 0.0, "two": -2.0, "three": 4.0}
    assert [*score.parts] == ["one", "one/a", "one/b", "two", "three"]
    assert score.note == "one: half right"


def test_a_sum_of_sums_keeps_the_parts_of_the_parts():
    inner = WeightedSum({"x": Says(INNER), "y": Says(1.0)}, {"y": 3.0})
    score = scored(WeightedSum({"in": inner, "out": Says(1.0)}, {"in": 2.0}))
    assert score.value == 2.0 * (0.5 + 3.0) + 1.0
    assert score.parts == {"in": 3.5, "in/x": 0.5, "in/x/a": 1.0, "in/x/b": 0.0, "in/y": 1.0, "out": 1.0}


def test_shipped_rewards_add_up():
    total = WeightedSum({"math": MathReward(), "length": LengthReward(soft_tokens=10, hard_tokens=20)}, {"length": 0.5})
    score = scored(total, said("19", {"answer": "19"}, tokens=15))
    assert score.value == 1.0 + 0.5 * -0.5
    assert score.parts == {"math": 1.0, "length": -0.5}


@pytest.mark.parametrize("kind", [Breaks, BreaksLater])
@pytest.mark.parametrize("beside", [Says(1.0), SaysLater(1.0)])
def test_a_part_that_fails_fails_the_whole(kind: Any, beside: Reward):
    total = WeightedSum({"good": beside, "bad": kind(KeyError("door"))})
    with pytest.raises(RewardError, match="part 'bad': KeyError: 'door'"):
        scored(total)


@pytest.mark.parametrize("kind", [Breaks, BreaksLater])
def test_an_error_that_has_its_place_keeps_it(kind: Any):
    with pytest.raises(JudgeError, match="no verdict"):
        scored(WeightedSum({"good": Says(1.0), "bad": kind(JudgeError("no verdict"))}))


@pytest.mark.parametrize("nonsense", [None, "1", True, float("nan"), float("inf"), [1.0]])
@pytest.mark.parametrize("kind", [Says, SaysLater])
def test_what_is_no_score_is_refused(kind: Any, nonsense: object):
    with pytest.raises(RewardError, match="a reward said"):
        scored(WeightedSum({"odd": kind(nonsense)}))


def test_a_sum_of_functions_is_a_function_that_travels():
    total = WeightedSum({"math": MathReward(), "env": EnvReward()})
    assert not asyncio.iscoroutinefunction(total.score)
    assert isinstance(total, Placed)
    assert (total.isolation, total.preload) == ("process", ("math_verify",))
    copy: WeightedSum = pickle.loads(pickle.dumps(total))  # noqa: S301 -- our own
    assert scored(copy, said("19", {"answer": "19"}, rewards=(0.25,))).value == 1.25


def test_a_sum_of_light_functions_needs_no_process():
    assert WeightedSum({"env": EnvReward()}).isolation == "thread"


def test_with_one_that_waits_it_waits_and_the_others_run_in_threads():
    class Where:
        def score(self, trajectory: Trajectory) -> Scored:
            return float(threading.current_thread() is threading.main_thread())

    total = WeightedSum({"where": Where(), "later": SaysLater(1.0)})
    assert asyncio.iscoroutinefunction(total.score)
    assert total.isolation == "inline"
    assert scored(total).parts == {"where": 0.0, "later": 1.0}


def test_those_that_wait_are_asked_at_once():
    first, second = asyncio.Event(), asyncio.Event()

    class Meets:
        def __init__(self, mine: asyncio.Event, other: asyncio.Event) -> None:
            self.mine, self.other = mine, other

        async def score(self, trajectory: Trajectory) -> Scored:
            self.mine.set()
            await self.other.wait()
            return 1.0

    async def both() -> Scored:
        async with asyncio.timeout(10):
            waiting = WeightedSum({"a": Meets(first, second), "b": Meets(second, first)}).score(said(""))
            assert isinstance(waiting, Awaitable)
            return await waiting

    score = asyncio.run(both())
    assert isinstance(score, Score)
    assert score.value == 2.0


def test_members_that_can_be_started_and_closed_are():
    async def live() -> tuple[int, int]:
        member = SaysLater(1.0)
        total = WeightedSum({"a": member, "b": Says(1.0)})
        assert isinstance(total, Closable)
        await total.start()
        await total.close()
        return member.started, member.closed

    assert asyncio.run(live()) == (1, 1)


@pytest.mark.parametrize(
    ("members", "weights", "why"),
    [
        ({}, {}, "a weighted sum of nothing"),
        ({"math": Says(1.0)}, {"mth": 1.0}, r"a weight for 'mth', which is no part; did you mean math\?"),
        ({"math": Says(1.0)}, {"math": float("nan")}, "the weight of 'math' is nan"),
        ({"math": Says(1.0)}, {"math": "1"}, "the weight of 'math' is '1'"),
        ({"math": 3}, {}, "has no score"),
    ],
)
def test_a_sum_that_cannot_work_is_refused_when_it_is_made(members: Any, weights: Any, why: str):
    with pytest.raises(ConfigError, match=why):
        WeightedSum(members, weights)
