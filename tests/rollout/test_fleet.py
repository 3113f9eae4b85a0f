"""Engines agree about the weights they serve, or do not serve."""

import pytest
from tests.rollout.kit import Rig, played

from windrow.engines.protocol import Acknowledgement
from windrow.errors import EngineError


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
