"""The comparison with TRL, in small: both sides do what they say, and standard output stays ours."""

import asyncio

import pytest

from windrow.bench.trl import Learnt, ours_learns, results, trl_learns

UPDATES = 2


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_our_side_makes_as_many_updates_as_it_is_told(bound: float):
    learnt = asyncio.run(ours_learns(seed=0, updates=UPDATES, bound=bound))
    assert (len(learnt.seconds), len(learnt.rewards)) == (UPDATES, UPDATES)
    assert all(0 < reward < 1 for reward in learnt.rewards)


def test_their_side_makes_as_many_and_says_nothing(capsys: pytest.CaptureFixture[str]):
    learnt = trl_learns(seed=0, updates=UPDATES)
    assert (len(learnt.seconds), len(learnt.rewards)) == (UPDATES, UPDATES)
    assert all(0 < reward < 1 for reward in learnt.rewards)
    assert capsys.readouterr().out == ""


def test_both_begin_with_the_same_weights_and_are_worth_about_the_same():
    ours = asyncio.run(ours_learns(seed=0, updates=1))
    theirs = trl_learns(seed=0, updates=1)
    assert ours.rewards[0] == pytest.approx(theirs.rewards[0], abs=0.15)


def test_figures_are_medians_over_rounds_of_medians_over_updates():
    ours = [Learnt(seconds=(0.1, 0.2, 9.0), rewards=(0.0, 0.5)), Learnt(seconds=(0.2,), rewards=(0.5,))]
    theirs = [Learnt(seconds=(0.4,), rewards=(0.25,)), Learnt(seconds=(0.4,), rewards=(0.25,))]
    speed, time, reward = results("bound 1", ours, theirs)
    assert (speed.ours, speed.alternative, speed.ratio) == pytest.approx((5.0, 2.5, 2.0))
    assert (time.ours, time.alternative) == pytest.approx((200, 400))
    assert (reward.ours, reward.alternative) == pytest.approx((0.375, 0.25))
