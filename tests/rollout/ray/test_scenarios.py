"""Two groups of eight with four spares, a filter that rejects every third group, all batch sizes and bounds, ten steps.

The scenarios that are known from the tests of another scheduler. Whatever the combination: a batch has exactly the
wanted length, no lag is above the bound, and it takes a moment.
"""

import asyncio
from itertools import product
from typing import Any

import pytest
from tests.rollout.ray.stage import Runtime, full, staged
from tests.rollout.ray.test_contract import tasks

from windrow.trajectory import Trajectory

SIZES = (8, 16, 24, 32, 64, -1)
BOUNDS = (0.0, 1.0, 2.0, 7.0)
STEPS = 10
GROUP = 8


def two_of_three(group: list[Trajectory]) -> bool:
    return group[0].task.ordinal % 3 != 2


async def scenario(runtime: Runtime, size: int, bound: float) -> None:
    """Ten steps; each counts as a new version."""
    async with staged(runtime) as stage:
        given: dict[str, Any] = {"tasks": tasks(6)} if size < 0 else {}
        on_stale = "keep" if size < 0 and bound else "wait"  # nobody can say how much everything is before it is there
        scheduler = stage.scheduler(
            group_size=GROUP,
            group_size_redundancy=4,
            num_env_groups=2,
            filter=two_of_three,
            config={"rollout_batch_size": max(size, GROUP), "staleness": bound, "on_stale": on_stale},
            **given,
        )
        for step in range(STEPS if size > 0 else 1):
            batch = await full(scheduler, step, size)
            groups = batch.batch["traj_group_id"].tolist()
            assert len(batch) == (size if size > 0 else 4 * GROUP)
            assert {groups.count(group) for group in groups} == {GROUP}
            assert batch.meta_info["metrics"]["batch/lag_versions/max"] <= bound
        ledger = scheduler.ledger()["train"]
        assert (ledger.attempts.balance, ledger.groups.balance) == (0, 0)
        if runtime == "local" or not bound:  # on Ray, with a bound, other groups may have had the slots
            assert ledger.attempts.dropped["spare"] > 0
        assert ledger.groups.dropped["filtered"] > 0


@pytest.mark.parametrize(("size", "bound"), [*product(SIZES, BOUNDS)])
def test_every_combination_in_one_process(size: int, bound: float):
    asyncio.run(scenario("local", size, bound))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("size", "bound"), [(8, 0.0), (32, 1.0), (64, 7.0), (-1, 0.0), (-1, 2.0)])
def test_the_corners_on_ray(size: int, bound: float):
    asyncio.run(scenario("ray", size, bound))
