"""Training and validation on one cluster."""

import asyncio
from functools import partial

import pytest
from tests.rollout.kit import Rig, at, later, now, played
from tests.rollout.toys import Echo, Slow, talk

from windrow import RolloutScheduler
from windrow.errors import ConfigError
from windrow.sources.lists import ListSource
from windrow.trajectory import Task


def both(**train: object) -> tuple[Rig, RolloutScheduler]:
    """A rig for training, and a validation of six tasks, one attempt each, beside it."""
    rig = Rig(engines=2, **train)  # type: ignore[arg-type]
    return rig, rig.join("val", group_size=1, tasks=exam())


def exam(tasks: int = 6) -> ListSource:
    return ListSource(Task(ordinal=0, seed=seed) for seed in range(tasks))


def ordinals(rig: Rig) -> list[int]:
    return sorted(rig.log.plays.elements())


@played
async def test_ledgers_are_apart():
    rig, val = both()
    await rig.full(0)
    await rig.full(0, -1, of=val)
    ledgers = rig.scheduler.ledger()
    assert (ledgers["train"].groups.delivered, ledgers["train"].attempts.admitted) == (4, 8)
    assert (ledgers["val"].groups.delivered, ledgers["val"].attempts.admitted) == (6, 6)
    assert val.ledger() is not None
    assert val.ledger()["val"].groups.delivered == 6


@played
async def test_validation_plays_its_list_again_for_each_new_step():
    rig, val = both()
    seen = []
    for step in (0, 10, 20):
        batch = await rig.full(step, -1, of=val)
        assert batch.meta_info["last"] is True
        assert (batch.batch["policy_versions"].max().item(), len(batch)) == (step, 6)
        seen.append(sorted(batch.batch["episode_scores"].tolist()))
    assert rig.log.plays == dict.fromkeys(range(6), 3)
    assert seen[0] == seen[1] == seen[2]


@played
async def test_validation_of_the_same_step_again_is_the_same_batch():
    rig, val = both()
    first, again = [await rig.full(5, -1, of=val) for _ in range(2)]
    assert first.meta_info["batch_id"] == again.meta_info["batch_id"]
    assert ordinals(rig) == [*range(6)]


@played
async def test_a_part_of_the_list_begins_anew_too():
    rig, val = both()
    for step in range(3):
        assert len(await rig.full(step, 4, of=val)) == 4
    assert [rig.log.plays[ordinal] for ordinal in range(4)] == [3, 3, 3, 3]


@played
async def test_a_refused_validation_does_not_cost_the_next_one_its_list():
    rig, val = both()
    await rig.full(0, -1, of=val)
    for _ in range(2):
        with pytest.raises(Exception, match="batch size"):
            await val.get_batch(at(1), 0)
    assert len(await rig.full(1, -1, of=val)) == 6


@played
async def test_a_cancelled_validation_is_played_whole_when_it_is_asked_for_again():
    rig, val = both(env=Echo)
    await rig.scheduler.initialize()
    waiting = asyncio.ensure_future(rig.batch(0, -1, of=val))
    await later(0.55)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert len(await rig.full(0, -1, of=val)) == 6


@played
async def test_training_goes_on_while_validation_is_played():
    rig, val = both(env=partial(Echo, turns=2), config={"staleness": 1.0})
    async with asyncio.TaskGroup() as group:
        validation = group.create_task(rig.full(0, -1, of=val))
        for step in range(3):
            assert len(await rig.full(step)) == 8
    assert len(validation.result()) == 6
    assert set(validation.result().batch["env_ids"].tolist()) == {0}


@played
async def test_both_wait_at_once_and_both_are_served():
    rig, val = both(script=talk(30, 40))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.full(0)), group.create_task(rig.full(0, -1, of=val))]
    assert [len(task.result()) for task in tasks] == [8, 6]


@played
async def test_shutting_validation_down_leaves_training_working():
    rig, val = both()
    await rig.full(0, -1, of=val)
    await val.shutdown()
    for step in range(1, 4):
        assert len(await rig.full(step)) == 8
    assert await val.get_batch(at(9), -1) is None


@played
async def test_shutting_training_down_leaves_validation_working():
    rig, val = both(config={"staleness": 1.0})
    await rig.full(0)
    await rig.scheduler.shutdown()
    assert len(await rig.full(1, -1, of=val)) == 6
    assert [engine._state.state for engine in rig.engines] == ["up", "up"]


@pytest.mark.parametrize("mode", ["train", "val"])
@played
async def test_a_waiting_get_batch_of_the_one_that_is_shut_down_ends_with_none(mode: str):
    slow = partial(Slow, seconds=30.0, slow=frozenset(range(1000)))
    rig = Rig(engines=2, env=slow)
    schedulers = {"train": rig.scheduler, "val": rig.join("val", slow, group_size=1, tasks=exam())}
    waits = {
        "train": asyncio.ensure_future(rig.batch(0, 8)),
        "val": asyncio.ensure_future(rig.batch(0, -1, of=schedulers["val"])),
    }
    await later(10)
    asked = now()
    await schedulers[mode].shutdown()
    assert await waits.pop(mode) is None
    assert now() - asked <= 5
    ((_, other),) = waits.items()
    batch = await other
    assert batch is not None


@played
async def test_after_its_scheduler_was_shut_down_a_mode_can_have_another():
    rig, val = both()
    await rig.full(0, -1, of=val)
    await val.shutdown()
    again = rig.join("val", group_size=1, tasks=exam(3))
    assert len(await rig.full(1, -1, of=again)) == 3
    assert len(await rig.full(1)) == 8


@played
async def test_after_the_last_scheduler_the_cluster_has_new_engines_for_the_next():
    rig = Rig()
    await rig.full(0)
    await rig.scheduler.shutdown()
    assert len(await rig.full(0, of=rig.join("train"))) == 8


@played
async def test_training_can_be_begun_anew_beside_a_validation():
    rig, val = both(config={"staleness": 1.0})
    await rig.full(0)
    await later(0.5)
    await rig.scheduler.shutdown()
    again = rig.join("train")
    for step in (1, 2):
        assert len(await rig.full(step, of=again)) == 8
    assert len(await rig.full(2, -1, of=val)) == 6


@played
async def test_environments_of_the_one_that_is_shut_down_are_closed():
    rig = Rig(engines=2)
    val = rig.join("val", partial(Echo, step_s=50.0, close_s=2.0), group_size=1, tasks=exam())
    await rig.scheduler.initialize()
    waiting = asyncio.ensure_future(rig.batch(0, -1, of=val))
    await later(10)
    assert len(rig.log.open) == 4
    await val.shutdown()
    await waiting
    await later(5)
    assert rig.log.open == set()
    assert len(await rig.full(0)) == 8


@played
async def test_the_gate_is_one_for_both():
    rig, val = both(script=talk(30, 40))
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(1)
        await val.suspend()
        before = rig.sampled
        await later(50)
        assert rig.sampled == before
        await rig.scheduler.resume()


@played
async def test_other_settings_after_collection_began_are_refused_and_say_where_they_go():
    rig = Rig()
    await rig.full(0)
    with pytest.raises(
        ConfigError, match=r"make both schedulers before the first get_batch, or put them into config\."
    ):
        rig.join("val", group_size=4)
    assert len(await rig.full(1)) == 8


@played
async def test_a_validation_with_the_configured_settings_may_come_later():
    rig = Rig()
    await rig.full(0)
    val = rig.join("val", group_size=1, tasks=exam())
    assert len(await rig.full(0, -1, of=val)) == 6


@played
async def test_metrics_of_one_are_not_counted_for_the_other():
    rig, val = both()
    train, validation = await rig.full(0), await rig.full(0, -1, of=val)
    assert train.meta_info["metrics"]["batch/trajectories_total"] == 8
    assert validation.meta_info["metrics"]["batch/trajectories_total"] == 6


@played
async def test_both_make_their_first_call_at_once():
    rig, val = both()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.initialize())
        group.create_task(val.initialize())
        group.create_task(val.initialize())
    assert len(await rig.full(0)) == 8
    assert len(rig.machine.status().workers) == 2
