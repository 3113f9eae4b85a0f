"""`get_batch`, sentence by sentence."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, at, later, now, played
from tests.rollout.toys import Echo, Slow

from windrow import DataProto
from windrow.errors import ConfigError, Refused, WindrowError

# data.meta_info["global_step"] names the step (missing: a clear error)


@pytest.mark.parametrize("meta", [{}, {"global_step": None}, {"global_step": "3"}, {"global_step": -1}])
@played
async def test_a_step_that_is_missing_or_none_is_an_error_that_says_how(meta: dict[str, Any]):
    rig = Rig()
    with pytest.raises(ConfigError, match=r"get_batch needs data.meta_info\['global_step'\], a number from 0 up"):
        await rig.scheduler.get_batch(DataProto(meta_info=meta), 8)
    assert rig.log.made == 0


@played
async def test_the_step_is_in_the_batch():
    rig = Rig()
    assert [(await rig.full(step)).meta_info["global_step"] for step in (3, 4, 9)] == [3, 4, 9]


# starts collection if it is not running, advances the step, resumes if suspended


@played
async def test_the_first_call_starts_everything():
    rig = Rig(engines=2)
    await rig.full()
    assert [engine._state.state for engine in rig.engines] == ["up", "up"]
    assert rig.log.made >= 8


@played
async def test_the_step_counts_as_the_version_while_nobody_tells_of_new_weights():
    rig = Rig()
    assert [(await rig.full(step)).meta_info["version"] for step in (0, 1, 5)] == [0, 1, 5]
    assert rig.engine.version == 5
    assert rig.scheduler.status().version_is == "the step number"


@played
async def test_it_resumes_what_the_caller_suspended():
    rig = Rig()
    await rig.scheduler.suspend()
    assert len(await rig.full(0)) == 8
    assert rig.holders() == set()


# returns as soon as n trajectories of complete, usable groups exist anywhere


@played
async def test_one_slow_group_does_not_hold_up_the_others_under_a_bound():
    slow = partial(Slow, seconds=1000.0, slow=frozenset({0}))
    rig = Rig(env=slow, config={"staleness": 1.0}, step_timeout_s=2000.0)
    await rig.full(0)
    assert now() < 100
    await rig.full(1)
    assert now() < 100


@played
async def test_synchronously_the_slow_group_is_waited_for():
    rig = Rig(env=partial(Slow, seconds=1000.0, slow=frozenset({0})), step_timeout_s=2000.0)
    await rig.full(0)
    assert now() > 1000


@played
async def test_it_returns_in_the_moment_in_which_the_last_attempt_ends():
    rig = Rig(script=lambda _: [97] * 9 + [256])
    await rig.full(0)
    assert now() == pytest.approx(1.0)


@played
async def test_what_is_ready_is_handed_out_at_once():
    rig = Rig(config={"staleness": 1.0})
    await rig.full(0)
    await later(100)
    asked = now()
    await rig.full(1)
    assert now() == asked


@played
async def test_a_slow_engine_that_takes_its_devices_back_does_not_hold_up_what_is_ready():
    rig = Rig(engines=2, engine={"restore_s": 50.0}, config={"staleness": 1.0})
    await rig.scheduler.update_weights(1)
    await rig.full(1)
    await rig.scheduler.shrink_sampler([1])
    await later(100)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.expand_sampler([1]))
        await asyncio.sleep(0)
        asked = now()
        await rig.full(2)
        assert now() == asked


# n counts trajectories and must be a multiple of the group size


@pytest.mark.parametrize("n", [2, 8, 16])
@played
async def test_a_batch_has_exactly_the_size_that_was_asked_for(n: int):
    rig = Rig(engines=2, env=partial(Echo, turns=2))
    batch = await rig.full(0, n)
    assert len(batch) == n
    groups = batch.batch["traj_group_id"].tolist()
    assert all(groups.count(group) == 2 for group in groups)
    assert len(set(batch.batch["traj_id"].tolist())) == n


@pytest.mark.parametrize(("n", "nearest"), [(9, "8 or 12"), (3, "4"), (0, "4"), (-2, "4"), (1001, "1000 or 1004")])
@played
async def test_another_size_is_refused_with_the_nearest_ones(n: int, nearest: str):
    rig = Rig(group_size=4)
    match = rf"multiple of the group size \(4\), got {n}; nearest: {nearest}$"
    with pytest.raises(Refused, match=match):
        await rig.batch(0, n)
    assert rig.ledger.groups.admitted == 0
    assert len(await rig.full(0, 8)) == 8


@played
async def test_in_step_mode_n_counts_trajectories_and_there_are_more_rows():
    rig = Rig(env=partial(Echo, turns=3), config={"rows": "turn"})
    batch = await rig.full(0, 4)
    assert len(batch) == 12
    assert len(set(batch.batch["traj_id"].tolist())) == 4


@pytest.mark.parametrize("n", ["8", 8.0, None])
@played
async def test_a_size_that_is_no_number_changes_nothing(n: Any):
    rig = Rig()
    with pytest.raises((ConfigError, Refused), match="batch size"):
        await rig.batch(0, n)
    assert len(await rig.full(0, 8)) == 8


# n = -1 means all


@played
async def test_minus_one_plays_the_source_to_its_end():
    rig = Rig(tasks=11)
    batch = await rig.full(0, -1)
    assert len(batch) == 22
    assert batch.meta_info["last"] is True
    assert await rig.batch(1, -1) is None


@played
async def test_minus_one_is_refused_on_a_source_without_end():
    rig = Rig()
    with pytest.raises(Refused, match="needs a task source that ends; set max_tasks"):
        await rig.batch(0, -1)
    assert len(await rig.full(0, 8)) == 8


@played
async def test_max_tasks_ends_a_source_of_seeds():
    rig = Rig(max_tasks=5)
    assert len(await rig.full(0, -1)) == 10


# if the source ends first, what remains is returned once with last=True, then None


@played
async def test_what_remains_is_returned_once_and_then_nothing():
    rig = Rig(tasks=5)
    batches = [await rig.full(0), await rig.full(1)]
    assert [(len(batch), batch.meta_info["last"]) for batch in batches] == [(8, False), (2, True)]
    assert [await rig.batch(step) for step in (2, 3, 3)] == [None, None, None]


@played
async def test_the_last_batch_comes_again_for_its_own_step():
    rig = Rig(tasks=5)
    await rig.full(0)
    assert [(await rig.full(1)).meta_info["batch_id"] for _ in range(3)] == [1, 1, 1]
    assert await rig.batch(2) is None


@played
async def test_a_source_that_ends_with_a_full_batch_gives_no_empty_one():
    rig = Rig(tasks=8)
    assert [len(await rig.full(step)) for step in (0, 1)] == [8, 8]
    assert await rig.batch(2) is None


# metrics of the step are in meta_info["metrics"], a batch_id beside them


@played
async def test_metrics_and_a_batch_id_are_in_the_meta_info():
    rig = Rig(env=partial(Echo, turns=2))
    first, second = await rig.full(0), await rig.full(1)
    assert [first.meta_info["batch_id"], second.meta_info["batch_id"]] == [0, 1]
    metrics = second.meta_info["metrics"]
    assert metrics["batch/trajectories_total"] == 8
    assert metrics["episode/turns/mean"] == 2
    assert metrics["engine/version"] == 1
    assert metrics["batch/policy_tokens_total"] == second.batch["response_mask"].sum().item()


# a batch counts as trained when get_batch is called with a larger step, or on mark_trained


@played
async def test_the_same_step_again_returns_the_same_batch():
    rig = Rig(config={"staleness": 1.0})
    first, again = await rig.full(0), await rig.full(0)
    assert again.meta_info["batch_id"] == first.meta_info["batch_id"]
    assert again.batch["input_ids"].equal(first.batch["input_ids"])
    assert again.batch["traj_id"].equal(first.batch["traj_id"])
    assert rig.ledger.groups.delivered == 4


@played
async def test_the_same_step_with_another_size_is_refused():
    rig = Rig()
    await rig.full(0, 8)
    with pytest.raises(Refused, match="step 0 was delivered to 'train' as batch 0 of 8"):
        await rig.batch(0, 4)


@played
async def test_a_larger_step_counts_the_batch_before_as_trained():
    rig = Rig()
    await rig.full(0)
    assert (rig.ledger.groups.trained, rig.ledger.groups.delivered) == (0, 4)
    await rig.full(1)
    assert (rig.ledger.groups.trained, rig.ledger.groups.delivered) == (4, 4)


@played
async def test_mark_trained_counts_it_at_once_and_the_second_time_does_nothing():
    rig = Rig()
    batch = await rig.full(0)
    for _ in range(2):
        await rig.scheduler.mark_trained(batch.meta_info["batch_id"])
        assert (rig.ledger.groups.trained, rig.ledger.groups.delivered) == (4, 0)
    assert len(rig.queue._dispatch.shelf) == rig.ledger.groups.alive


@played
async def test_a_batch_that_never_was_cannot_be_trained_on_and_the_run_goes_on():
    rig = Rig()
    await rig.full(0)
    with pytest.raises(WindrowError, match="batch 99 was trained and never delivered"):
        await rig.scheduler.mark_trained(99)
    assert len(await rig.full(1)) == 8


@played
async def test_two_waits_at_once_are_refused():
    rig = Rig()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(0.5)
        with pytest.raises(Refused, match="'train' waits for a batch already"):
            await rig.scheduler.get_batch(at(1), 8)
    assert len(waiting.result()) == 8


@played
async def test_nothing_is_collected_before_the_first_batch_is_asked_for():
    rig = Rig()
    await rig.scheduler.initialize()
    await later(1000)
    assert (rig.log.made, rig.ledger.groups.admitted) == (0, 0)


@played
async def test_a_synchronous_run_samples_each_batch_from_one_version():
    rig = Rig(engines=2)
    for step in range(4):
        batch = await rig.full(step)
        versions = batch.batch["policy_versions"]
        assert set(versions[batch.batch["response_mask"]].tolist()) == {step}
