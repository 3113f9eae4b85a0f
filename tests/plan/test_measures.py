"""What a former run says about the work and its costs."""

from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.given import COSTS, WORK

from windrow.plan.costs import CORE, GPU, Learning, Model, estimate, memory_needed
from windrow.plan.measures import Setting, long_tail, measured, typical
from windrow.plan.question import SCALING
from windrow.sim.distributions import Constant
from windrow.types import but

ALONE = Setting(engines=1, engine_devices=1, train_devices=1, is_synchronous=True)
RUN = {
    "batch/trajectories_total": 32.0,
    "episode/turns/mean": 5.0,
    "episode/turns/max": 12.0,
    "episode/policy_tokens/mean": 100.0,
    "episode/generate_s/mean": 1.0,
    "episode/env_s/mean": 0.25,
    "run/learn_s": 10.0,
    "run/step_s": 30.0,
    "engine/load_s/mean": 0.2,
    "shrink_duration_ms": 100.0,
    "expand_duration_ms": 300.0,
}
TINY = Model(parameters=1e6, trained=1e6, bytes_each=4, cache_bytes_per_token=100.0)


def test_the_median_of_warm_steps_counts():
    steps = [{"a": 100.0}, {"a": 1.0, "b": nan}, {"a": 3.0}, {"a": 2.0, "b": 5.0}]
    assert typical(steps) == {"a": 2.0, "b": 5.0}
    assert typical([{"a": 4.0}]) == {"a": 4.0}
    assert typical([]) == {}


def test_whatever_was_measured_replaces_an_estimate():
    found = measured(RUN, ALONE, WORK, COSTS)
    assert found.work.tokens_per_turn == Constant(value=20.0)
    assert (found.work.max_turns, found.work.env_s) == (12, 0.25)
    assert (found.costs.learn_s, found.costs.update_s) == (10.0, 0.2)
    assert found.costs.hand_over_s == pytest.approx(0.2)
    assert all(figure.origin == "measured" for figure in found.figures)


def test_an_engine_is_as_fast_as_it_was_at_its_crowd():
    found = measured(RUN, ALONE, WORK, COSTS)
    crowd = next(figure.value for figure in found.figures if figure.name == "requests of an engine at once")
    assert crowd == pytest.approx(32 * 5.0 * 1.0 / 20.0, rel=0.05)
    assert found.costs.pace.token_s(crowd) == pytest.approx(1.0 / 20.0)
    assert found.work.prompt_tokens == 0.0


def test_training_on_several_devices_is_turned_into_what_one_needs():
    found = measured(RUN, but(ALONE, train_devices=4), WORK, COSTS)
    assert found.costs.learn_s == pytest.approx(10.0 * 4**SCALING)


def test_a_filter_is_measured_where_there_is_one():
    work = but(WORK, policy=but(WORK.policy, filter="varied"))
    numbers = {**RUN, "batch/groups_total": 8.0, "group/dropped_total/filtered": 24.0}
    assert measured(numbers, ALONE, work, COSTS).work.accepted_share == 0.25
    assert measured(numbers, ALONE, WORK, COSTS).work.accepted_share == 1.0


def test_what_was_not_written_down_stays():
    assert measured({}, ALONE, WORK, COSTS).work == WORK
    assert measured({}, ALONE, WORK, COSTS).costs == COSTS


@given(st.floats(1.0, 50.0), st.floats(1.02, 6.0), st.integers(8, 512))
def test_a_long_tail_has_the_mean_that_it_was_made_for(mean: float, ratio: float, number: int):
    shape = long_tail(mean, mean * ratio, number)
    drawn = shape.shape(np.random.default_rng(1).standard_normal(20_000))
    assert float(drawn.mean()) == pytest.approx(mean, rel=0.15)
    assert float(drawn.max()) <= mean * ratio * (1 + 1e-9)


def test_equal_lengths_have_no_tail():
    assert long_tail(3.0, 3.0, 100) == Constant(value=3.0)


def test_larger_models_cost_more_of_everything():
    small, _ = estimate(TINY, CORE, WORK, Learning(), 16)
    large, figures = estimate(but(TINY, parameters=1e8), CORE, WORK, Learning(), 16)
    assert large.learn_s > small.learn_s
    assert large.pace.base_tokens_per_s < small.pace.base_tokens_per_s <= small.pace.peak_tokens_per_s
    assert large.hand_over_s > small.hand_over_s
    assert {figure.origin for figure in figures} == {"estimated"}


@pytest.mark.parametrize("hardware", [CORE, GPU])
@pytest.mark.parametrize("size", [1e5, 1e8, 1e10, 1e12])
def test_many_requests_are_never_slower_together_than_one_alone(size: float, hardware):
    costs, _ = estimate(but(TINY, parameters=size), hardware, WORK, Learning(), 16)
    assert costs.pace.peak_tokens_per_s >= costs.pace.base_tokens_per_s


def test_a_critic_and_a_reference_cost_time_and_memory():
    plain, others = Learning(), Learning(has_critic=True, has_reference=True)
    assert estimate(TINY, CORE, WORK, others, 16)[0].learn_s > estimate(TINY, CORE, WORK, plain, 16)[0].learn_s
    assert memory_needed(TINY, plain, 10, None).trainer == 16e6
    needed = memory_needed(TINY, others, 10, None)
    assert (needed.trainer, needed.reference, needed.critic) == (16e6, 4e6, 16e6)
    assert memory_needed(TINY, plain, 10, None).engine == 4e6 + 1000
    assert memory_needed(but(TINY, trained=0.0), plain, 10, None).trainer == 4e6
