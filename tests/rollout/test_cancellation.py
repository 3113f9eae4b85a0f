"""A cancellation at every await of every call leaves nothing broken behind."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, at, later
from tests.rollout.striking import Moment, Strike, at_every_await, struck
from tests.rollout.toys import Echo, talk

from windrow.rollout.workers import EnvWorker

moments = pytest.mark.parametrize("moment", ["begin", "end"])

SLOW = {"load_s": 3.0, "release_s": 3.0, "restore_s": 3.0}


def rig_of(**more: Any) -> Rig:
    given: dict[str, Any] = {"engines": 2, "script": talk(20, 40), "engine": SLOW, "env": partial(Echo, turns=2)}
    return Rig(**given | {"config": {"staleness": 1.0, "suspend_mode": "drain"}} | more)


async def stream(rig: Rig) -> None:
    async with aclosing(rig.scheduler.stream()) as groups:
        count = 0
        async for _ in groups:
            count += 1
            if count == 2:
                return


Call = Callable[[Rig], Coroutine[Any, Any, Any]]
CALLS: dict[str, Call] = {
    "initialize": lambda rig: rig.scheduler.initialize(),
    "get_batch": lambda rig: rig.scheduler.get_batch(at(0), 8),
    "stream": stream,
    "suspend": lambda rig: rig.scheduler.suspend(),
    "resume": lambda rig: rig.scheduler.resume(),
    "update_weights": lambda rig: rig.scheduler.update_weights(5),
    "shrink_sampler": lambda rig: rig.scheduler.shrink_sampler([1]),
    "expand_sampler": lambda rig: rig.scheduler.expand_sampler([1]),
    "mark_trained": lambda rig: rig.scheduler.mark_trained(0),
}


@moments
@pytest.mark.parametrize("name", ["initialize", "get_batch", "stream", "suspend", "resume", "update_weights"])
def test_a_first_call_that_is_cancelled_leaves_the_rest_as_it_should_be(name: str, moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of()
        outcome = await struck(CALLS[name](rig), strike)
        assert isinstance(outcome, asyncio.CancelledError) == strike.fell
        assert len(await rig.full(0)) == 8
        await later(100)
        assert rig.holders() == set()
        assert len(await rig.full(1)) == 8

    assert at_every_await(scene, moment) >= 1


@moments
@pytest.mark.parametrize("name", [name for name in CALLS if name != "initialize"])
def test_a_call_that_is_cancelled_while_much_is_in_flight_leaves_the_rest_as_it_should_be(name: str, moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of()
        await rig.full(0)
        await later(1.05)
        if name == "resume":
            await rig.scheduler.suspend()
        if name == "expand_sampler":
            await rig.scheduler.shrink_sampler([1])
        outcome = await struck(CALLS[name](rig), strike)
        assert isinstance(outcome, asyncio.CancelledError) == strike.fell, repr(outcome)
        await later(100)
        assert rig.holders() <= {"caller"}
        for step in (1, 2):
            assert len(await rig.full(step)) == 8
        assert rig.scheduler.status().lost_engines == {}
        assert rig.holders() == set()

    least = 0 if name in ("mark_trained", "get_batch") else 1  # what is ready is not waited for
    assert at_every_await(scene, moment) >= least


@moments
def test_a_cancelled_get_batch_loses_no_batch(moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of(tasks=8, keep=True)
        await struck(rig.scheduler.get_batch(at(0), 8), strike)
        batches = [await rig.full(step) for step in (0, 1)]
        assert [len(batch) for batch in batches] == [8, 8]
        assert len({name for batch in batches for name in batch.non_tensor_batch["traj_name"]}) == 16
        assert await rig.batch(2) is None

    assert at_every_await(scene, moment) >= 1


@moments
def test_a_cancelled_validation_is_played_whole_when_it_is_asked_for_again(moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of(mode="val", tasks=6)
        await struck(rig.scheduler.get_batch(at(0), -1), strike)
        assert len(await rig.full(0, -1)) == 12
        assert len(await rig.full(1, -1)) == 12

    assert at_every_await(scene, moment) >= 1


@moments
def test_a_shutdown_that_is_cancelled_can_be_finished(moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of(env=partial(Echo, turns=2, close_s=2.0))
        await rig.full(0)
        await later(1.05)
        await struck(rig.scheduler.shutdown(), strike)
        await rig.scheduler.shutdown()
        assert kit.premises.tasks() == {asyncio.current_task()}
        assert [engine._state.state for engine in rig.engines] == ["dead", "dead"]

    assert at_every_await(scene, moment) >= 1


@moments
def test_a_shrink_that_is_cancelled_happens_whole_or_not_at_all(moment: Moment):
    async def scene(strike: Strike) -> None:
        rig = rig_of()
        await rig.full(0)
        await struck(rig.scheduler.shrink_sampler([1]), strike)
        await later(100)
        states = {engine.engine: engine.state for engine in rig.machine.status().engines}
        held = rig.engines[1]._state.state
        assert (states["infer-1"], held) in [("away", "released"), ("serving", "up")]
        await rig.scheduler.expand_sampler([1])
        assert len(await rig.full(1)) == 8

    assert at_every_await(scene, moment) >= 1


@moments
def test_an_episode_that_is_cancelled_anywhere_closes_its_environment_and_is_tried_again(
    moment: Moment, monkeypatch: pytest.MonkeyPatch
):
    plain = EnvWorker._play

    async def scene(strike: Strike) -> None:
        first = [True]

        async def play(worker: EnvWorker, *given: Any) -> None:
            if not first:
                return await plain(worker, *given)
            first.clear()
            await strike.upon(plain(worker, *given))
            return None

        monkeypatch.setattr(EnvWorker, "_play", play)
        slow = partial(Echo, turns=2, start_s=0.5, step_s=0.5, close_s=0.5)
        rig = rig_of(env=slow, tasks=4, keep=True, config={"episode_timeout_s": 100.0, "env_retries": 5})
        assert len(await rig.full(0)) == 8
        await later(10)
        assert rig.log.open == set()

    assert at_every_await(scene, moment) >= 6


@moments
def test_spares_that_are_cancelled_anywhere_close_their_environments(moment: Moment):
    """The group is full while its spares are at every possible place."""

    async def scene(strike: Strike) -> None:
        times = iter([0.0, 0.0, *(0.07 * strike.at for _ in range(100))])

        def env(log: Any) -> Echo:
            wait_s = next(times)
            return Echo(log, turns=2, start_s=wait_s, step_s=0.3, close_s=0.2)

        rig = Rig(
            env=env,
            script=talk(3, 3),
            group_size_redundancy=3,
            num_env_groups=1,
            tasks=3,
            config={"rollout_batch_size": 2},
        )
        for step in range(3):
            assert len(await rig.full(step, 2)) == 2
        assert rig.ledger.attempts.dropped == {"spare": 9}
        await later(10)
        assert rig.log.open == set()
        strike.fell = strike.at < 20

    assert at_every_await(scene, moment) == 19
