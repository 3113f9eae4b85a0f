"""`shrink_sampler` and `expand_sampler`, sentence by sentence."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, all_words, later, now, played
from tests.rollout.toys import Echo, talk

from windrow.errors import EngineError, EngineLost, Refused


def busy(engines: int = 3, **more: Any) -> Rig:
    given: dict[str, Any] = {"script": talk(40, 60), "tasks": 4, "keep": True} | more
    return Rig(engines=engines, **given)


def states(rig: Rig) -> dict[str, str]:
    return {engine.engine: engine.state for engine in rig.machine.status().engines}


def routing(rig: Rig) -> object:
    """Who serves, who is held, and what plays where."""
    status = rig.machine.status()
    engines = [(engine.engine, engine.state, engine.holders, engine.attempts) for engine in status.engines]
    episodes = [(sighting.attempt, sighting.engine) for sighting in rig.scheduler.status().episodes]
    return engines, episodes, status.lanes


# shrink: engines on these devices stop serving and release them


@played
async def test_a_shrunk_engine_gives_its_devices_back_and_serves_no_more():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    assert (await rig.engines[1].health()).state == "released"
    await rig.full(0)
    assert rig.engines[1].requests == []
    assert states(rig) == {"infer-0": "serving", "infer-1": "away", "infer-2": "serving"}


# their requests move to the others with what they have generated so far


@played
async def test_requests_continue_from_their_last_token_on_the_survivors():
    rig, calm = busy(), busy()
    await calm.full(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        leaving = {request.id.rpartition(".")[0] for request in rig.engines[1].requests}
        report = await rig.scheduler.shrink_sampler([1])
    assert all_words(rig) == all_words(calm)
    assert rig.sampled == calm.sampled
    continued = [request for engine in rig.engines for request in engine.requests if request.sampled]
    assert {request.id.rpartition(".")[0] for request in continued} == leaving
    assert {request.sampled for request in continued} == {20}
    assert report["remapped"] == report["aborted"] == len(leaving)


@played
async def test_survivors_never_pause():
    rig, calm = busy(), busy()
    await calm.full(0)
    began = now()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.shrink_sampler([1])
    stayed = {request.id for request in rig.engine.requests if not request.sampled}
    assert timeline(rig, stayed, since=began) == timeline(calm, stayed)


def timeline(rig: Rig, requests: set[str], since: float = 0.0) -> dict[tuple[str, float], list[int]]:
    """When what was answered."""
    return {
        (name, round(when - since, 6)): chunk.token_ids.tolist()
        for engine in rig.engines
        for when, name, chunk in engine.chunks
        if name in requests
    }


@played
async def test_a_shrink_reports_counts_and_durations():
    rig = busy(engine={"release_s": 2.0})
    await rig.scheduler.initialize()
    report = await rig.scheduler.shrink_sampler([0, 2])
    assert report == {
        "shrink_duration_ms": pytest.approx(2000),
        "offload_ranks": [0, 2],
        "engines": ["infer-0", "infer-2"],
        "aborted": 0,
        "remapped": 0,
    }


@played
async def test_a_shrink_takes_no_longer_than_the_engines_own_release():
    rig = busy(engine={"release_s": 2.0})
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        asked = now()
        await rig.scheduler.shrink_sampler([0, 2])
        assert now() - asked == pytest.approx(2.0)


@played
async def test_what_is_shrunk_already_stays_so():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    report = await rig.scheduler.shrink_sampler([1])
    assert (report["engines"], report["offload_ranks"], report["aborted"]) == ([], [], 0)
    assert states(rig)["infer-1"] == "away"


# refused, with nothing changed


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([0, 1, 2], "would leave no engine"),
        ([7], r"no engine has devices \[7\]; known devices: \[0, 1, 2\]"),
        ([1, 7], r"no engine has devices \[7\]"),
        ([], "no engine has devices"),
    ],
)
@played
async def test_a_shrink_that_cannot_be_is_refused_with_nothing_changed(devices: list[int], why: str):
    rig = busy()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        before = routing(rig)
        with pytest.raises(Refused, match=why):
            await rig.scheduler.shrink_sampler(devices)
        assert routing(rig) == before
        assert [engine._state.state for engine in rig.engines] == ["up", "up", "up"]


@played
async def test_the_last_engine_cannot_be_shrunk_even_when_others_will_be_back():
    rig = busy(engine={"restore_s": 10.0})
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([0, 1])
    with pytest.raises(Refused, match="would leave no engine for train; there: infer-2"):
        await rig.scheduler.shrink_sampler([2])


@played
async def test_the_devices_of_a_dead_engine_are_known_and_free():
    rig = busy()
    await rig.scheduler.initialize()
    rig.engines[1].die()
    await later(40)
    assert (await rig.scheduler.shrink_sampler([1]))["engines"] == []
    assert (await rig.scheduler.shrink_sampler([1, 2]))["engines"] == ["infer-2"]
    with pytest.raises(Refused, match=r"no engine has devices \[7\]"):
        await rig.scheduler.shrink_sampler([1, 7])


# expand: engines on these devices serve again


@played
async def test_an_expanded_engine_serves_again():
    rig = busy(tasks=8, config={"staleness": 1.0})
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1, 2])
    report = await rig.scheduler.expand_sampler([1, 2])
    assert report == {
        "expand_duration_ms": 0,
        "load_ranks": [1, 2],
        "engines": ["infer-1", "infer-2"],
        "remapped": 0,
    }
    await rig.full(0)
    assert all(engine.requests for engine in rig.engines)


@played
async def test_running_episodes_are_rebalanced_without_losing_a_token():
    rig, calm = busy(env=partial(Echo, turns=2)), busy(env=partial(Echo, turns=2))
    await calm.full(0)
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1, 2])
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        report = await rig.scheduler.expand_sampler([1, 2])
    assert report["remapped"] >= 5  # of 8; some are moved on when the second one comes
    assert all_words(rig) == all_words(calm)
    assert rig.sampled == calm.sampled
    assert all(any(request.sampled == 20 for request in engine.requests) for engine in rig.engines[1:])


@played
async def test_weights_that_were_missed_are_loaded_before_it_serves():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    await rig.scheduler.update_weights(1, {"w": 1.0})
    assert [engine.version for engine in rig.engines] == [1, 0, 1]
    await rig.scheduler.expand_sampler([1])
    assert [engine.version for engine in rig.engines] == [1, 1, 1]
    assert len({engine._checksum for engine in rig.engines}) == 1


@played
async def test_with_skip_load_nothing_is_loaded_and_tokens_are_of_the_current_version():
    rig = busy(engines=2)
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    await rig.scheduler.update_weights(1, {"w": 1.0})
    rig.engines[1]._checksum = rig.engines[0]._checksum  # somebody else put the weights there
    report = await rig.scheduler.expand_sampler([1], skip_load=True)
    assert report["load_ranks"] == []
    batch = await rig.full(0)
    assert len(batch) == 8
    assert set(batch.batch["policy_versions"][batch.batch["response_mask"]].tolist()) == {1}


@played
async def test_with_skip_load_an_engine_that_has_old_weights_does_not_serve():
    rig = busy(engines=2)
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    await rig.scheduler.update_weights(1, {"w": 1.0})
    with pytest.raises(EngineError, match=r"was undone: .* initial on engine infer-1"):
        await rig.scheduler.expand_sampler([1], skip_load=True)
    assert [engine.state for engine in rig.machine.status().engines] == ["serving", "away"]
    await rig.scheduler.expand_sampler([1])
    assert len(await rig.full(0)) == 8


@played
async def test_an_expand_of_what_serves_does_nothing():
    rig = busy()
    await rig.scheduler.initialize()
    report = await rig.scheduler.expand_sampler([1])
    assert (report["engines"], report["load_ranks"], report["remapped"]) == ([], [], 0)


@played
async def test_unknown_devices_cannot_be_expanded_to():
    rig = busy()
    await rig.scheduler.initialize()
    with pytest.raises(Refused, match=r"no engine has devices \[9\]"):
        await rig.scheduler.expand_sampler([9])


@played
async def test_generation_shrinks_and_expands_around_each_step_of_training():
    rig = busy(tasks=16)
    for step in range(4):
        await rig.scheduler.expand_sampler([1, 2])
        assert len(await rig.full(step)) == 8
        await rig.scheduler.shrink_sampler([1, 2])
        await rig.scheduler.update_weights(step + 1, {"w": float(step)})
    assert [engine.version for engine in rig.engines] == [4, 3, 3]


@played
async def test_a_suspended_cluster_can_shrink_and_expand_and_stays_suspended():
    rig = busy()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.suspend()
        await rig.scheduler.shrink_sampler([1])
        await rig.scheduler.expand_sampler([1])
        before = rig.sampled
        await later(100)
        assert rig.sampled == before
        await rig.scheduler.resume()
    assert rig.log.made == 8


@played
async def test_an_engine_that_comes_back_while_all_are_suspended_is_quiet_too():
    rig = busy()
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    await rig.scheduler.suspend()
    await rig.scheduler.expand_sampler([1])
    assert rig.engines[1]._gate_closed
    await rig.scheduler.resume()
    assert not any(engine._gate_closed for engine in rig.engines)


@played
async def test_an_engine_that_dies_during_its_release_is_lost_and_nothing_else():
    rig = busy()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2.05)
        rig.engines[1].refuses["release"] = EngineLost("power cut")
        said = await rig.scheduler.shrink_sampler([1, 2])
    assert len(waiting.result()) == 8
    assert said["engines"] == ["infer-1", "infer-2"]
    assert states(rig) == {"infer-0": "serving", "infer-2": "away"}


@played
async def test_an_engine_that_dies_while_it_is_away_does_not_keep_the_others_away():
    rig = busy(tasks=8)
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1, 2])
    rig.engines[1].die()
    assert (await rig.scheduler.expand_sampler([1, 2]))["engines"] == ["infer-2"]
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]
    await rig.scheduler.shrink_sampler([1, 2])
    await rig.scheduler.expand_sampler([1, 2])
    assert states(rig) == {"infer-0": "serving", "infer-2": "serving"}
    assert len(await rig.full(0)) == 8


@played
async def test_an_engine_that_is_lost_before_its_release_begins_does_not_break_the_shrink():
    rig = busy()
    await rig.scheduler.initialize()
    rig.engines[1].hang()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.suspend())
        await later(1)
        shrinking = group.create_task(_outcome(rig.scheduler.shrink_sampler([1])))
    assert isinstance(shrinking.result(), dict | EngineError), repr(shrinking.result())
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]


async def _outcome(call: Any) -> object:
    """What a call gives, or raises."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 -- the test looks at it
        return error
