"""A shrink or an expand that fails leaves routing as it was."""

import asyncio
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, all_words, later, played
from tests.rollout.test_contract_devices import busy, routing, states
from tests.rollout.toys import Watched

from windrow.errors import EngineError


@played
async def test_a_release_that_fails_is_undone():
    rig, calm = busy(), busy()
    await calm.full(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        rig.engines[1].refuses["release"] = RuntimeError("stuck")
        with pytest.raises(EngineError, match=r"shrink of devices \[1\] was undone: engine infer-1: .*stuck"):
            await rig.scheduler.shrink_sampler([1])
        assert set(states(rig).values()) == {"serving"}
    assert all_words(rig) == all_words(calm)


@played
async def test_of_several_releases_one_that_fails_undoes_all():
    rig = busy(tasks=8)
    await rig.scheduler.initialize()
    rig.engines[2].refuses["release"] = RuntimeError("stuck")
    with pytest.raises(EngineError, match="was undone"):
        await rig.scheduler.shrink_sampler([1, 2])
    assert set(states(rig).values()) == {"serving"}
    assert [engine._state.state for engine in rig.engines] == ["up", "up", "up"]
    await rig.full(0)
    assert all(engine.requests for engine in rig.engines)


@played
async def test_what_was_away_before_a_shrink_that_fails_stays_away():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([0])
    before = routing(rig)
    rig.engines[1].refuses["release"] = RuntimeError("stuck")
    with pytest.raises(EngineError, match="was undone"):
        await rig.scheduler.shrink_sampler([0, 1])
    assert routing(rig) == before
    assert (await rig.engines[0].health()).state == "released"


@pytest.mark.parametrize("call", ["restore", "load"])
@played
async def test_an_expand_that_fails_is_undone(call: str):
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1, 2])
    await rig.scheduler.update_weights(1)
    before = routing(rig)
    rig.engines[2].refuses[call] = RuntimeError("no memory")
    with pytest.raises(EngineError, match=r"expand to devices \[1, 2\] was undone: engine infer-2: .*no memory"):
        await rig.scheduler.expand_sampler([1, 2])
    assert routing(rig) == before
    assert [engine._state.state for engine in rig.engines] == ["up", "released", "released"]
    assert len(await rig.full(0)) == 8


@played
async def test_what_served_before_an_expand_that_fails_goes_on_serving():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([2])
    before = routing(rig)
    rig.engines[2].refuses["restore"] = RuntimeError("no memory")
    with pytest.raises(EngineError, match="was undone"):
        await rig.scheduler.expand_sampler([0, 1, 2])
    assert routing(rig) == before
    assert len(await rig.full(0)) == 8


@played
async def test_after_a_failure_the_same_can_be_tried_again():
    rig = busy()
    await rig.scheduler.initialize()
    for call in ("release", "restore"):
        rig.engines[1].refuses[call] = RuntimeError("not now")
    with pytest.raises(EngineError, match="was undone"):
        await rig.scheduler.shrink_sampler([1])
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]  # it could not even be put back
    assert (await rig.scheduler.shrink_sampler([1]))["engines"] == []  # its devices are free
    assert len(await rig.full(0)) == 8


@played
async def test_a_release_that_hangs_is_undone_or_lost_in_bounded_time():
    rig = busy()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2.05)
        rig.engines[1].hang()
        if kit.premises.buries:
            assert (await rig.scheduler.shrink_sampler([1]))["engines"] == ["infer-1"]
        else:
            with pytest.raises(EngineError, match="infer-1"):  # nobody knows whether the devices are free
                await rig.scheduler.shrink_sampler([1])
    assert len(waiting.result()) == 8
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]


@played
async def test_an_abandoned_expand_that_fails_later_does_not_keep_the_engine():
    """The caller is cancelled, the restore fails afterwards: the engine can still be asked for again."""
    rig = busy(engine={"restore_s": 10.0})
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    expanding = asyncio.ensure_future(rig.scheduler.expand_sampler([1]))
    await later(5)
    expanding.cancel()
    await asyncio.wait({expanding})
    rig.engines[1].refuses["restore"] = RuntimeError("no memory")
    await rig.scheduler.shrink_sampler([1])
    with pytest.raises(EngineError, match="no memory"):
        await rig.scheduler.expand_sampler([1])
    del rig.engines[1].refuses["restore"]
    await rig.scheduler.expand_sampler([1])
    assert set(states(rig).values()) == {"serving"}


class FailingLate(Watched):
    """Takes its time before it refuses to give its devices back."""

    async def release(self) -> None:
        if "release, late" in self.refuses:
            await later(10)
            raise self.refuses["release, late"]
        await super().release()


@played
async def test_a_failure_that_nobody_waited_for_is_not_told_to_the_next_caller():
    rig = busy(engine_class=FailingLate, engine={"release_s": 10.0})
    await rig.scheduler.initialize()
    rig.engines[1].refuses["release, late"] = RuntimeError("stuck")
    shrinking = asyncio.ensure_future(rig.scheduler.shrink_sampler([1]))
    await later(5)
    shrinking.cancel()
    await asyncio.wait({shrinking})
    await later(100)
    del rig.engines[1].refuses["release, late"]
    assert states(rig)["infer-1"] in ("serving", "away")
    await rig.scheduler.expand_sampler([1])
    await rig.scheduler.shrink_sampler([1])
    assert states(rig)["infer-1"] == "away"


@pytest.mark.parametrize("call", ["shrink_sampler", "expand_sampler"])
@played
async def test_two_at_once_on_the_same_devices_end_in_order(call: str):
    rig = busy(engine={"release_s": 5.0, "restore_s": 5.0})
    await rig.scheduler.initialize()
    if call == "expand_sampler":
        await rig.scheduler.shrink_sampler([1])
    calls: list[Any] = [rig.scheduler.shrink_sampler([1]), rig.scheduler.expand_sampler([1])]
    if call == "expand_sampler":
        calls.reverse()
    async with asyncio.TaskGroup() as group:
        for each in calls:
            group.create_task(each)
            await later(1)
    assert states(rig)["infer-1"] == ("serving" if call == "shrink_sampler" else "away")
    assert len(await rig.full(0)) == 8


@played
async def test_a_shrink_while_new_weights_come_leaves_the_others_with_them():
    rig = busy(engine={"load_s": 20.0, "release_s": 5.0})
    await rig.full(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.update_weights(1))
        await later(1)
        group.create_task(rig.scheduler.shrink_sampler([1]))
    assert [rig.engines[place].version for place in (0, 2)] == [1, 1]
    await rig.scheduler.expand_sampler([1])
    assert rig.engines[1].version == 1


@played
async def test_a_shrink_that_fails_while_new_weights_come_does_not_forget_them():
    rig: Rig = busy(engine={"load_s": 20.0, "release_s": 5.0})
    await rig.full(0)
    rig.engines[1].refuses["release"] = RuntimeError("stuck")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.update_weights(1))
        await later(1)
        with pytest.raises(EngineError, match="stuck"):
            await rig.scheduler.shrink_sampler([1])
    told = [engine.version for engine in rig.machine.status().engines]
    assert told == [engine.version for engine in rig.engines] == [1, 1, 1]
