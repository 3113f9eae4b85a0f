"""The group queue by itself: workers lease and report in bulk, consumers ask for batches."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.rollout.kit import played

from windrow.core.events import AnyEvent
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.engines.scripted import ScriptedEngine
from windrow.errors import ConfigError, Refused
from windrow.rollout.dispatch import Delivery
from windrow.rollout.orders import Broken, Cancel, Lease, News, Order, Played, PlayedOut, Progressed, Scored
from windrow.rollout.queue import GroupQueueManager, QueueOptions
from windrow.rollout.trays import Job
from windrow.sources.lists import SeedSource
from windrow.trajectory import Trajectory
from windrow.types import Failed, Finished

KINDS = ("train/",)


def queue_of(
    *, source: SeedSource | None = None, options: QueueOptions | None = None, **train: object
) -> GroupQueueManager:
    settings = Settings(train=ModeSettings(**{"group_size": 2, "batch_size": 4, **train}), backoff_s=0.0)  # type: ignore[arg-type]
    return GroupQueueManager(settings, {"train": source or SeedSource()}, {"e0": ScriptedEngine("e0")}, options)


async def worked(queue: GroupQueueManager, *, slots: int = 4, worker: str = "w0") -> None:
    await queue.start()
    await queue.join(worker, slots, KINDS)


async def leases(queue: GroupQueueManager, k: int = 4, worker: str = "w0") -> list[Lease]:
    return only_leases(await queue.lease(worker, k))


def only_leases(orders: Sequence[Order]) -> list[Lease]:
    return [order for order in orders if isinstance(order, Lease)]


def finished(lease: Lease, score: float = 1.0) -> Played:
    made = trajectory(lease.attempt.group, lease.attempt.index, [(2, 3, 0, score)])
    return Played(lease.attempt, Finished(score, 3, 0), made)


async def wanted(
    queue: GroupQueueManager, group: asyncio.TaskGroup, n: int = 4, step: int = 0
) -> asyncio.Task[Delivery | None]:
    task = group.create_task(queue.get_batch(n, step))
    await asyncio.sleep(0)
    return task


@played
async def test_leases_are_given_and_results_taken_in_bulk():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group)
        taken = await leases(queue)
        assert sorted(str(lease.attempt) for lease in taken) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]
        assert {lease.engine for lease in taken} == {"e0"}
        await queue.report([finished(lease) for lease in taken])
    delivery = batch.result()
    assert delivery is not None
    assert [t.attempt for t in delivery.trajectories] == sorted(lease.attempt for lease in taken)
    await queue.shutdown()


@played
async def test_a_worker_gets_at_most_as_many_leases_as_it_asks_for_and_the_rest_later():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group)
        taken = [*await leases(queue, 3), *await leases(queue, 3)]
        assert len(taken) == 4
        await queue.report([finished(lease) for lease in taken])
    assert batch.result() is not None
    await queue.shutdown()


@played
async def test_the_same_step_gives_the_same_batch_until_it_is_acknowledged():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        first = await wanted(queue, group)
        await queue.report([finished(lease) for lease in await leases(queue)])
    again = await queue.get_batch(4, 0)
    assert again == first.result()
    assert again is not None
    await queue.mark_trained(again.order.batch)
    assert queue.machine.ledgers["train"].groups.trained == 2
    await queue.shutdown()


@played
async def test_a_spare_that_was_not_fetched_yet_is_never_given_out():
    queue = queue_of(spares=1, batch_size=2)
    await worked(queue, slots=3)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group, n=2)
        taken = await leases(queue, 2)
        await queue.report([finished(lease) for lease in taken])
    assert batch.result() is not None
    await queue.advance_step(1)
    async with asyncio.TaskGroup() as group:
        await wanted(queue, group, n=2, step=1)
        later = await leases(queue, 3)
        assert {lease.attempt.group for lease in later} == {1}
        await queue.shutdown()


@played
async def test_a_spare_that_is_in_play_is_cancelled():
    queue = queue_of(spares=1, batch_size=2)
    await worked(queue, slots=3)
    async with asyncio.TaskGroup() as group:
        await wanted(queue, group, n=2)
        taken = await leases(queue, 3)
        await queue.report([finished(lease) for lease in taken[:2]])
    assert await queue.lease("w0", 1) == [Cancel(taken[2].attempt, "spare")]
    late: list[News] = [Progressed(taken[2].attempt, 5, 0), finished(taken[2])]
    await queue.report(late)
    assert queue.machine.late == 2
    kept = queue._dispatch.shelf.folders[0].trajectories
    assert [*kept] == [lease.attempt for lease in taken[:2]], "what comes late is not kept"
    await queue.shutdown()


@played
async def test_a_failure_is_never_a_score_and_is_tried_again_in_the_same_seat():
    queue = queue_of(batch_size=2)
    await worked(queue, slots=2)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group, n=2)
        good, bad = await leases(queue, 2)
        await queue.report([finished(good), Broken(bad.attempt, Failed("env", "it broke"))])
        (again,) = await leases(queue, 2)
        assert (again.seat, again.task) == (bad.seat, bad.task)
        assert again.attempt != bad.attempt
        await queue.report([finished(again)])
    delivery = batch.result()
    assert delivery is not None
    assert bad.attempt not in delivery.order.attempts
    await queue.shutdown()


@played
async def test_a_filter_rejects_a_finished_group_and_another_takes_its_place():
    async def odd(trajectories: list[Trajectory]) -> bool:
        return trajectories[0].attempt.group % 2 == 1

    queue = queue_of(batch_size=2, filter="external", options=QueueOptions(filters={"train": odd}))
    await worked(queue, slots=2)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group, n=2)
        while not batch.done():
            await queue.report([finished(lease) for lease in await leases(queue, 2)])
            await asyncio.sleep(0.1)
    delivery = batch.result()
    assert delivery is not None
    assert delivery.order.groups == (1,)
    assert queue.machine.ledgers["train"].groups.dropped == {"filtered": 1}
    await queue.shutdown()


@played
async def test_a_worker_that_is_gone_loses_nothing_but_what_it_played():
    queue = queue_of(batch_size=2)
    await worked(queue, slots=2)
    await queue.join("w1", 2, KINDS)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group, n=2)
        await queue.leave("w0", "it was pulled out")
        orders: list[Lease] = []
        while len(orders) < 2:
            orders += await leases(queue, 2, "w1")
        await queue.report([finished(lease) for lease in orders])
    assert batch.result() is not None
    await queue.shutdown()


@played
async def test_whoever_never_joined_gets_a_clear_answer():
    queue = queue_of()
    await worked(queue)
    with pytest.raises(ConfigError, match="worker 'w9' has not joined; known are w0"):
        await queue.lease("w9", 1)
    with pytest.raises(Refused, match="asks for 0 leases"):
        await queue.lease("w0", 0)
    await queue.shutdown()


@played
async def test_after_the_end_there_are_no_orders_and_no_batches():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(queue, group)
        await leases(queue)
        await queue.shutdown()
    assert batch.result() is None
    assert await queue.get_batch(4, 1) is None
    assert queue.machine.ledgers["train"].attempts.alive == 0


@played
async def test_a_snapshot_goes_on_where_it_was_taken():
    queue = queue_of(source=SeedSource(max_tasks=4))
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        first = await wanted(queue, group)
        await queue.report([finished(lease) for lease in await leases(queue)])
    async with asyncio.TaskGroup() as group:
        await wanted(queue, group, step=1)
        half = await leases(queue, 1)
        await queue.report([finished(half[0], score=7.0)])
        saved = queue.snapshot()
        await queue.shutdown()
    other = queue_of(source=SeedSource(max_tasks=4))
    other.restore(saved)
    await worked(other, worker="w5")
    async with asyncio.TaskGroup() as group:
        batch = await wanted(other, group, step=1)
        rest: list[Lease] = []
        while len(rest) < 3:
            rest += await leases(other, 4, "w5")
        await other.report([finished(lease) for lease in rest])
    delivery = batch.result()
    assert first.result() is not None
    assert delivery is not None
    assert [t.score for t in delivery.trajectories].count(7.0) == 1, "what was finished before is not played again"
    assert sorted({t.attempt.group for t in delivery.trajectories}) == [2, 3]
    await other.shutdown()


@played
async def test_what_waited_for_its_score_when_a_snapshot_was_taken_is_scored_afterwards_and_not_played_again():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        await wanted(queue, group)
        played_out = [finished(lease).trajectory for lease in await leases(queue)]
        await queue.report([PlayedOut("train/", trajectory) for trajectory in played_out])
        saved = queue.snapshot()
        await queue.shutdown()
    other = queue_of()
    other.restore(saved)
    await worked(other, worker="w5")
    await other.open_tray("train/", in_groups=False)
    async with asyncio.TaskGroup() as group:
        batch = await wanted(other, group)
        jobs = await other.fetch_unscored("train/")
        await other.report([Scored(job.number, job.trajectories) for job in jobs if isinstance(job, Job)])
    delivery = batch.result()
    assert delivery is not None
    assert {t.attempt for t in delivery.trajectories} == {t.attempt for t in played_out}
    await other.shutdown()


@played
async def test_a_batch_that_was_handed_out_before_a_snapshot_can_be_asked_for_after_it():
    queue = queue_of()
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        first = await wanted(queue, group)
        await queue.report([finished(lease) for lease in await leases(queue)])
    saved = queue.snapshot()
    await queue.shutdown()
    other = queue_of()
    other.restore(saved)
    await other.start()
    assert await other.get_batch(4, 0) == first.result()
    await other.shutdown()


@played
async def test_a_queue_that_runs_cannot_be_restored():
    queue = queue_of()
    await queue.start()
    with pytest.raises(Refused, match="make a new one"):
        queue.restore(queue.snapshot())
    await queue.shutdown()


@played
async def test_what_is_recorded_replays_to_the_same_machine():
    seen: list[tuple[AnyEvent, float]] = []
    queue = queue_of(options=QueueOptions(record=lambda event, now: seen.append((event, now))))
    await worked(queue)
    async with asyncio.TaskGroup() as group:
        await wanted(queue, group)
        await queue.report([finished(lease) for lease in await leases(queue)])
    await queue.shutdown()
    again = Machine(queue.machine.settings)
    for event, now in seen:
        again.step(event, now)
    assert again.snapshot() == queue.machine.snapshot()
