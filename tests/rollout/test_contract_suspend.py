"""`suspend` and `resume`, sentence by sentence."""

import asyncio
from functools import partial

import pytest
from tests.rollout.kit import Rig, all_words, later, now, played
from tests.rollout.toys import Echo, Slow, talk

from windrow.requests import Sampling
from windrow.types import How

HOWS: list[How] = ["interrupt", "drain", "freeze"]
every_how = pytest.mark.parametrize("how", HOWS)


def busy(engines: int = 2, how: How = "interrupt", **more: object) -> Rig:
    """Long answers, so that a suspension comes in the middle of many."""
    config = {"suspend_mode": how, "staleness": 1.0}
    return Rig(engines=engines, script=talk(40, 60), config=config, **more)  # type: ignore[arg-type]


# when it returns no request is generating on any engine of the cluster


@every_how
@played
async def test_no_token_is_sampled_between_suspend_and_resume(how: How):
    rig = busy(how=how, env=partial(Echo, turns=2))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.suspend()
        before, asked = rig.sampled, now()
        await later(500)
        assert rig.sampled == before > 0
        assert now() == asked + 500
        assert [engine._gate_closed for engine in rig.engines] == [True, True]
        await rig.scheduler.resume()
    assert len(waiting.result()) == 8
    assert rig.sampled > before


@played
async def test_a_suspension_before_anything_runs_holds_what_comes_later():
    rig = busy()
    await rig.scheduler.suspend()
    await later(100)
    assert rig.sampled == 0
    await rig.full(0)
    assert rig.sampled > 0


@played
async def test_interrupting_takes_no_time_and_draining_as_long_as_the_longest_answer():
    took = {}
    for how in HOWS:
        rig = busy(how=how)
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0))
            await later(2.05)
            asked = now()
            await rig.scheduler.suspend()
            took[how] = now() - asked
            await rig.scheduler.resume()
    assert took["interrupt"] == took["freeze"] == 0
    assert 1 < took["drain"] < 5


# in bounded time, also when an engine or a client has died


@every_how
@played
async def test_a_hung_engine_costs_at_most_the_time_limit(how: How):
    rig = busy(how=how)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2)
        rig.engine.hang()
        asked = now()
        await rig.scheduler.suspend()
        assert now() - asked <= 30 + 5  # suspend_timeout_s, and the interruption that ends a drain
        await rig.scheduler.resume()
    assert len(waiting.result()) == 8
    assert [*rig.scheduler.status().lost_engines] == ["infer-0"]


@every_how
@played
async def test_a_dead_engine_costs_nothing(how: How):
    rig = busy(how=how)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2)
        rig.engine.die()
        asked = now()
        await rig.scheduler.suspend()
        assert now() - asked < 7  # the other one may drain
        before = rig.sampled
        await later(100)
        assert rig.sampled == before
        await rig.scheduler.resume()
    assert len(waiting.result()) == 8


@played
async def test_an_engine_that_refuses_to_be_quiet_is_lost():
    rig = busy()
    await rig.scheduler.initialize()
    rig.engine.refuses["suspend"] = RuntimeError("no")
    await rig.scheduler.suspend()
    assert "RuntimeError: no" in rig.scheduler.status().lost_engines["infer-0"]
    assert len(await rig.full(0)) == 8


@played
async def test_draining_that_takes_too_long_becomes_an_interruption():
    config = {"suspend_mode": "drain", "suspend_timeout_s": 10.0}
    rig = Rig(script=talk(500, 600), config=config, sampling=Sampling(max_tokens=1000), keep=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2)
        await rig.scheduler.suspend()
        assert now() == pytest.approx(12)
        before = rig.sampled
        await later(100)
        assert rig.sampled == before
        await rig.scheduler.resume()
    assert rig.scheduler.status().lost_engines == {}
    assert {turn.requests for kept in rig.kept.values() for turn in kept.turns} == {2}


@played
async def test_a_client_that_died_does_not_hold_it_up():
    rig = busy(how="drain")
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(2)
    waiting.cancel()
    await asyncio.wait({waiting})
    asked = now()
    await rig.scheduler.suspend()
    assert now() - asked < 7


@played
async def test_an_engine_that_takes_its_devices_back_does_not_hold_it_up():
    rig = Rig(engines=2, engine={"restore_s": 100.0}, config={"suspend_timeout_s": 5.0})
    await rig.scheduler.initialize()
    await rig.scheduler.shrink_sampler([1])
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.expand_sampler([1]))
        await later(1)
        asked = now()
        await rig.scheduler.suspend()
        assert now() - asked <= 5


@played
async def test_an_engine_that_takes_new_weights_does_not_hold_it_up_for_longer_than_its_limit():
    rig = Rig(engines=2, engine={"load_s": 100.0}, config={"suspend_timeout_s": 5.0})
    await rig.scheduler.initialize()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.update_weights(1))
        await later(1)
        asked = now()
        await rig.scheduler.suspend()
        assert now() - asked <= 5
        assert "caller" in rig.holders()


# half-generated turns are kept and go on after resume


@every_how
@played
async def test_half_a_turn_goes_on_from_its_last_token(how: How):
    rig, calm = (busy(how=how, tasks=4, keep=True) for _ in range(2))
    await calm.full(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.suspend()
        await rig.scheduler.resume()
    assert all_words(rig) == all_words(calm)
    assert rig.sampled == calm.sampled
    requests = {turn.requests for kept in rig.kept.values() for turn in kept.turns}
    assert requests == ({2} if how == "interrupt" else {1})


# idempotent


@played
async def test_suspending_twice_is_suspending_once():
    rig = busy()
    for _ in range(2):
        await rig.scheduler.suspend()
    await rig.scheduler.resume()
    assert rig.holders() == set()
    assert len(await rig.full(0)) == 8


@played
async def test_resuming_what_is_not_suspended_does_nothing():
    rig = busy()
    for _ in range(2):
        await rig.scheduler.resume()
    assert len(await rig.full(0)) == 8


# environment steps and rewards go on meanwhile


@played
async def test_environments_go_on_while_generation_is_suspended():
    rig = Rig(env=partial(Echo, turns=2, step_s=10.0), script=talk(4, 4))
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(1)
        await rig.scheduler.suspend()
        assert rig.log.steps == 0
        await later(100)
        assert rig.log.steps == 8
        stages = {sighting.stage for sighting in rig.scheduler.status().episodes}
        assert stages == {"generating on infer-0"}
        await rig.scheduler.resume()


@played
async def test_an_episode_that_only_waits_for_its_environment_ends_during_a_suspension():
    rig = Rig(env=partial(Slow, seconds=50.0, slow=frozenset(range(4))), script=talk(4, 4))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2)
        await rig.scheduler.suspend()
        await waiting
        assert now() < 60
    assert rig.holders() == {"caller"}


@played
async def test_a_lease_does_not_run_out_while_its_engine_is_held():
    rig = Rig(config={"episode_timeout_s": 50.0})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(0.1)
        await rig.scheduler.suspend()
        await later(1000)
        await rig.scheduler.resume()
    assert len(waiting.result()) == 8
    assert rig.ledger.attempts.dropped == {}


# generation goes on, under the engines' current weights


@played
async def test_after_a_resume_tokens_are_of_the_current_weights():
    rig = busy(keep=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        await rig.scheduler.suspend()
        await rig.scheduler.update_weights(7)
        assert rig.holders() == {"caller"}
        await rig.scheduler.resume()
    for kept in rig.kept.values():
        assert [part.version for part in kept.chains[0].segments if part.author == "policy"] == [0, 7]
