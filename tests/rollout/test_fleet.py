"""Engines agree about the weights they serve, or do not serve."""

import asyncio

import pytest
from tests.rollout.kit import Rig, later, played
from tests.rollout.toys import Watched, talk

from windrow.engines.protocol import Acknowledgement
from windrow.errors import EngineError, Refused
from windrow.types import How


@played
async def test_engines_that_begin_with_different_weights_are_refused():
    rig = Rig(engines=2)
    rig.engines[1]._checksum = "another"
    with pytest.raises(EngineError, match="another on engine infer-1; give all engines the same weights"):
        await rig.batch(0)


@played
async def test_an_engine_that_loads_something_else_is_lost_and_the_others_go_on():
    rig = Rig(engines=2)
    await rig.full(0)

    async def wrong(version: int, weights: object) -> Acknowledgement:
        return Acknowledgement(version=version, checksum="garbled")

    rig.engines[1].load = wrong  # type: ignore[method-assign]
    report = await rig.scheduler.update_weights(1, {})
    assert report["checksum"] != "garbled"
    assert "checksum" in rig.scheduler.status().lost_engines["infer-1"]
    await rig.full(1)
    assert {engine.engine for engine in rig.machine.status().engines} == {"infer-0"}


@played
async def test_an_engine_that_confirms_another_version_is_lost():
    rig = Rig(engines=2)
    await rig.full(0)

    async def behind(version: int, weights: object) -> Acknowledgement:
        return Acknowledgement(version=version - 1, checksum="")

    rig.engines[0].load = behind  # type: ignore[method-assign]
    await rig.scheduler.update_weights(5, {})
    assert "it was given version 5 and says that it serves 4" in rig.scheduler.status().lost_engines["infer-0"]


@played
async def test_weights_that_fit_nowhere_are_refused_and_nothing_changes():
    rig = Rig(engines=2)
    await rig.full(0)
    for engine in rig.engines:
        engine.refuses["load"] = Refused("there is no tensor 'w'")
    with pytest.raises(Refused, match="no tensor 'w'"):
        await rig.scheduler.update_weights(1, {"w": 1})
    assert (rig.machine.version, rig.scheduler.status().lost_engines, rig.holders()) == (0, {}, set())
    for engine in rig.engines:
        del engine.refuses["load"]
    await rig.scheduler.update_weights(1, {"v": 1})
    await rig.full(1)


@played
async def test_new_weights_let_a_run_go_on_that_the_breaker_had_stopped():
    rig = Rig(config={"breaker_share": 0.5, "retry_after_s": 0.0, "engine_retries": 1000})
    await rig.scheduler.initialize()
    rig.engine.refuses["generate"] = EngineError("logits are not finite")
    with pytest.raises(Refused, match="logits are not finite"):
        await rig.batch(0)
    del rig.engine.refuses["generate"]
    await rig.scheduler.update_weights(1, {"v": 1})
    assert len(await rig.full(1)) == 8


@played
async def test_a_refused_call_changes_nothing():
    rig = Rig()
    await rig.scheduler.suspend()
    with pytest.raises(Refused, match="multiple of the group size"):
        await rig.batch(step=7, n=3)
    assert rig.machine.version == 0
    assert rig.holders() == {"caller"}


@played
async def test_a_step_that_goes_back_is_refused():
    rig = Rig()
    await rig.full(8)
    with pytest.raises(Refused, match="global_step went back from 8 to 2"):
        await rig.batch(2)
    await rig.full(9)


@played
async def test_a_cluster_can_be_used_again_after_the_last_scheduler_left():
    rig = Rig()
    await rig.full(0)
    await rig.scheduler.shutdown()
    again = rig.join("train")
    assert len(await rig.full(0, of=again)) == 8
    await again.shutdown()


class SlowToHush(Watched):
    """Takes a while until its gate is closed."""

    async def suspend(self, how: How) -> None:
        await later(1)
        await super().suspend(how)


@played
async def test_an_engine_that_comes_back_during_a_suspension_is_quiet_before_anything_is_sent_there():
    rig = Rig(engines=2, engine_class=SlowToHush, engine={"restore_s": 5.0}, script=talk(200, 300), num_env_groups=8)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(1)
    await rig.scheduler.shrink_sampler([1])
    coming = asyncio.ensure_future(rig.scheduler.expand_sampler([1]))
    await later(1)
    await rig.scheduler.suspend()
    sampled = rig.sampled
    await coming
    await later(20)
    assert [engine.state for engine in rig.machine.status().engines] == ["serving", "serving"]
    assert rig.sampled == sampled
    await rig.scheduler.resume()
    assert await waiting is not None
