"""Figures of fixed simulations that may not get worse: the workload of `make demo`, one seed, whole length.

They are ratios on a virtual clock, so they are the same on every machine.
"""

from functools import cache
from pathlib import Path

import pytest

from windrow.config import load
from windrow.core.machine import Machine
from windrow.sim import compare
from windrow.sim.config import SimConfig
from windrow.sim.limits import Limits, limits
from windrow.sim.report import Report
from windrow.sim.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "sim" / "long_tail.yaml"
SEED = 1


@cache
def config() -> SimConfig:
    return load(EXAMPLE, [], SimConfig).value


@cache
def ran(policy: str) -> Report:
    return compare.play(config(), compare.find([policy])[0], SEED).report


@cache
def limit() -> Limits:
    return limits(config(), SEED)


def step_s(policy: str) -> float:
    return 1 / ran(policy).steps_per_s


def test_bound_1_keeps_nearly_every_slot_busy():
    assert ran("keep_1").slots_busy >= 0.97


@pytest.mark.parametrize(("rival", "times"), [("fixed_queues", 2.0), ("barrier", 4.0), ("group_unit", 4.0)])
def test_bound_1_is_so_many_times_faster_than(rival, times):
    assert step_s(rival) / step_s("keep_1") >= times


def test_bound_1_keeps_the_mean_lag_below_the_bound():
    assert ran("keep_1").staleness_mean <= 1.0


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_a_hard_bound_is_near_the_clairvoyant_scheduler(bound):
    report = ran(f"wait_{bound}")
    assert limit().hard[bound].clairvoyant_s / step_s(f"wait_{bound}") >= 0.85
    assert report.groups_dropped == 0
    assert report.staleness_max <= bound


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_nobody_passes_the_limit_of_a_hard_bound(bound):
    assert step_s(f"wait_{bound}") >= limit().hard[bound].bound_s


def test_synchronous_is_near_the_oracle():
    assert step_s("sync") / limit().sync_oracle_s <= 1.05


def test_learnt_order_beats_arrival_order():
    assert step_s("sync") < step_s("barrier")


def test_tail_batching_is_faster_than_plain_synchronous():
    assert step_s("sync") / step_s("sync_tail") >= 1.3
    assert ran("sync_tail").staleness_max == 0


@pytest.mark.parametrize("policy", ["sync", "sync_tail", "keep_1", "wait_1", "wait_2", "wait_4"])
def test_whoever_drops_nothing_favours_no_length(policy):
    assert abs(ran(policy).length_bias) < 1e-9
    assert ran(policy).groups_settled == config().steps * config().policy.batch_groups


def test_dropping_what_is_late_favours_short_episodes():
    report = ran("drop_1")
    assert report.staleness_max <= 1
    assert report.length_bias < -0.2
    assert report.waste["stale"] > 0.2


def test_first_come_first_kept_favours_short_episodes():
    settings = ["steps=30", "machine.train.spares=2", "machine.train.staleness=0", "machine.train.on_stale=wait"]
    spared = load(EXAMPLE, settings, SimConfig).value
    report = World(spared, Machine(spared.machine), seed=SEED).run()
    assert report.length_bias < -0.1
    assert report.waste["spare"] > 0


def test_a_comparison_shows_medians_and_maxima():
    first = compare.Run("keep_1", SEED, ran("keep_1"), 1.0)
    second = compare.Run("keep_1", SEED + 1, ran("wait_1"), 1.0)
    comparison = compare._conclude(compare.POLICIES, [first, second, limit()])
    summary = comparison.policies["keep_1"]
    assert summary.staleness_max == ran("keep_1").staleness_max
    assert summary.steps_per_s_range == (ran("wait_1").steps_per_s, ran("keep_1").steps_per_s)
    assert comparison.pieces == 3
