"""The clock that jumps, and the kit that rests on it."""

import asyncio
from typing import Any

import pytest
from tests.rollout.kit import Rig, play
from tests.rollout.toys import Echo

from windrow.errors import InternalError
from windrow.rollout.virtual_time import run


def test_an_hour_passes_at_once_and_exactly():
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(sleep()) == 3600


def test_deadlines_come_in_order():
    order: list[int] = []

    async def note(seconds: int) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for seconds in (5, 1, 3):
                group.create_task(note(seconds))

    run(main())
    assert order == [1, 3, 5]


def test_if_nothing_can_ever_happen_again_it_says_so():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(InternalError, match="every task waits and no deadline is set"):
        run(main())


def test_blocking_work_runs_in_place():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda: 42) == 42
        with pytest.raises(KeyError):
            await loop.run_in_executor(None, lambda: dict[str, int]()["x"])
        return loop.time()

    assert run(main()) == 0


# what the kit would not let pass


async def leaves_a_task() -> None:
    asyncio.get_running_loop().create_task(asyncio.sleep(1e9), name="a stray").set_name("a stray")


async def leaves_a_generator() -> None:
    async def endless():
        while True:
            yield 1

    KEPT.append(endless())
    await anext(KEPT[0])


async def leaves_an_exception() -> None:
    async def fails() -> None:
        raise KeyError("never retrieved")

    task = asyncio.get_running_loop().create_task(fails())
    await asyncio.sleep(1)
    del task


async def leaves_an_environment() -> None:
    Echo(Rig().log)


async def breaks_a_promise() -> None:
    rig = Rig()
    await rig.full(0)
    rig.machine._books.lanes["train"].ledger.groups.admitted += 1


async def never_ends() -> None:
    await asyncio.sleep(1e9)


KEPT: list[Any] = []


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        (leaves_a_task, "a stray"),
        (leaves_a_generator, "async generators are left over"),
        (leaves_an_exception, "never retrieved"),
        (leaves_an_environment, "1 environments were not closed"),
        (breaks_a_promise, "promise 1 is broken"),
        (never_ends, "^$"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_the_kit_fails_a_test_that(scene, why: str):
    with pytest.raises((AssertionError, InternalError, TimeoutError), match=why):
        play(scene())
    KEPT.clear()
