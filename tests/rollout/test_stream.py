"""`stream`: complete groups, one by one, as they form."""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, later, now, played
from tests.rollout.toys import Breaking, Echo, Slow

from windrow.errors import Refused


async def first(rig: Rig, count: int) -> list[Any]:
    found = []
    async with aclosing(rig.scheduler.stream()) as groups:
        async for group in groups:
            found.append(group)
            if len(found) == count:
                break
    return found


@played
async def test_every_group_comes_once_and_then_it_ends():
    rig = Rig(tasks=7, config={"staleness": 1.0})
    groups = [group async for group in rig.scheduler.stream()]
    assert [len(group) for group in groups] == [2] * 7
    assert len({group.batch["traj_group_id"][0].item() for group in groups}) == 7
    assert rig.ledger.groups.trained == 7


@played
async def test_a_group_comes_when_it_is_complete_not_later():
    rig = Rig(tasks=4, env=partial(Slow, seconds=50.0, slow=frozenset({0})), config={"staleness": 1.0})
    times = [now() async for _ in rig.scheduler.stream()]
    assert max(times[:3]) < 10
    assert times[3] > 50


@played
async def test_each_counts_as_trained_when_the_next_is_asked_for():
    rig = Rig(config={"staleness": 1.0})
    async with aclosing(rig.scheduler.stream()) as groups:
        for number in range(5):
            await anext(groups)
            assert (rig.ledger.groups.trained, rig.ledger.groups.delivered) == (number, 1)


@played
async def test_a_stream_can_be_left_and_another_begun_without_a_group_twice():
    rig = Rig(tasks=12, config={"staleness": 1.0})
    groups = [*await first(rig, 3), *await first(rig, 5), *await first(rig, 99)]
    ids = [group.batch["traj_group_id"][0].item() for group in groups]
    assert sorted(ids) == [*range(12)]


@played
async def test_a_stream_beside_batches_shares_the_groups():
    rig = Rig(tasks=8, config={"staleness": 1.0})
    batch = await rig.full(0)
    groups = [group async for group in rig.scheduler.stream()]
    ids = {*batch.batch["traj_group_id"].tolist()} | {group.batch["traj_group_id"][0].item() for group in groups}
    assert (len(groups), len(ids)) == (4, 8)


@played
async def test_two_streams_at_once_are_refused():
    rig = Rig(env=partial(Echo, step_s=10.0))
    waiting = asyncio.ensure_future(first(rig, 1))
    await later(1)
    with pytest.raises(Refused, match="waits for a batch already"):
        await first(rig, 1)
    await waiting


@played
async def test_what_stops_the_run_stops_the_stream():
    rig = Rig(env=Breaking, config={"breaker_share": 0.5, "env_retries": 1000, "retry_after_s": 0.0})
    with pytest.raises(Refused, match="attempts failed"):
        await first(rig, 1)
