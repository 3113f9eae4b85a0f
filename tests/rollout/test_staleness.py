"""Collecting ahead of training: how old a batch may be, through the whole path."""

from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, later, played
from tests.rollout.toys import Echo, Watched

from windrow.engines.protocol import Acknowledgement, Weights


async def trained(rig: Rig, steps: int) -> list[dict[str, float]]:
    """Train for some steps of two seconds; what was measured of each batch."""
    seen = []
    for step in range(steps):
        batch = await rig.full(step)
        await later(2)
        await rig.scheduler.update_weights(step + 1, {})
        seen.append(batch.meta_info["metrics"])
    return seen


def rig_of(**config: Any) -> Rig:
    return Rig(env=partial(Echo, turns=3, step_s=0.7), engines=2, num_env_groups=8, config=config)


@pytest.mark.parametrize("bound", [0, 1, 2])
@played
async def test_under_a_hard_bound_no_group_is_older(bound: int):
    rig = rig_of(staleness=float(bound), on_stale="wait")
    lags = [metrics["batch/lag_versions/max"] for metrics in await trained(rig, 8)]
    assert max(lags) <= bound
    assert rig.ledger.groups.dropped == {}, "waiting drops nothing"
    if bound:
        assert max(lags) > 0, "it did collect ahead"
    await rig.scheduler.shutdown()


@played
async def test_when_old_groups_are_kept_the_mean_stays_within_the_bound():
    rig = rig_of(staleness=1.0, on_stale="keep")
    await trained(rig, 8)
    assert rig.ledger.lag_sum <= rig.ledger.lags * 1.0
    await rig.scheduler.shutdown()


@played
async def test_when_old_groups_are_dropped_none_is_older_and_the_waste_is_told():
    rig = rig_of(staleness=1.0, on_stale="drop")
    lags = [metrics["batch/lag_versions/max"] for metrics in await trained(rig, 8)]
    assert max(lags) <= 1
    assert set(rig.ledger.groups.dropped) <= {"stale"}
    await rig.scheduler.shutdown()


@played
async def test_collecting_ahead_takes_less_time_than_taking_turns():
    seconds = {}
    for bound in (0.0, 1.0):
        rig = rig_of(staleness=bound)
        seen = await trained(rig, 6)
        seconds[bound] = sum(metrics["batch/wait_s/mean"] for metrics in seen[1:])
        await rig.scheduler.shutdown()
    assert seconds[1.0] < seconds[0.0]


class FarAway(Watched):
    """An engine that hears of new weights late."""

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        await later(5)
        return await super().load(version, weights)


@played
async def test_a_step_that_counts_as_a_version_is_sampled_by_engines_that_have_heard_of_it():
    rig = Rig(engines=2, tasks=6, engine_class=FarAway, config={"staleness": 0.0})
    batches = [await rig.full(0), await rig.full(1)]
    assert [len(batch) for batch in batches] == [8, 4]
    assert batches[1].meta_info["metrics"]["batch/lag_versions/max"] == 0
    assert rig.ledger.groups.dropped == {}
    await rig.scheduler.shutdown()
