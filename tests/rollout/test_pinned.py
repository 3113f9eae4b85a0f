"""Validation at one version: engines set aside that keep their weights, or no new weights until it is over."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, later, played, words
from tests.rollout.toys import Echo, talk

from windrow import RolloutScheduler
from windrow.errors import ConfigError, EngineError, Refused, TrainError
from windrow.sources.lists import ListSource
from windrow.trajectory import Task, Trajectory

TASKS = 6


def both(engines: int = 3, *, turns: int = 4, **given: Any) -> tuple[Rig, RolloutScheduler]:
    """Training with a bound, and a validation of long episodes beside it."""
    config = {"staleness": 1.0} | given.pop("config", {})
    rig = Rig(engines=engines, script=talk(10, 40), config=config, env=partial(Echo, turns=2), **given)
    exam = ListSource(Task(ordinal=0, seed=seed) for seed in range(TASKS))
    return rig, rig.join("val", partial(Echo, turns=turns), group_size=1, tasks=exam)


def versions(batch: Any) -> set[int]:
    return set(batch.batch["policy_versions"].flatten().tolist()) - {-1}


def at(rig: Rig) -> list[int]:
    return [engine.version for engine in rig.machine.status().engines]


async def heard(val: RolloutScheduler) -> dict[int, Trajectory]:
    """What becomes of each task of a validation, by its ordinal."""
    played: dict[int, Trajectory] = {}
    val.listeners.append(lambda made: played.update({each.task.ordinal: each for each in made}))
    return played


# aside


@played
async def test_engines_set_aside_keep_their_weights_while_training_goes_on_under_newer_ones():
    rig, val = both()
    await rig.scheduler.update_weights(1)
    await rig.full(0)
    async with val.set_aside(1) as aside, asyncio.TaskGroup() as group:
        assert len(aside) == 1
        validation = group.create_task(rig.full(0, -1, of=val))
        await later(3.0)
        seen = set()
        for version in (2, 3):
            await rig.scheduler.update_weights(version)
            seen |= versions(await rig.full(version - 1))
            assert not validation.done()
        assert {2, 3} <= seen
        assert sorted(at(rig)) == [1, 3, 3]
    assert (versions(validation.result()), validation.result().meta_info["version"]) == ({1}, 1)
    assert at(rig) == [3, 3, 3], "those that were aside have caught up"


@played
async def test_nothing_that_was_sampled_is_lost_or_changed_by_setting_aside_and_bringing_back():
    quiet, alone = both()
    expected = await heard(alone)
    await quiet.full(0, -1, of=alone)
    rig, val = both(keep=True)
    found = await heard(val)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(1.05)
        async with val.set_aside(2):
            validation = group.create_task(rig.full(0, -1, of=val))
            await later(1.0)
            await rig.scheduler.update_weights(1)
            await later(1.0)
            await rig.scheduler.update_weights(2)
            await validation
    await rig.full(1)
    assert {ordinal: words(each) for ordinal, each in found.items()} == {
        ordinal: words(each) for ordinal, each in expected.items()
    }
    heard_tokens = sum(len(chunk.token_ids) for engine in rig.engines for _, _, chunk in engine.chunks)
    assert heard_tokens == rig.sampled, "whatever was sampled was heard"
    asked_again = [request for engine in rig.engines for request in engine.requests if request.sampled]
    assert asked_again, "attempts that moved went on from their last token"


@played
async def test_validation_is_played_on_the_engines_aside_alone_and_training_on_the_others_alone():
    rig, val = both()
    found = await heard(val)
    await rig.full(0)
    async with val.set_aside(["infer-1"]) as aside, asyncio.TaskGroup() as group:
        assert aside == ("infer-1",)
        group.create_task(rig.full(0, -1, of=val))
        await later(0.5)
        before = len(rig.engines[1].requests)
        await rig.full(1)
        asked = rig.engines[1].requests[before:]
    assert {engine for each in found.values() for engine in each.engines} == {"infer-1"}
    assert {request.id.split(".")[0] for request in asked} <= {
        str(each.attempt).split(".")[0] for each in found.values()
    }


@played
async def test_engines_that_came_back_play_training_again():
    rig, val = both()
    await rig.full(0)
    async with val.set_aside(2):
        await rig.full(0, -1, of=val)
    before = [len(engine.requests) for engine in rig.engines]
    for step in (1, 2):
        await rig.full(step)
    assert all(len(engine.requests) > count for engine, count in zip(rig.engines, before, strict=True))


@played
async def test_a_step_that_counts_as_a_version_leaves_those_aside_alone():
    rig, val = both()
    await rig.full(0)
    async with val.set_aside(1), asyncio.TaskGroup() as group:
        validation = group.create_task(rig.full(0, -1, of=val))
        await later(1.0)
        for step in (1, 2):
            await rig.full(step)
    assert versions(validation.result()) == {0}
    assert at(rig) == [2, 2, 2]


@played
async def test_a_validation_that_is_broken_off_brings_its_engines_back():
    rig, val = both()
    await rig.full(0)

    async def validate() -> None:
        async with val.set_aside(1):
            await rig.full(0, -1, of=val)

    running = asyncio.ensure_future(validate())
    await later(1.0)
    await rig.scheduler.update_weights(1)
    running.cancel()
    await asyncio.wait({running})
    assert at(rig) == [1, 1, 1]
    assert {mode for engine in rig.machine.status().engines for mode in engine.usable_for} == {"train", "val"}
    assert len(await rig.full(1)) == 8


@played
async def test_when_all_engines_aside_are_lost_the_validation_fails_and_training_goes_on():
    rig, val = both()
    await rig.full(0)
    async with val.set_aside(1) as (name,):
        validation = asyncio.ensure_future(rig.batch(0, -1, of=val))
        await later(1.0)
        rig.queue.fleet.lose(name, "it was pulled out")
        with pytest.raises(EngineError, match=f"all engines that were set aside for it are lost: {name}"):
            await validation
        assert len(await rig.full(1)) == 8
    assert len(await rig.full(1, -1, of=val)) == TASKS


@played
async def test_what_cannot_be_set_aside_is_refused_in_words():
    rig, val = both()
    await rig.scheduler.initialize()
    for count in (0, 3, 4):
        with pytest.raises(Refused, match=f"of 3 engines .* 1 to 2 can be set aside, .* got {count}"):
            async with val.set_aside(count):
                pass
    with pytest.raises(Refused, match="engine 'infer-7' cannot be set aside"):
        async with val.set_aside(["infer-7"]):
            pass
    async with val.set_aside(1):
        with pytest.raises(Refused, match=r"engines are set aside already: infer-\d"):
            async with val.set_aside(1):
                pass
    with pytest.raises(ConfigError, match="call set_aside of the val scheduler"):
        async with rig.scheduler.set_aside(1):
            pass
    assert len(await rig.full(0)) == 8


@played
async def test_a_scheduler_may_be_shut_down_while_engines_are_aside():
    rig, val = both()
    await rig.full(0)
    async with val.set_aside(1):
        for scheduler in rig.schedulers:
            await scheduler.shutdown()
    assert await rig.batch(1) is None


# between


PINNED = {"pin_validation": True}


@played
async def test_new_weights_are_refused_while_a_pinned_validation_is_played_and_rollouts_go_on():
    rig, val = both(config=PINNED)
    await rig.scheduler.update_weights(1)
    await rig.full(0)
    async with asyncio.TaskGroup() as group:
        validation = group.create_task(rig.full(0, -1, of=val))
        await later(1.0)
        sampled = rig.sampled
        with pytest.raises(Refused, match=r"new weights are refused while 'val' is played, .*pinned to version 1"):
            await rig.scheduler.update_weights(2)
        assert len(await rig.full(1)) == 8
        assert rig.sampled > sampled
        assert not validation.done()
    assert versions(validation.result()) == {1}
    await rig.scheduler.update_weights(2)
    assert versions(await rig.full(1, -1, of=val)) == {2}


@played
async def test_so_is_a_step_that_counts_as_new_weights():
    rig, val = both(config=PINNED)
    await rig.full(0)
    async with asyncio.TaskGroup() as group:
        validation = group.create_task(rig.full(0, -1, of=val))
        await later(1.0)
        with pytest.raises(Refused, match="step 1 counts as new weights, which are refused while 'val' is played"):
            await rig.full(1)
    assert versions(validation.result()) == {0}
    assert len(await rig.full(1)) == 8


@played
async def test_a_pinned_validation_of_two_versions_is_an_error_that_says_so():
    """Somebody gave an engine other weights behind everybody's back."""
    rig, val = both(engines=1, config=PINNED)
    await rig.scheduler.initialize()
    validation = asyncio.ensure_future(rig.batch(0, -1, of=val))
    await later(2.0)
    await rig.engine.load(5, None)
    with pytest.raises(TrainError, match=r"6 episodes is not of one version: 0 in 4, 5 in 6; .*set engines aside"):
        await validation


@played
async def test_without_a_pin_new_weights_come_in_the_middle_and_every_token_says_so():
    rig, val = both()
    await rig.full(0)
    async with asyncio.TaskGroup() as group:
        validation = group.create_task(rig.full(0, -1, of=val))
        await later(2.0)
        await rig.scheduler.update_weights(1)
    assert versions(validation.result()) == {0, 1}
