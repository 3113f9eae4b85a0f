"""The comparison of asynchronous and synchronous training measures what it says, on virtual time."""

from functools import cache
from typing import Any

import pytest

from windrow.bench.asynchronous import BARRIER, BOUNDS, Pace, Size, limit_s, play
from windrow.bench.cycle import Course, reached_s, recipe, results
from windrow.bench.workloads import Tail, agentic, rlvr
from windrow.errors import InternalError
from windrow.rollout.virtual_time import run
from windrow.types import but

SMALL = Size(rounds=1, warm=2, steps=4, manners=(BARRIER, *BOUNDS))
SHAPES = {"rlvr": rlvr, "agentic": agentic}


def played(name: str, number: int) -> Pace:
    async def main() -> Pace:
        return await play(SHAPES[name](), SMALL.manners[number], SMALL, seed=0)

    return run(main())


paced = cache(played)


@pytest.mark.parametrize("name", SHAPES)
def test_the_barrier_takes_its_longest_episode_and_training_and_a_bound_takes_less(name: str):
    barrier, one, spare, two = (paced(name, number) for number in range(4))
    assert barrier.step_s >= barrier.longest_s + SHAPES[name]().train_s
    assert barrier.lag_max == 0
    assert barrier.step_s > 1.5 * one.step_s
    assert one.step_s > two.step_s
    assert one.step_s > spare.step_s
    assert one.episode_s > spare.episode_s  # which is what it costs
    assert 0 < one.lag_mean < two.lag_mean
    assert barrier.busy < one.busy < two.busy


@pytest.mark.parametrize("name", SHAPES)
def test_both_shapes_have_the_long_tail_that_they_promise(name: str):
    shape, barrier = SHAPES[name](), paced(name, 0)
    assert barrier.longest_s > 3 * barrier.episode_s
    assert 0.5 < shape.train_s / barrier.episode_s < 1.5
    assert shape.train_s < 0.3 * barrier.step_s


def test_a_run_that_is_repeated_meets_the_same_times():
    assert played("rlvr", 1) == paced("rlvr", 1)


def test_the_limit_is_work_training_or_what_the_bound_lets_be_under_way():
    shape = but(rlvr(), train_s=1.0)
    barrier = Pace(step_s=9, busy=0.1, lag_mean=0, lag_max=0, episode_s=2.0, group_s=7.0, longest_s=8.0)
    assert limit_s(shape, barrier, 1.0) == 4.0
    assert limit_s(shape, barrier, 1.0, 0.5) == pytest.approx(8 / 1.5)
    assert limit_s(shape, barrier, 7.0) == 2.0
    assert limit_s(but(shape, train_s=3.0), barrier, 7.0) == 3.0


def test_times_follow_from_their_key_and_never_exceed_the_cap():
    tail = Tail(median=1.0, sigma=2.0, cap=3.0)
    drawn = [tail.draw("a", number) for number in range(200)]
    assert drawn == [tail.draw("a", number) for number in range(200)]
    assert max(drawn) == 3.0
    assert 60 < sum(each < 1.0 for each in drawn) < 140


def course(seconds: tuple[float, ...], success: tuple[float, ...]) -> Course:
    return Course(seconds=seconds, success=success, lag=0.5)


def test_success_is_reached_on_the_way_between_two_looks():
    assert reached_s(course((0.0, 10.0, 20.0), (0.2, 0.4, 0.8)), 0.6) == pytest.approx(15.0)
    assert reached_s(course((0.0, 10.0), (0.2, 0.4)), 0.1) == 0.0
    with pytest.raises(InternalError, match=r"never was 0\.600"):
        reached_s(course((0.0, 10.0), (0.2, 0.4)), 0.6)


def test_both_ways_are_compared_at_the_success_that_both_came_to():
    barrier = [course((0.0, 10.0, 20.0), (0.2, 0.4, 0.7)), course((0.0, 10.0, 20.0), (0.2, 0.6, 0.9))]
    bound = [course((0.0, 5.0, 10.0), (0.2, 0.3, 0.5))]
    found = {result.what: result for result in results(barrier, bound)}
    reached = found["time until held-out success was 0.50"]
    assert (reached.ours, reached.alternative) == pytest.approx((10.0, 10.0))
    ends = next(each for what, each in found.items() if what.startswith("held-out success in the end, ±0.00 and ±0.14"))
    assert ends.ratio == pytest.approx(0.5 / 0.8)


def test_both_ways_differ_in_the_bound_alone():
    one, other = recipe(5, 0.0, 3), recipe(5, 1.0, 3)
    changed: dict[str, Any] = {"name": other.name, "rollout": but(one.rollout, staleness=1.0)}
    assert but(one, **changed) == other
