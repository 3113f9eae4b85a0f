"""Whatever is done to the engines, and however the work is shared, the same trajectories come out."""

import asyncio
import random
from functools import cache, partial
from typing import Any

import pytest
from tests.rollout.kit import Key, Rig, all_words, later, play, played
from tests.rollout.toys import Breaking, Echo, talk

from windrow.errors import Refused
from windrow.types import How

TASKS = 16


def quiet_rig(engines: int = 3, **more: Any) -> Rig:
    given: dict[str, Any] = {"env": partial(Echo, turns=3, step_s=0.7), "script": talk(10, 50), "tasks": TASKS}
    config = {"staleness": 4.0, "rollout_batch_size": 8} | more.pop("config", {})
    return Rig(engines=engines, keep=True, group_size=4, config=config, **given | more)


@cache
def undisturbed() -> dict[Key, Any]:
    found: dict[Key, Any] = {}

    async def scene() -> None:
        rig = quiet_rig()
        while await rig.batch(len(rig.kept), 8):
            pass
        found.update(all_words(rig))

    play(scene())
    assert len(found) == TASKS * 4
    return found


async def collect(rig: Rig) -> None:
    """All there is, batch by batch."""
    step = 0
    while await rig.batch(step, 8):
        step += 1


@pytest.mark.parametrize(
    "given",
    [
        {"engines": 1},
        {"engines": 5},
        {"num_workers": 4},
        {"num_env_groups": 1},
        {"num_env_groups": 16},
        {"engine": {"stream_every": 1, "first_token_s": 0.3}},
        {"engine": {"token_s": 0.001}},
        {"config": {"staleness": 0.0}},
        {"config": {"staleness": 0.0, "tail": 0.5}},
        {"group_size_redundancy": 0, "env": partial(Echo, turns=3, step_s=0.1, start_s=2.0)},
    ],
    ids=str,
)
def test_who_plays_what_when_and_where_changes_nothing(given: dict[str, Any]):
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = quiet_rig(**given)
        await collect(rig)
        assert all_words(rig) == expected

    scene()


def test_the_same_run_twice_is_the_same_in_every_respect():
    seen = []

    @played
    async def scene() -> None:
        rig = quiet_rig()
        await collect(rig)
        seen.append([(key, repr(kept)) for key, kept in rig.kept.items()])

    scene()
    scene()
    assert seen[0] == seen[1]


def test_another_seed_is_another_run():
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = quiet_rig(config={"seed": 1})
        await collect(rig)
        found = all_words(rig)
        assert found.keys() == expected.keys()
        assert all(found[key] != expected[key] for key in found)

    scene()


def test_a_retry_samples_what_the_first_try_would_have():
    expected = undisturbed()

    @played
    async def scene() -> None:
        broken = partial(Breaking, at=1, turns=3, step_s=0.7, when=lambda task, before: before < 3)
        rig = quiet_rig(env=broken, config={"env_retries": 20})
        await collect(rig)
        assert all_words(rig) == expected
        assert rig.ledger.attempts.dropped["failed"] > 0

    scene()


def test_seats_of_one_group_say_different_things():
    found = undisturbed()
    for ordinal in range(TASKS):
        assert len({repr(found["train", ordinal, seat]) for seat in range(4)}) == 4


# random disturbances


@pytest.mark.parametrize("how", ["interrupt", "drain", "freeze"])
@pytest.mark.parametrize("seed", range(3))
def test_a_restless_caller_changes_nothing(seed: int, how: How):
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = quiet_rig(config={"suspend_mode": how}, engine={"load_s": 0.3, "release_s": 0.4, "restore_s": 0.5})
        await rig.scheduler.initialize()
        collecting = asyncio.ensure_future(collect(rig))
        done = await disturb(rig, random.Random(seed), collecting)
        await collecting
        assert all_words(rig) == expected
        assert rig.sampled == sum(kept.policy_tokens for kept in rig.kept.values())
        assert rig.scheduler.status().lost_engines == {}
        assert done > 20

    scene()


async def disturb(rig: Rig, chance: random.Random, collecting: "asyncio.Future[None]") -> int:
    """Do something to the engines again and again until everything is collected; says how often."""
    done = 0
    async with asyncio.TaskGroup() as group:
        while not collecting.done():
            await later(chance.uniform(0.0, 1.5))
            group.create_task(one_disturbance(rig, chance))
            done += 1
    await rig.scheduler.resume()
    return done


async def one_disturbance(rig: Rig, chance: random.Random) -> None:
    scheduler = rig.scheduler
    devices = chance.sample(range(3), chance.randint(1, 2))
    try:
        match chance.randrange(6):
            case 0 | 1:
                await scheduler.suspend()
                await later(chance.uniform(0.0, 2.0))
                await scheduler.resume()
            case 2:
                await scheduler.resume()
            case 3:
                await scheduler.update_weights(rig.machine.version + chance.randint(1, 2))
            case 4:
                await scheduler.shrink_sampler(devices)
            case _:
                await scheduler.expand_sampler(devices)
    except Refused:
        return


@pytest.mark.parametrize("seed", range(3))
def test_engines_that_die_one_after_the_other_change_nothing(seed: int):
    expected = undisturbed()

    @played
    async def scene() -> None:
        chance = random.Random(seed)
        rig = quiet_rig(engines=6)
        collecting = asyncio.ensure_future(collect(rig))
        for engine in chance.sample(rig.engines, 5):
            await later(chance.uniform(0.5, 4.0))
            if chance.random() < 0.5:
                engine.die()
            else:
                engine.hang()
        await collecting
        assert all_words(rig) == expected

    scene()


@played
async def test_a_caller_who_suspends_more_often_than_a_token_comes_does_not_fail_anybody():
    rig = Rig(engine={"first_token_s": 5.0}, tasks=4, keep=True)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(0.1)
        for _ in range(300):
            await rig.scheduler.suspend()
            await later(1)
            await rig.scheduler.resume()
            await later(1)
    assert len(waiting.result()) == 8
    assert rig.ledger.attempts.dropped == {}
