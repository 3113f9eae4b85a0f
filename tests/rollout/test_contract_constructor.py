"""The constructor, sentence by sentence."""

import asyncio
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, played

from windrow import DataProto, EnvManagerConfig, RolloutConfig, RolloutScheduler, Sampling
from windrow.errors import ConfigError


@played
async def test_an_unknown_mode_is_an_error_that_names_the_known_ones():
    rig = Rig()
    with pytest.raises(ConfigError, match=r"mode must be train or val, got 'trian'; did you mean train\?"):
        RolloutScheduler(RolloutConfig(), EnvManagerConfig(), rig.devices, rig.cluster, "trian")


@pytest.mark.parametrize("mode", ["", "TRAIN", "test", None])
def test_a_mode_is_train_or_val(mode: str):
    with pytest.raises(ConfigError, match="mode must be train or val"):
        Rig(mode=mode)  # type: ignore[arg-type]  # that is the point


@played
async def test_nothing_runs_yet():
    rig = Rig(engines=2)
    await asyncio.sleep(100)
    assert kit.premises.tasks() == {asyncio.current_task()}
    assert [engine._state.state for engine in rig.engines] == ["cold", "cold"]
    assert rig.log.made == 0
    assert rig.scheduler.ledger() == {}
    assert rig.scheduler.metrics() == {}
    assert rig.scheduler.status().scheduling is None


def test_it_needs_no_event_loop():
    assert Rig(engines=2).scheduler.status().scheduling is None


@played
async def test_a_second_scheduler_of_the_same_mode_is_refused():
    rig = Rig()
    with pytest.raises(ConfigError, match="cluster infer has a train scheduler already"):
        rig.join("train")
    await rig.full()


@played
async def test_an_unknown_environment_is_refused_with_the_nearest_name():
    rig = Rig(mode="val")
    with pytest.raises(ConfigError, match=r"unknown environment 'gues'; did you mean guess\?"):
        RolloutScheduler(RolloutConfig(), EnvManagerConfig(env="gues"), rig.devices, rig.cluster, "train")


@played
async def test_a_refused_scheduler_leaves_no_trace():
    rig = Rig(mode="val")
    with pytest.raises(ConfigError, match="batch_size must be a multiple of group_size"):
        RolloutScheduler(
            RolloutConfig(rollout_batch_size=7, breaker_share=1.0),
            EnvManagerConfig(group_size=2),
            rig.devices,
            rig.cluster,
            "train",
        )
    assert len(await rig.full(0, of=rig.join("train"))) == 8


@played
async def test_what_holds_for_the_whole_cluster_must_be_said_the_same_way_twice():
    rig = Rig()
    with pytest.raises(ConfigError, match=r"stall_after_s holds for all schedulers of a cluster, got 300\.0 and 9\.0"):
        RolloutScheduler(
            RolloutConfig(stall_after_s=9.0, breaker_share=1.0), EnvManagerConfig(), rig.devices, rig.cluster, "val"
        )


@pytest.mark.parametrize("wrong", [{"num_workers": 0}, {"sampling": Sampling(temperature=-1.0)}, {"step_timeout_s": 0}])
@played
async def test_settings_made_in_python_are_checked_too(wrong: dict[str, Any]):
    rig = Rig()
    with pytest.raises(ConfigError, match="env_manager_config: "):
        RolloutScheduler(RolloutConfig(), EnvManagerConfig(**wrong), rig.devices, rig.cluster, "val")


@played
async def test_a_collator_is_applied_to_each_batch():
    def mark(batch: DataProto) -> DataProto:
        return DataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info={"marked": len(batch)})

    batch = await Rig(collator=mark).full()
    assert batch.meta_info["marked"] == 8
    assert batch.meta_info["batch_id"] == 0


@played
async def test_a_collator_that_raises_ends_the_call_and_loses_no_batch():
    times = iter([True, False])

    def collate(batch: DataProto) -> DataProto:
        if next(times):
            raise KeyError("labels")
        return batch

    rig = Rig(collator=collate)
    with pytest.raises(ConfigError, match="collator: KeyError: 'labels'"):
        await rig.batch(0)
    batch = await rig.full(0)
    assert batch.meta_info["batch_id"] == 0


@played
async def test_a_collator_that_returns_something_else_is_named():
    rig = Rig(collator=lambda batch: batch.batch)  # type: ignore[arg-type, return-value]  # that is the point
    with pytest.raises(ConfigError, match="the collator returned TensorDict; it takes a DataProto and returns one"):
        await rig.batch()
