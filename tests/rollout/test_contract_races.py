"""Two things in the same moment: whichever comes first, nobody hangs and nothing breaks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, at, later, play
from tests.rollout.toys import talk

from windrow.errors import Refused

TURNS_OF_THE_LOOP = range(14)
"""More than any of these calls needs from the moment in which its engine answers."""

Call = Callable[[Rig], Coroutine[Any, Any, Any]]
CALLS: dict[str, Call] = {
    "suspend": lambda rig: rig.scheduler.suspend(),
    "update_weights": lambda rig: rig.scheduler.update_weights(5),
    "shrink_sampler": lambda rig: rig.scheduler.shrink_sampler([1]),
    "expand_sampler": lambda rig: rig.scheduler.expand_sampler([2]),
    "get_batch": lambda rig: rig.scheduler.get_batch(at(1), 8),
}


async def busy() -> Rig:
    """Three engines, the last one away; every call to an engine takes five seconds."""
    engine = {"load_s": 5.0, "release_s": 5.0, "restore_s": 5.0}
    rig = Rig(engines=3, engine=engine, script=talk(45, 60), config={"staleness": 1.0, "suspend_mode": "drain"})
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([2])
    await rig.full(0)
    return rig


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_ends_in_the_moment_of_the_shutdown_ends(name: str):
    async def scene(turns: int) -> None:
        rig = await busy()
        waiting = asyncio.ensure_future(CALLS[name](rig))
        await later(5)
        for _ in range(turns * kit.premises.turns):
            await asyncio.sleep(0)
        await rig.scheduler.shutdown()
        done, _ = await asyncio.wait({waiting}, timeout=10)
        assert done, f"{name} still waits"
        assert isinstance(waiting.exception(), Refused | None), repr(waiting.exception())

    for turns in TURNS_OF_THE_LOOP[:: kit.premises.every]:
        play(scene(turns))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_ends_in_the_moment_in_which_an_engine_dies_ends(name: str):
    async def scene(turns: int) -> None:
        rig = await busy()
        waiting = asyncio.ensure_future(CALLS[name](rig))
        await later(5)
        for _ in range(turns * kit.premises.turns):
            await asyncio.sleep(0)
        rig.engines[1].die()
        done, _ = await asyncio.wait({waiting}, timeout=100)
        assert done, f"{name} still waits"
        await later(100)
        assert len(await rig.full(2)) == 8
        assert rig.holders() == set()

    for turns in TURNS_OF_THE_LOOP[:: kit.premises.every]:
        play(scene(turns))


@pytest.mark.parametrize("first", [name for name in CALLS if name != "get_batch"])
@pytest.mark.parametrize("second", [name for name in CALLS if name != "get_batch"])
def test_two_calls_in_the_same_moment_leave_a_cluster_that_works(first: str, second: str):
    async def scene() -> None:
        rig = await busy()
        results = await asyncio.gather(CALLS[first](rig), CALLS[second](rig), return_exceptions=True)
        assert all(isinstance(result, dict | Refused | None) for result in results), results
        for step in (1, 2):
            assert len(await rig.full(step)) == 8
        assert rig.holders() == set()
        assert rig.scheduler.status().lost_engines == {}
        assert {engine.state for engine in rig.machine.status().engines} <= {"serving", "away"}

    play(scene())


def test_the_hold_of_one_weight_update_is_not_undone_by_another():
    async def scene() -> None:
        rig = await busy()
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.scheduler.update_weights(1))
            await later(1)
            second = group.create_task(rig.scheduler.update_weights(2))
            while not second.done():
                held = [engine for engine in rig.machine.status().engines if engine.state == "serving"]
                loading = [engine for engine in held if engine.version != rig.machine.version]
                assert all(engine.holders for engine in loading), loading
                await later(0.25)
        assert rig.holders() == set()

    play(scene())
