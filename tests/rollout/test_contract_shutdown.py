"""`shutdown`, sentence by sentence."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import RIGS, Rig, at, later, now, played
from tests.rollout.toys import Echo, EnvLog, Hanging, Slow, Watched, talk

from windrow.engines.protocol import Acknowledgement
from windrow.errors import Refused
from windrow.requests import Chunk, Request

# stops everything it started


@played
async def test_everything_that_was_started_is_stopped():
    rig = Rig(engines=2, env=partial(Echo, turns=3), config={"staleness": 1.0})
    await rig.full(0)
    await rig.scheduler.shutdown()
    assert kit.premises.tasks() == {asyncio.current_task()}
    assert [engine._state.state for engine in rig.engines] == ["dead", "dead"]
    assert rig.in_flight == 0
    assert rig.ledger.groups.alive == 0
    assert rig.ledger.groups.dropped == {"shutdown": 4}


@played
async def test_environments_in_play_are_closed_however_long_that_takes_within_their_grace():
    rig = Rig(env=partial(Echo, turns=3, close_s=3.0), config={"staleness": 1.0})
    await rig.full(0)
    await later(1)
    assert rig.log.open
    await rig.scheduler.shutdown()
    assert rig.log.open == set()


@played
async def test_spares_that_are_closing_when_everything_ends_are_closed():
    rig = Rig(env=partial(Echo, close_s=3.0), group_size_redundancy=2)
    await rig.full(0)
    await later(1)
    await rig.scheduler.shutdown()
    assert rig.log.open == set()


@played
async def test_what_was_delivered_stays_delivered():
    rig = Rig()
    batch = await rig.full(0)
    await rig.scheduler.shutdown()
    assert (rig.ledger.groups.delivered, rig.ledger.groups.dropped) == (4, {})
    assert len(batch) == 8


@played
async def test_nothing_needs_to_be_stopped_before_anything_began():
    rig = Rig()
    await rig.scheduler.shutdown()
    assert await rig.batch(0) is None


# within a bounded time


class ClosesNever(Echo):
    async def close(self) -> None:
        self.log.open.discard(self)
        await asyncio.get_running_loop().create_future()


class Stubborn(Echo):
    """Does not let itself be cancelled for a long time."""

    async def step(self, action: str) -> Any:
        until = now() + 10_000
        while now() < until:
            try:
                await later(until - now())
            except asyncio.CancelledError:
                continue
        return await super().step(action)


@played
async def test_an_environment_that_hangs_in_close_costs_its_grace():
    rig = Rig(env=partial(ClosesNever, step_s=100.0))
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(10)
    asked = now()
    await rig.scheduler.shutdown()
    assert now() - asked <= 5
    assert await waiting is None


@played
async def test_an_environment_that_ignores_its_cancellation_is_left_behind():
    rig = Rig(env=Stubborn)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(10)
    asked = now()
    await rig.scheduler.shutdown()
    assert now() - asked <= 60
    assert await waiting is None
    RIGS.remove(rig)  # its environments close when they care to
    await later(20_000)
    assert rig.log.open == set() or kit.premises.kills
    await kit.premises.end(rig.cluster)


class NeverClosing(Watched):
    """Does not end either, once it hangs."""

    async def close(self) -> None:
        if self._hangs:
            await asyncio.get_running_loop().create_future()
        await super().close()


@pytest.mark.parametrize("call", ["generate", "close"])
@played
async def test_an_engine_that_hangs_costs_its_time_limit(call: str):
    rig = Rig(engines=2, script=talk(40, 60), engine_class=NeverClosing if call == "close" else Watched)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(2)
    rig.engine.hang()
    asked = now()
    await rig.scheduler.shutdown()
    assert now() - asked <= 60
    assert await waiting is None


# a waiting get_batch ends with None


@pytest.mark.parametrize("env", [Echo, partial(Hanging, at=0), partial(Slow, seconds=1e4, slow=frozenset(range(99)))])
@played
async def test_a_waiting_get_batch_ends_with_none(env: Callable[[EnvLog], Echo]):
    rig = Rig(env=env)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(0.3)
    await rig.scheduler.shutdown()
    assert await waiting is None


@played
async def test_get_batch_after_it_is_none():
    rig = Rig()
    await rig.full(0)
    await rig.scheduler.shutdown()
    assert await rig.batch(0) is None
    assert await rig.batch(1) is None


class StartsSlowly(Watched):
    async def start(self) -> Acknowledgement:
        await later(10)
        return await super().start()


@played
async def test_a_get_batch_that_waits_for_the_engines_to_start_ends_with_none():
    rig = Rig(engine_class=StartsSlowly)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(5)
    await rig.scheduler.shutdown()
    assert await waiting is None


@played
async def test_a_get_batch_that_waits_for_engines_to_load_ends_with_none():
    rig = Rig(engine={"load_s": 50.0})
    await rig.full(0)
    waiting = asyncio.ensure_future(rig.batch(1))
    await later(10)
    await rig.scheduler.shutdown()
    assert await waiting is None


@played
async def test_a_stream_ends():
    rig = Rig()
    groups = [group async for group in _until(rig, 3)]
    assert [len(group) for group in groups] == [2, 2, 2]


async def _until(rig: Rig, count: int) -> AsyncGenerator[Any, None]:
    async for group in rig.scheduler.stream():
        yield group
        count -= 1
        if not count:
            await rig.scheduler.shutdown()


Call = Callable[[Rig], Coroutine[Any, Any, Any]]
CALLS: dict[str, Call] = {
    "suspend": lambda rig: rig.scheduler.suspend(),
    "resume": lambda rig: rig.scheduler.resume(),
    "update_weights": lambda rig: rig.scheduler.update_weights(1),
    "shrink_sampler": lambda rig: rig.scheduler.shrink_sampler([1]),
    "expand_sampler": lambda rig: rig.scheduler.expand_sampler([1]),
    "get_batch": lambda rig: rig.scheduler.get_batch(at(1), 8),
    "initialize": lambda rig: rig.scheduler.initialize(),
}


class Sluggish(Watched):
    """Takes its time with everything."""

    async def _take(self, call: str, seconds: float) -> None:
        if call not in ("start", "health"):
            await later(20)
        await super()._take(call, seconds)


@pytest.mark.parametrize("name", CALLS)
@played
async def test_whoever_waits_for_engines_is_not_left_waiting(name: str):
    """A call that is under way when everything ends comes back, one way or the other."""
    rig = Rig(engines=2, engine_class=Sluggish, config={"staleness": 1.0})
    await rig.scheduler.initialize()
    if name == "expand_sampler":
        await rig.scheduler.shrink_sampler([1])
    waiting = asyncio.ensure_future(CALLS[name](rig))
    await later(5)
    await rig.scheduler.shutdown()
    done, _ = await asyncio.wait({waiting}, timeout=10)
    assert done, f"{name} still waits"
    if waiting.exception() is not None:
        assert isinstance(waiting.exception(), Refused), repr(waiting.exception())


# a second call does nothing


@played
async def test_a_second_call_does_nothing():
    rig = Rig()
    await rig.full(0)
    await rig.scheduler.shutdown()
    ledger = repr(rig.ledger)
    await rig.scheduler.shutdown()
    assert repr(rig.ledger) == ledger


@played
async def test_of_two_calls_at_once_the_last_returns_when_everything_is_over():
    rig = Rig(env=partial(Echo, step_s=50.0, close_s=3.0))
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(10)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(rig.scheduler.shutdown())
    assert rig.log.open == set()
    assert await waiting is None


@pytest.mark.parametrize("name", ["update_weights", "shrink_sampler", "expand_sampler", "initialize"])
@played
async def test_what_can_no_longer_be_done_says_so(name: str):
    rig = Rig(engines=2)
    await rig.full(0)
    await rig.scheduler.shutdown()
    with pytest.raises(Refused, match="the train scheduler was shut down; make a new one"):
        await CALLS[name](rig)


@pytest.mark.parametrize("name", ["suspend", "resume"])
@played
async def test_what_is_over_is_quiet(name: str):
    rig = Rig(engines=2)
    await rig.full(0)
    await rig.scheduler.shutdown()
    await CALLS[name](rig)


@played
async def test_a_with_block_ends_it():
    rig = Rig()
    async with rig.scheduler as scheduler:
        assert len(await rig.full(0, of=scheduler)) == 8
    assert kit.premises.tasks() == {asyncio.current_task()}


@played
async def test_the_same_devices_serve_a_new_cluster_afterwards():
    for _ in range(2):
        rig = Rig()
        await rig.full(0)
        await rig.scheduler.shutdown()


class Blocked(Watched):
    """Its requests never begin, and their streams do not close quickly either."""

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        try:
            await asyncio.get_running_loop().create_future()
            yield Chunk(token_ids=None, logprobs=None, version=0)  # type: ignore[arg-type]
        finally:
            await later(2)


@played
async def test_streams_that_close_slowly_are_waited_for():
    rig = Rig(engine_class=Blocked)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(10)
    await rig.scheduler.shutdown()
    assert await waiting is None
    assert now() <= 20
