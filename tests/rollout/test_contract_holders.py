"""Who may undo whose hold of the gate."""

import asyncio

import pytest
from tests.rollout.kit import Rig, later, now, played
from tests.rollout.toys import Watched, talk

from windrow.engines.protocol import Acknowledgement
from windrow.errors import EngineError, Refused
from windrow.types import but


def loading(engines: int = 2, load_s: float = 10.0, **more: object) -> Rig:
    return Rig(engines=engines, script=talk(40, 60), engine={"load_s": load_s}, **more)  # type: ignore[arg-type]


@played
async def test_the_caller_cannot_undo_the_hold_of_a_weight_update():
    rig = loading()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        group.create_task(rig.scheduler.update_weights(1))
        await later(1)
        before = rig.sampled
        async with asyncio.TaskGroup() as others:
            others.create_task(rig.scheduler.resume())
            await later(5)
            assert rig.sampled == before
            assert rig.holders() == {"weight update"}
    assert rig.holders() == set()


@played
async def test_a_weight_update_does_not_undo_the_callers_suspension():
    rig = loading()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.suspend()
        await rig.scheduler.update_weights(1)
        before = rig.sampled
        await later(100)
        assert rig.sampled == before
        await rig.scheduler.resume()


@played
async def test_get_batch_releases_the_callers_hold_and_nobody_elses():
    rig = loading(load_s=50.0)
    await rig.scheduler.suspend()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.update_weights(1))
        await later(1)
        group.create_task(rig.full(1))
        await later(10)
        assert rig.holders() == {"weight update"}
        assert rig.sampled == 0
    assert rig.holders() == set()


@played
async def test_a_weight_update_that_fails_lets_go():
    rig = loading()
    await rig.full(0)
    for engine in rig.engines:
        engine.refuses["load"] = RuntimeError("disk full")
    with pytest.raises(EngineError, match="disk full"):
        await rig.scheduler.update_weights(1)
    assert rig.machine._books.holds == {}


@played
async def test_an_engine_that_cannot_take_new_weights_is_lost_and_the_others_go_on():
    rig = loading()
    await rig.full(0)
    rig.engine.refuses["load"] = RuntimeError("disk full")
    report = await rig.scheduler.update_weights(1)
    assert report["version"] == 1
    assert "disk full" in rig.scheduler.status().lost_engines["infer-0"]
    assert (await rig.full(1)).meta_info["version"] == 1


@played
async def test_an_engine_that_hangs_with_new_weights_is_lost_in_time():
    rig = loading(config={"load_timeout_s": 20.0})
    await rig.full(0)
    asked = now()
    rig.engine.hang()
    await rig.scheduler.update_weights(1)
    assert now() - asked <= 30 + 20
    assert [*rig.scheduler.status().lost_engines] == ["infer-0"]


@played
async def test_a_version_that_is_not_newer_is_refused_with_nothing_changed():
    rig = loading()
    await rig.scheduler.update_weights(3)
    for version in (3, 1):
        with pytest.raises(Refused, match=f"new weights need a version above 3, got {version}"):
            await rig.scheduler.update_weights(version)
    assert rig.holders() == set()


@played
async def test_an_update_reports_how_much_each_engine_was_given():
    torch = pytest.importorskip("torch")
    rig = Rig(engines=2)
    tensors = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}
    assert (await rig.scheduler.update_weights(1, tensors))["bytes"] == 3 * 5 * 4 + 7 * 2
    assert (await rig.scheduler.update_weights(2))["bytes"] == 0


@played
async def test_an_update_reports_version_checksum_and_durations():
    rig = loading()
    report = await rig.scheduler.update_weights(1, {"w": 1.0})
    assert report["version"] == 1
    assert report["checksum"]
    assert report["update_duration_ms"] == pytest.approx(10_000)
    assert report["suspend_duration_ms"] == 0
    assert rig.scheduler.status().version_is == "acknowledged by the engines"


class Disagreeing(Watched):
    """The second of them understands weights in its own way."""

    def _acknowledge(self) -> Acknowledgement:
        said = super()._acknowledge()
        return but(said, checksum="other") if self.name == "infer-1" and self.version else said


@played
async def test_engines_that_disagree_about_the_same_weights_do_not_both_serve():
    rig = loading(engine_class=Disagreeing)
    await rig.scheduler.initialize()
    await rig.scheduler.update_weights(1, {"w": 1.0})
    lost = rig.scheduler.status().lost_engines
    assert [*lost] == ["infer-1"]
    assert "checksum" in lost["infer-1"]


@played
async def test_steps_are_no_versions_once_somebody_told_of_weights():
    rig = loading()
    await rig.scheduler.update_weights(1)
    assert (await rig.full(50)).meta_info["version"] == 1


@played
async def test_two_weight_updates_at_once_end_with_the_newer_weights_and_nobody_holding():
    rig = loading()
    await rig.scheduler.initialize()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(rig.scheduler.update_weights(1, {"w": 1.0}))
        second = group.create_task(rig.scheduler.update_weights(2, {"w": 2.0}))
    assert {engine.version for engine in rig.engines} == {2}
    assert first.result()["checksum"] != second.result()["checksum"]
    assert rig.holders() == set()
