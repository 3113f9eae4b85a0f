"""Turns on shared devices."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.cluster.arbiter import Arbiter, Line, Ticket, Turn, collisions
from windrow.errors import ConfigError, InternalError, Refused
from windrow.rollout.virtual_time import run


def admitted(line: Line) -> list[int]:
    return [ticket.number for ticket in line.admit()]


def test_a_device_has_one_turn_at_a_time():
    line = Line()
    one, other = line.join("train", [0, 1]), line.join("rollout", [1, 2])
    assert admitted(line) == [one.number]
    line.leave(one)
    assert admitted(line) == [other.number]


def test_nobody_overtakes_whoever_waits_for_the_same_device():
    """The third could begin at once, and by doing so again and again starve the second."""
    line = Line()
    line.join("a", [0])
    line.join("b", [0, 1])
    line.join("c", [1])
    line.join("d", [2])
    assert admitted(line) == [1, 4]


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=12), st.randoms(use_true_random=False))
def test_everybody_gets_a_turn_in_the_end(wanted: list[set[int]], chance):
    line = Line()
    served: list[Ticket] = []
    for devices in wanted:
        line.join("role", [*devices])
        served += line.admit()
    while line.holding:
        held = [device for ticket in line.holding.values() for device in ticket.devices]
        assert len(held) == len({*held}), "never two on one device"
        line.leave(chance.choice([*line.holding.values()]))
        served += line.admit()
    assert line.waiting == {}
    for device in range(4):
        numbers = [ticket.number for ticket in served if device in ticket.devices]
        assert numbers == sorted(numbers), "first come, first served"


def test_roles_are_never_at_work_on_one_device_at_once():
    arbiter = Arbiter()
    at_work: dict[int, str] = {}

    async def work(role: str, devices: list[int]) -> None:
        for _ in range(3):
            async with arbiter.turn(role, devices):
                assert at_work.keys().isdisjoint(devices)
                at_work.update(dict.fromkeys(devices, role))
                await asyncio.sleep(1)
                for device in devices:
                    del at_work[device]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for role, devices in (("train", [0, 1]), ("rollout", [1, 2]), ("reward", [2, 0]), ("critic", [3])):
                group.create_task(work(role, devices))

    run(main())
    assert len(arbiter.turns) == 12
    arbiter.check()


def test_a_wait_that_is_too_long_says_who_holds_what():
    async def main() -> None:
        arbiter = Arbiter()
        held = await arbiter.take("rollout", [0, 1])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(arbiter.take("critic", [1, 2]))
            await asyncio.sleep(0)
            late = (
                r"role train \(devices \[1, 2\]\) has waited 5 s for its turn; it is the turn of rollout "
                r"\(devices \[0, 1\]\); before it waits critic \(devices \[1, 2\]\)"
            )
            with pytest.raises(TimeoutError, match=late):
                await arbiter.take("train", [2, 1], within_s=5)
            arbiter.give_back(held)
            arbiter.give_back(await waiting)
        await arbiter.take("train", [0, 1, 2], within_s=0)  # who gave up keeps nobody waiting

    run(main())


def test_whoever_is_cancelled_while_waiting_keeps_nobody_waiting():
    async def main() -> None:
        arbiter = Arbiter()
        held = await arbiter.take("rollout", [0])
        waiting = asyncio.ensure_future(arbiter.take("train", [0]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        arbiter.give_back(held)
        await arbiter.take("critic", [0], within_s=0)

    run(main())


def test_a_turn_inside_of_a_turn_is_refused():
    async def main() -> None:
        arbiter = Arbiter()
        async with arbiter.turn("train", [0]):
            with pytest.raises(Refused, match=r"role critic asks for devices \[1\] inside of the turn of train"):
                async with arbiter.turn("critic", [1]):
                    pass
        async with arbiter.turn("critic", [0]):
            pass

    run(main())


def test_the_turn_of_a_role_that_is_gone_can_be_ended():
    async def main() -> None:
        arbiter = Arbiter()
        await arbiter.take("rollout", [0])
        arbiter.evict("rollout")
        await arbiter.take("train", [0], within_s=0)
        arbiter.check()

    run(main())


def test_a_turn_on_no_device_is_refused():
    with pytest.raises(ConfigError, match="role train asks for a turn on no device"):
        Line().join("train", [])


def test_the_check_finds_two_turns_on_one_device():
    """A line that forgets who holds what."""

    async def main() -> None:
        arbiter = Arbiter()
        await arbiter.take("rollout", [0, 1])
        arbiter._line.holding.clear()
        await arbiter.take("train", [1, 2], within_s=0)
        with pytest.raises(InternalError, match=r"two turns at once on a device: .*rollout.*train"):
            arbiter.check()

    run(main())


def turn(began: int, ended: int | None, *devices: int) -> Turn:
    return Turn(role="role", devices=devices, began=began, ended=ended)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        (turn(1, 2, 0), turn(3, 4, 0), False),
        (turn(1, 3, 0), turn(2, 4, 0), True),
        (turn(1, 4, 0), turn(2, 3, 0), True),
        (turn(1, None, 0), turn(2, 3, 0), True),
        (turn(3, None, 0), turn(1, 2, 0), False),
        (turn(1, None, 0), turn(2, None, 1), False),
    ],
)
def test_turns_collide_if_they_share_a_device_and_a_moment(one: Turn, other: Turn, collide: bool):
    assert bool(collisions([one, other])) is collide
    assert bool(collisions([other, one])) is collide
