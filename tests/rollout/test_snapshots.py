"""A run that is saved, ended, and gone on with by other schedulers on another cluster."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, later, played
from tests.rollout.test_rewards import Telling
from tests.rollout.toys import Echo, Watched, talk

from windrow import DataProto, RolloutScheduler
from windrow.errors import ConfigError, DataError, Refused
from windrow.rollout.snapshots import FORMAT, Format
from windrow.sources.lists import ListSource
from windrow.trajectory import Task
from windrow.types import to_bytes

EXACT = ("input_ids", "response_mask", "infer_logprobs", "scores", "policy_versions", "turn_ids", "turn_states")


def exact(batch: Any) -> dict[str, Any]:
    """Everything of a batch that does not depend on when it was played."""
    return {name: batch.batch[name].tolist() for name in (*EXACT, "env_ids")} | {"version": batch.meta_info["version"]}


def run(**given: Any) -> Rig:
    usual: dict[str, Any] = {"env": partial(Echo, turns=2, step_s=0.3), "engines": 2, "script": talk(4, 40)}
    config = {"order_rows": "task"} | given.pop("config", {})
    return Rig(**usual | given, config=config)


async def left(rig: Rig, *waiting: "asyncio.Future[Any]") -> bytes:
    """What is saved of a run, which then is no more."""
    saved = rig.scheduler.snapshot()
    for scheduler in rig.schedulers:
        await scheduler.shutdown()
    if waiting:
        await asyncio.wait(waiting)
    return bytes(saved)


async def step_of(rig: Rig, step: int, *, told: bool) -> Any:
    """One step of a synchronous run, which tells the engines of new weights or does not."""
    if told:
        await rig.scheduler.update_weights(step + 1)
    return exact(await rig.full(step))


async def undisturbed(told: bool, **given: Any) -> list[Any]:
    rig = run(**given)
    return [await step_of(rig, step, told=told) for step in range(4)]


async def broken(moment: float, told: bool, **given: Any) -> list[Any]:
    """The same run, saved when its second step has gone on for so long, and gone on with elsewhere."""
    first = run(**given)
    batches = [await step_of(first, 0, told=told)]
    waiting = asyncio.ensure_future(step_of(first, 1, told=told))
    await later(moment)
    waiting.cancel()
    second = run(**given)
    second.scheduler.restore(await left(first, waiting))
    return batches + [await step_of(second, step, told=told) for step in (1, 2, 3)]


@pytest.mark.parametrize("told", [True, False], ids=["weights", "steps"])
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.7, 2.0, 3.3, 6.0, 60.0])
@played
async def test_a_synchronous_run_goes_on_with_the_same_batches_as_if_nothing_had_happened(moment: float, told: bool):
    assert await broken(moment, told) == await undisturbed(told)


@pytest.mark.parametrize("moment", [0.7, 2.0, 4.0, 60.0])
@played
async def test_so_does_one_whose_filter_replaces_groups(moment: float):
    given: dict[str, Any] = {"filter": "varied", "script": talk(4, 7), "env": Echo}
    assert await broken(moment, True, **given) == await undisturbed(True, **given)


@played
async def test_rows_in_the_order_of_tasks_are_the_same_however_they_were_played():
    """Fewer slots and slower environments deliver groups in another order."""
    many = await run(engines=3).full(0)
    few = await run(engines=1, num_env_groups=1, env=partial(Echo, turns=2, step_s=3.0)).full(0)
    assert exact(many) == exact(few)
    assert many.batch["env_ids"].tolist() == [0, 1] * 4
    assert many.batch["traj_group_id"].tolist() == sorted(many.batch["traj_group_id"].tolist())


@played
async def test_rows_are_in_the_order_of_delivery_unless_another_is_asked_for():
    slow = run(config={"order_rows": "delivered", "staleness": 1.0}, env=Uneven)
    groups = (await slow.full(0)).batch["traj_group_id"].tolist()
    assert groups != sorted(groups)
    ordered = run(config={"staleness": 1.0}, env=Uneven)
    groups = (await ordered.full(0)).batch["traj_group_id"].tolist()
    assert groups == sorted(groups)


class Uneven(Echo):
    """The first tasks take longest."""

    async def step(self, action: str) -> Any:
        await asyncio.sleep(20.0 - self.task.ordinal)
        return await super().step(action)


@played
async def test_a_batch_that_was_not_trained_on_is_handed_out_again_under_its_number():
    first = run()
    await first.full(0)
    before = await first.full(1)
    second = run()
    second.scheduler.restore(await left(first))
    after = await second.full(1)
    assert after.meta_info["batch_id"] == before.meta_info["batch_id"] == 1
    assert after.batch["traj_id"].equal(before.batch["traj_id"])
    assert exact(after) == exact(before)
    assert second.log.made == 0


@pytest.mark.parametrize("moment", [0.3, 2.0, 5.0, 9.0])
@played
async def test_no_task_comes_twice_and_none_is_left_out(moment: float):
    """Saved every so often in the middle of an asynchronous run, until its tasks are over."""
    seen: Counter[str] = Counter()
    rig, step = run(tasks=21, config={"staleness": 1.5}), 0
    while True:
        waiting = asyncio.ensure_future(rig.batch(step))
        await later(moment)
        if not waiting.done():
            other = run(tasks=21, config={"staleness": 1.5})
            other.scheduler.restore(await left(rig, waiting))
            rig, waiting = other, asyncio.ensure_future(other.batch(step))
        batch = await waiting
        if batch is None:
            break
        seen.update(first_words(batch))
        step += 1
    assert seen == {f"task {ordinal}": 2 for ordinal in range(21)}


def first_words(batch: Any) -> list[str]:
    """What each row begins with: the name of its task."""
    return [bytes(ids[:9]).decode().split("\n")[0] for ids in batch.batch["input_ids"].tolist()]


@played
async def test_what_was_played_and_waits_for_its_score_is_not_played_again():
    slow = Telling(seconds=50.0)
    first = run(reward=slow)
    waiting = asyncio.ensure_future(first.batch(0))
    await later(30.0)
    second = run(reward=Telling())
    second.scheduler.restore(await left(first, waiting))
    batch = await second.full(0)
    assert (len(slow.asked), len(batch), second.log.made) == (8, 8, 0)
    assert sorted(batch.batch["episode_scores"].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


# both modes


def with_validation(**given: Any) -> tuple[Rig, RolloutScheduler]:
    rig = run(**given)
    exam = ListSource(Task(ordinal=0, seed=seed) for seed in range(6))
    return rig, rig.join("val", group_size=1, tasks=exam)


def asked(step: int, **said: Any) -> DataProto:
    return DataProto(meta_info={"global_step": step, **said})


@played
async def test_validation_goes_on_too_and_a_pass_that_was_over_is_not_played_again():
    first, val = with_validation()
    await first.full(0)
    before = {name: await val.get_batch(asked(0, **{"pass": name}), -1) for name in ("", "greedy")}
    second, val = with_validation()
    val.restore(await left(first))
    for name, batch in before.items():
        again: Any = await val.get_batch(asked(0, **{"pass": name}), -1)
        assert batch is not None
        assert again.meta_info["batch_id"] == batch.meta_info["batch_id"]
        assert exact(again) == exact(batch)
    assert second.log.made == 0
    assert len(await second.full(1, -1, of=val)) == 6


@played
async def test_a_validation_that_was_under_way_is_played_from_its_beginning():
    first, val = with_validation()
    await first.full(0)
    waiting = asyncio.ensure_future(val.get_batch(asked(0), -1))
    await later(1.5)
    second, other = with_validation()
    second.scheduler.restore(await left(first, waiting))
    assert len(await second.full(0, -1, of=other)) == 6
    assert len(await second.full(1)) == 8


@played
async def test_a_validation_that_joins_later_finds_where_it_was():
    first, val = with_validation()
    await first.full(0, -1, of=val)
    second = run()
    second.scheduler.restore(await left(first))
    await second.scheduler.initialize()
    exam = ListSource(Task(ordinal=0, seed=seed) for seed in range(6))
    joined = second.join("val", group_size=1, tasks=exam)
    again = await second.full(0, -1, of=joined)
    assert (again.meta_info["batch_id"], second.log.made) == (0, 0)
    assert len(await second.full(1, -1, of=joined)) == 6


@played
async def test_steps_and_streams_are_counted_on():
    first = run()
    await first.full(3)
    second = run()
    second.scheduler.restore(await left(first))
    with pytest.raises(Refused, match="global_step went back from 3 to 2"):
        await second.batch(2)


# weights


@played
async def test_nothing_is_sampled_before_the_engines_have_the_weights_of_then():
    first = run(config={"staleness": 1.0})
    await first.scheduler.update_weights(7)
    await first.full(0)
    await later(1.0)
    second = run(config={"staleness": 1.0})
    second.scheduler.restore(await left(first))
    await second.scheduler.initialize()
    await later(100.0)
    assert second.sampled == 0
    with pytest.raises(Refused, match=r"restored at version 7 .*call update_weights\(7, weights\)"):
        await second.full(0)
    with pytest.raises(Refused, match="a version above 6, got 6"):
        await second.scheduler.update_weights(6)
    await second.scheduler.update_weights(7)
    versions = (await second.full(1)).batch["policy_versions"]
    assert set(versions.flatten().tolist()) == {-1, 7}
    with pytest.raises(Refused, match="a version above 7, got 7"):
        await second.scheduler.update_weights(7)


@played
async def test_engines_that_begin_with_the_version_of_then_need_not_be_told():
    first = run()
    await first.scheduler.update_weights(7)
    await first.full(0)
    second = run(engine_class=partial(Watched, version=7))
    second.scheduler.restore(await left(first))
    versions = (await second.full(1)).batch["policy_versions"]
    assert set(versions.flatten().tolist()) == {-1, 7}
    with pytest.raises(Refused, match="a version above 7, got 7"):
        await second.scheduler.update_weights(7)


@played
async def test_newer_weights_are_as_good():
    first = run()
    await first.scheduler.update_weights(7)
    await first.full(0)
    second = run()
    second.scheduler.restore(await left(first))
    await second.scheduler.update_weights(8)
    assert (await second.full(1)).meta_info["version"] == 8


# what cannot be


@played
async def test_a_scheduler_that_has_begun_cannot_be_restored_and_goes_on():
    first = run()
    await first.full(0)
    with pytest.raises(Refused, match="restore it before it begins"):
        first.scheduler.restore(first.scheduler.snapshot())
    assert len(await first.full(1)) == 8


@played
async def test_other_settings_than_those_of_then_are_refused_by_name():
    saved = await left(run())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"group_size": 4}, "train group_size 2 and is to go on with 4"),
        ({"config": {"staleness": 1.0}}, r"train staleness 0\.0 and is to go on with 1\.0"),
        ({"config": {"env_retries": 5}}, "env_retries 2 and is to go on with 5"),
    ]
    for given, words in cases:
        other = run(**given)
        other.scheduler.restore(saved)
        with pytest.raises(ConfigError, match=words):
            await other.batch(0)


@played
async def test_a_snapshot_of_a_run_that_has_not_begun_is_its_beginning():
    first = run(tasks=4)
    second = run(tasks=4)
    second.scheduler.restore(await left(first))
    third = run(tasks=4)
    third.scheduler.restore(await left(second))
    assert len(await third.full(0)) == 8


@played
async def test_bytes_that_are_no_snapshot_restore_nothing():
    rig = run()
    for data, words in [(b"", "cannot be read"), (b"\x93\x01\x02", "cannot be read")]:
        with pytest.raises(DataError, match=words):
            rig.scheduler.restore(data)
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}; this version reads format {FORMAT}"):
        rig.scheduler.restore(to_bytes(Format(format=FORMAT + 1)))
    assert len(await rig.full(0)) == 8


@played
async def test_after_its_shutdown_there_is_no_snapshot():
    rig = run()
    await rig.full(0)
    await rig.scheduler.shutdown()
    with pytest.raises(Refused, match="take snapshots before that"):
        rig.scheduler.snapshot()
