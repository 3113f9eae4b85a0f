"""What the group queue is told: late, twice, by the dead, by strangers; and what it knows after a restore."""

import asyncio
from typing import Any

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.rollout.kit import later, play
from tests.rollout.toys import Watched

from windrow import GroupQueueManager
from windrow.core.events import SuspendWanted
from windrow.core.settings import ModeSettings, Settings
from windrow.errors import ConfigError, InternalError
from windrow.rollout.orders import Broken, EngineGone, Lease, News, Played, Progressed
from windrow.rollout.queue import QueueOptions
from windrow.rollout.snapshots import QueueSnapshot
from windrow.sources.lists import ListSource
from windrow.trajectory import Task
from windrow.types import Failed, Finished, but

LEFT: list[GroupQueueManager] = []  # queues that the scene in hand made


def make(tasks: int = 20, *, size: int = 2, batch: int = 4, **settings: Any) -> GroupQueueManager:
    options = QueueOptions(**settings.pop("options", {}))
    chosen = Settings(train=ModeSettings(group_size=size, batch_size=batch, **settings), breaker_share=1.0)
    source = ListSource(Task(ordinal=0, seed=seed) for seed in range(tasks))
    queue = GroupQueueManager(chosen, {"train": source}, {"e0": Watched("e0")}, options)
    LEFT.append(queue)
    return queue


def scene(body: Any) -> Any:
    """A test on virtual time after which all queues are shut down and balance."""

    def test() -> None:
        LEFT.clear()

        async def whole() -> None:
            await body()
            for queue in LEFT:
                await queue.shutdown()
                queue.machine.check()
                assert queue.machine.ledgers["train"].attempts.alive == 0
            LEFT.clear()

        play(whole())

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


async def opened(queue: GroupQueueManager, slots: int = 8) -> "asyncio.Future[Any]":
    """A started queue with one worker, and somebody who waits for a batch."""
    await queue.start()
    await queue.join("w0", slots, ("train/",))
    waiting = asyncio.ensure_future(queue.get_batch(4, 0))
    await asyncio.sleep(0)
    return waiting


async def leases(queue: GroupQueueManager, k: int = 99) -> list[Lease]:
    return [order for order in await queue.lease("w0", k) if isinstance(order, Lease)]


def played(lease: Lease, score: float = 1.0) -> Played:
    record = but(trajectory(lease.attempt.group, lease.attempt.index), seat=lease.seat, task=lease.task, score=score)
    return Played(lease.attempt, Finished(score=score, tokens=2, oldest_version=0), record)


@scene
async def test_a_group_is_handed_out_once():
    queue = make(staleness=1.0)
    await queue.start()
    await queue.join("w0", 8, ("train/",))
    batches = [await one_batch(queue, step, n=4) for step in range(5)]
    groups = [group for batch in batches for group in batch.order.groups]
    assert len(groups) == len(set(groups)) == 10


@scene
async def test_news_that_come_twice_or_late_are_counted_and_ignored():
    queue = make(spares=1)
    waiting = await opened(queue)
    given = await leases(queue)
    spare = next(lease for lease in given if str(lease.attempt) == "g0.a2")
    others = [lease for lease in given if lease.attempt.index < 2]
    await queue.report([played(lease) for lease in (*others, *others, spare)])
    delivery = await waiting
    assert len(delivery.trajectories) == 4
    assert queue.machine.late == 5
    await queue.report([Progressed(spare.attempt, 5, 0), Broken(spare.attempt, Failed("env", "late"))])
    assert queue.machine.late == 7
    assert len(queue._dispatch.shelf.read(delivery.order.attempts)) == 4


@scene
async def test_news_of_an_attempt_that_never_was_are_a_bug_and_change_nothing():
    queue = make()
    waiting = await opened(queue)
    (lease, *_) = await leases(queue)
    stranger = but(lease, attempt=but(lease.attempt, group=77))
    with pytest.raises(InternalError, match="was never granted"):
        await queue.report([played(stranger)])
    queue.machine.check()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})


@scene
async def test_what_a_lost_worker_played_is_played_again_elsewhere():
    queue = make()
    waiting = await opened(queue)
    given = await leases(queue)
    await queue.join("w1", 8, ("train/",))
    await queue.leave("w0", "it crashed")
    again = [order for order in await queue.lease("w1", 99) if isinstance(order, Lease)]
    assert {(lease.task.ordinal, lease.seat) for lease in again} == {(each.task.ordinal, each.seat) for each in given}
    await queue.report([played(lease) for lease in (*given, *again)])  # the dead may still speak
    assert len((await waiting).trajectories) == 4
    assert queue.machine.ledgers["train"].attempts.dropped == {"lost": 4}


@scene
async def test_a_dead_engine_is_reported_once_and_the_last_one_ends_every_wait():
    queue = make()
    waiting = await opened(queue)
    news: list[News] = [EngineGone("e0", "smoke"), EngineGone("e0", "smoke"), EngineGone("e9", "unknown")]
    await queue.report(news)
    with pytest.raises(Exception, match="all engines are lost: e0: smoke"):
        await waiting


@scene
async def test_every_event_is_recorded_before_it_is_acted_on():
    told: list[tuple[str, float]] = []
    queue = make(options={"record": lambda event, at: told.append((type(event).__name__, at))})
    waiting = await opened(queue)
    await later(3)
    await queue.report([played(lease) for lease in await leases(queue)])
    await waiting
    assert [name for name, _ in told][:6] == [
        "EngineJoined",
        "EngineReady",
        "WorkerJoined",
        "BatchWanted",
        "TaskArrived",
        "TaskArrived",
    ]
    assert told[-1] == ("AttemptEnded", 3.0)


def test_a_queue_needs_an_engine():
    with pytest.raises(ConfigError, match="a queue needs at least one engine, got none"):
        GroupQueueManager(Settings(), {}, {})


# snapshots


@scene
async def test_a_restored_queue_goes_on_with_what_was_finished_and_plays_the_rest_again():
    first = make()
    waiting = await opened(first)
    given = await leases(first)
    await first.report([played(lease, score=lease.seat + 10.0) for lease in given[:3]])
    snapshot = first.snapshot()
    await first.shutdown()
    assert await waiting is None
    second = make()
    second.restore(snapshot)
    waiting = await opened(second)
    (left,) = await leases(second)
    assert (left.task.ordinal, left.seat) == (given[3].task.ordinal, given[3].seat)
    await second.report([played(left, score=99.0)])
    scores = [each.score for each in (await waiting).trajectories]
    assert sorted(scores) == [10.0, 10.0, 11.0, 99.0]


@scene
async def test_a_restored_queue_repeats_no_task_and_skips_none():
    first = make(tasks=5, batch=2)
    ordinals: list[int] = []
    queue, step = first, 0
    await queue.start()
    await queue.join("w0", 8, ("train/",))
    while (delivery := await one_batch(queue, step)) is not None:
        ordinals += {each.task.ordinal for each in delivery.trajectories}
        restored = make(tasks=5, batch=2)
        restored.restore(queue.snapshot())
        await restored.start()
        await restored.join("w0", 8, ("train/",))
        queue, step = restored, step + 1
    assert ordinals == [*range(5)]


async def one_batch(queue: GroupQueueManager, step: int, n: int = 2) -> Any:
    """Play whatever is given out until the batch is there."""
    waiting = asyncio.ensure_future(queue.get_batch(n, step))
    await asyncio.sleep(0.1)
    while not waiting.done():
        await queue.report([played(lease) for lease in await leases(queue)])
        await asyncio.sleep(0.1)
    return await waiting


@scene
async def test_holds_of_the_past_are_let_go_by_a_restored_queue():
    first = make()
    waiting = await opened(first)
    first.tell(SuspendWanted("caller"))
    snapshot: QueueSnapshot = first.snapshot()
    await first.shutdown()
    await waiting
    second = make()
    second.restore(snapshot)
    waiting = await opened(second)
    await second.report([played(lease) for lease in await leases(second)])
    assert len((await waiting).trajectories) == 4
    assert all(engine.holders == () for engine in second.status().engines)
