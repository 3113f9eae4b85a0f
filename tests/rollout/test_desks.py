"""Where orders wait, and where trajectories lie."""

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.rollout.given_trajectories import trajectory
from tests.rollout.kit import play

from windrow.errors import ConfigError, InternalError, Refused
from windrow.rollout.desks import Desks
from windrow.rollout.orders import Cancel, Lease, Move, Order
from windrow.rollout.shelf import Shelf
from windrow.trajectory import Task
from windrow.types import AttemptId, but


def attempt(index: int) -> AttemptId:
    return AttemptId(0, index)


def lease(index: int, engine: str = "e0") -> Lease:
    task = Task(ordinal=0)
    return Lease(attempt=attempt(index), seat=index, task=task, mode="train", engine=engine, version=0, deadline=1.0)


def fetched(desks: Desks, most: int = 99) -> list[Order]:
    return asyncio.run(desks.fetch("w0", most))


def desk(*orders: Order) -> Desks:
    desks = Desks()
    desks.open("w0")
    for order in orders:
        desks.put("w0", order)
    return desks


# desks


def test_leases_are_given_out_in_order_each_once_and_no_more_than_asked_for():
    desks = desk(lease(0), lease(1), lease(2))
    assert fetched(desks, 2) == [lease(0), lease(1)]
    assert fetched(desks, 2) == [lease(2)]


def test_orders_about_what_plays_come_first_and_do_not_count():
    desks = desk(lease(5))
    fetched(desks)
    for order in (lease(6), Cancel(attempt(5), "spare"), Move(attempt(5), "e1")):
        desks.put("w0", order)
    assert fetched(desks, 1) == [Cancel(attempt(5), "spare"), Move(attempt(5), "e1"), lease(6)]


def test_a_lease_that_was_not_fetched_is_cancelled_without_a_word():
    desks = desk(lease(0), lease(1), Cancel(attempt(0), "spare"))
    assert fetched(desks) == [lease(1)]


def test_a_lease_that_was_not_fetched_is_moved_in_place():
    assert fetched(desk(lease(0), Move(attempt(0), "e7"))) == [lease(0, "e7")]


def test_a_worker_that_waits_is_woken_by_the_first_order():
    async def scene() -> None:
        desks = desk()
        waiting = asyncio.ensure_future(desks.fetch("w0", 1))
        await asyncio.sleep(5)
        assert not waiting.done()
        desks.put("w0", lease(0))
        assert await waiting == [lease(0)]

    play(scene())


@pytest.mark.parametrize("close", [lambda desks: desks.close("w0"), lambda desks: desks.close_all()])
def test_a_worker_that_waits_is_told_that_all_is_over(close: Any):
    async def scene() -> None:
        desks = desk()
        waiting = asyncio.ensure_future(desks.fetch("w0", 1))
        await asyncio.sleep(5)
        close(desks)
        assert await waiting == []

    play(scene())


def test_what_waits_at_the_end_is_still_given_out():
    desks = desk(lease(0))
    desks.close_all()
    assert fetched(desks) == [lease(0)]
    assert fetched(desks) == []


def test_orders_for_a_worker_that_is_gone_are_forgotten():
    desks = desk()
    desks.close("w0")
    desks.close("w0")
    desks.put("w0", lease(0))
    with pytest.raises(ConfigError, match="worker 'w0' has not joined"):
        fetched(desks)


@pytest.mark.parametrize("most", [0, -1])
def test_a_worker_asks_for_something(most: int):
    with pytest.raises(Refused, match=f"worker 'w0' asks for {most} leases; ask for 1 or more"):
        fetched(desk(lease(0)), most)


# the shelf


def shelf(groups: int = 2) -> Shelf:
    made = Shelf()
    for group in range(groups):
        made.open(group, Task(ordinal=group), "train")
        for index in range(2):
            played = trajectory(group, index)
            made.put(played.attempt, played)
    return made


def ids(group: int) -> list[AttemptId]:
    return [AttemptId(group, 0), AttemptId(group, 1)]


def test_a_batch_is_found_unchanged_until_it_is_retired():
    made = shelf()
    first = made.take(7, (0, 1), [*ids(0), *ids(1)])
    again = made.take(7, (0, 1), [*ids(0), *ids(1)])
    assert [each.attempt for each in first] == [*ids(0), *ids(1)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    made.retire(7)
    assert len(made) == 0


def test_retiring_twice_is_retiring_once():
    made = shelf()
    made.take(7, (0,), ids(0))
    made.retire(7)
    made.retire(7)
    assert len(made) == 1


def test_a_dropped_group_is_gone_and_what_comes_late_for_it_is_not_kept():
    made = shelf()
    made.drop(0)
    made.put(AttemptId(0, 0), trajectory())
    made.discard(AttemptId(0, 0))
    assert len(made) == 1
    with pytest.raises(InternalError, match="group g0 is not on the shelf"):
        made.task(0)


def test_a_discarded_trajectory_leaves_its_siblings():
    made = shelf()
    made.discard(AttemptId(0, 1))
    assert [each.attempt for each in made.read(ids(0)[:1])] == [AttemptId(0, 0)]
    with pytest.raises(KeyError):
        made.read(ids(0))


def test_an_emptied_group_keeps_its_task():
    made = shelf()
    made.empty(1)
    assert made.task(1) == Task(ordinal=1)
    with pytest.raises(KeyError):
        made.read(ids(1))


def test_a_copy_goes_its_own_way():
    made = shelf()
    made.take(7, (0,), ids(0))
    copy = made.copy()
    made.retire(7)
    made.put(AttemptId(1, 5), but(trajectory(1, 5), score=9.0))
    assert (len(copy), len(made)) == (2, 1)
    assert np.array_equal(copy.read(ids(0))[0].chains[0].token_ids, trajectory().chains[0].token_ids)
    with pytest.raises(KeyError):
        copy.read([AttemptId(1, 5)])
