"""One request on its way, without a server."""

import asyncio

import pytest
from tests.engines.kits import request, run_async

from windrow.engines.openai.flight import Flight
from windrow.engines.openai.wire import Reader
from windrow.errors import EngineError


def flight() -> Flight:
    made = Flight(request(), 10, Reader("r1", 10, trains=True))
    made.seat(1, asyncio.get_running_loop().time() + 100.0)
    return made


def event(token: int) -> bytes:
    return b'data: {"choices": [{"token_ids": [%d], "logprobs": {"token_logprobs": [-1.0]}}]}\n\n' % token


@run_async
async def test_tokens_carry_the_version_under_which_they_arrived():
    one = flight()
    one.take(event(5))
    one.relabel(2)
    one.take(event(6) + event(7))
    assert [(chunk.version, chunk.token_ids.tolist()) for chunk in one.outbox] == [(1, [5]), (2, [6, 7])]


@run_async
async def test_the_label_of_what_the_server_was_told_to_end_is_fixed():
    """Its last words were sampled before, whenever they arrive."""
    one = flight()
    one.ending = True
    one.relabel(2)
    one.take(event(5))
    assert one.outbox[0].version == 1


@run_async
async def test_a_flight_that_is_over_stays_over():
    one = flight()
    one.end()
    one.end("length")
    one.fail(EngineError("late"))
    assert [chunk.finish for chunk in one.outbox] == ["interrupted"]
    assert one.error is None


@run_async
async def test_whoever_waits_for_a_step_is_woken_when_it_is_cut():
    one = flight()
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(expires(one))
        await asyncio.sleep(0)
        one.cut()
        await waits
    assert one.over


async def expires(one: Flight) -> None:
    with pytest.raises(TimeoutError):
        await one.within(asyncio.get_running_loop().create_future())


@run_async
async def test_a_cancellation_from_outside_passes_through():
    one = flight()
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(one.within(asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        waits.cancel()
        one.cut()
    assert waits.cancelled()
