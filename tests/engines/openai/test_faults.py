"""Servers that misbehave: what is asked again, what ends with what arrived, and what is an error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.engines.kits import Heard, ask, begun, hear, load_is, over_script, request, run_async, settings
from tests.engines.server import Misdeeds, Server

from windrow.engines.openai import OpenAIEngine
from windrow.engines.openai import engine as module
from windrow.errors import EngineError, EngineLost, PromptTooLong


@asynccontextmanager
async def engine_and_server(**changes) -> AsyncIterator[tuple[OpenAIEngine, Server]]:
    """A started engine; what the server has seen so far is forgotten."""
    async with over_script() as (server, _):
        engine = OpenAIEngine("one", settings(server, **changes))
        await engine.start()
        server.asked.clear()
        try:
            yield engine, server
        finally:
            await engine.close()


# asking again


@run_async
@pytest.mark.parametrize("statuses", [[429], [503], [0], [429, 503, 0]], ids=str)
async def test_a_request_that_got_no_answer_is_sent_again(statuses: list[int]):
    async with engine_and_server() as (engine, server):
        server.misdeeds = Misdeeds(statuses=[*statuses], retry_after="0")
        heard = await hear(engine, request(max_tokens=20))
        assert (len(heard.tokens), heard.finish) == (20, "length")
        assert len(server.asked) == len(statuses) + 1
        assert all(body == server.asked[0] for body in server.asked)


@run_async
async def test_it_is_sent_again_a_bounded_number_of_times():
    async with engine_and_server(retries=2) as (engine, server):
        server.misdeeds = Misdeeds(statuses=[429] * 9)
        with pytest.raises(EngineError, match="answered 429: told to answer 429"):
            await hear(engine, request())
        assert len(server.asked) == 3


@run_async
async def test_a_server_that_resets_every_connection_and_is_well_fails_the_request_alone():
    async with engine_and_server(retries=1) as (engine, server):
        server.misdeeds = Misdeeds(statuses=[0] * 9)
        with pytest.raises(EngineError, match="no answer") as caught:
            await hear(engine, request())
        assert not isinstance(caught.value, EngineLost)
        assert len(server.asked) == 2


@run_async
@pytest.mark.parametrize("wish", ["3600", "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_a_server_that_wants_more_time_than_there_is_is_not_waited_for(wish: str):
    async with engine_and_server() as (engine, server):
        server.misdeeds = Misdeeds(statuses=[503], retry_after=wish)
        with pytest.raises(EngineError, match="answered 503"):
            await hear(engine, request())
        assert len(server.asked) == 1


@run_async
@pytest.mark.parametrize("status", [400, 404, 500])
async def test_other_refusals_are_final_and_told_in_the_servers_words(status: int):
    async with engine_and_server() as (engine, server):
        server.misdeeds = Misdeeds(statuses=[status])
        with pytest.raises(EngineError, match=f"g0.a0.t0.p0: the server answered {status}: told to answer {status}"):
            await hear(engine, request())
        assert len(server.asked) == 1
        await load_is(engine, running=0, waiting=0)


@run_async
async def test_a_request_that_waits_to_be_sent_again_can_be_interrupted():
    async with engine_and_server(backoff_s=500.0) as (engine, server):
        server.misdeeds = Misdeeds(statuses=[429])
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request())
            while not server.asked:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0)
            await engine.suspend("interrupt")
        assert (heard.tokens, heard.finish) == ([], "interrupted")


# what arrived is kept


@run_async
async def test_a_stream_that_breaks_off_ends_with_what_arrived():
    async with engine_and_server() as (engine, server):
        server.misdeeds.disconnect_after = 16
        heard = await hear(engine, request())
        assert heard.finish == "interrupted"
        assert 0 < len(heard.tokens) <= 24
        assert len(server.asked) == 1
        server.misdeeds = Misdeeds()
        rest = await hear(engine, heard.rest())
        assert len(heard.tokens) + len(rest.tokens) == heard.request.sampling.max_tokens


@run_async
async def test_if_the_server_is_unwell_too_the_engine_is_lost_and_what_arrived_was_heard():
    async with engine_and_server() as (engine, server):
        server.misdeeds = Misdeeds(disconnect_after=16, health_status=500)
        heard = Heard(request())
        with pytest.raises(EngineLost, match=r"broke off after [0-9]+ tokens.*answers 500"):
            await hear(engine, heard.request, heard)
        assert len(heard.tokens) > 0
        assert heard.finish is None
        assert (await engine.health()).state == "dead"


@run_async
async def test_a_stream_that_breaks_off_before_the_first_token_is_an_error():
    async with engine_and_server() as (engine, server):
        server.misdeeds.disconnect_after = 0
        with pytest.raises(EngineError, match="broke off after 0 tokens"):
            await hear(engine, request())


@run_async
async def test_a_server_that_hangs_before_its_first_byte_costs_one_deadline():
    async with engine_and_server(request_timeout_s=0.05) as (engine, server):
        server.misdeeds.hang_after = 0
        with pytest.raises(EngineError, match=r"no token within 0\.05 s"):
            await hear(engine, request())


@run_async
async def test_a_server_that_hangs_in_the_middle_ends_with_what_arrived():
    async with engine_and_server(request_timeout_s=0.5) as (engine, server):
        server.misdeeds.hang_after = 16
        heard = await hear(engine, request())
        assert (len(heard.tokens), heard.finish) == (16, "interrupted")


@run_async
@pytest.mark.parametrize("tokens", [0, 16])
async def test_a_server_that_hangs_can_be_suspended_left_and_closed(tokens: int):
    async with engine_and_server() as (engine, server):
        server.misdeeds.hang_after = tokens
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request(1))
            other = ask(group, engine, request(2))
            while len(server.asked) < 2:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0)
            if tokens:
                await begun([heard, other])
            await engine.interrupt([heard.request.id])
            await engine.suspend("interrupt")
            await load_is(engine, running=0, waiting=0)
        assert (heard.finish, other.finish) == ("interrupted", "interrupted")
        assert len(heard.tokens) == tokens


@run_async
async def test_everything_at_hand_is_taken_even_if_nobody_listens_just_now():
    async with engine_and_server() as (engine, server):
        behind = server.engine
        behind.hold_at(8)  # type: ignore[attr-defined]  # it is a script
        chunks = engine.generate(request())
        first = await anext(chunks)
        assert len(first.token_ids) == 8
        behind.hold_at(64)  # type: ignore[attr-defined]
        for _ in range(50):
            await engine.health()  # in the meantime the server sends all that it has
        await engine.suspend("interrupt")
        rest = [chunk async for chunk in chunks]
        assert sum(len(chunk.token_ids) for chunk in rest) == 56
        assert rest[-1].finish == "interrupted"


# nonsense


@run_async
@pytest.mark.parametrize(
    ("misdeeds", "message"),
    [
        (Misdeeds(garbage=b"data: {oops\n\n"), "the server sent '{oops'"),
        (Misdeeds(garbage=b"<html>\n"), "does not stream events"),
        (Misdeeds(error_event="out of memory"), "out of memory"),
        (Misdeeds(extra_tokens=24), "returned 40 tokens, at most 16 were asked for"),
        (Misdeeds(lose_a_logprob=True), "8 tokens and 7 log-probs"),
        (Misdeeds(logprob=None), "log-prob None"),
        (Misdeeds(logprob=-9999.0), "log-prob -9999"),
        (Misdeeds(no_token_ids=True), "text without token ids"),
        (Misdeeds(no_logprobs=True), "8 tokens and 0 log-probs"),
        (Misdeeds(finish_reason="content_filter"), "content_filter"),
    ],
    ids=range(10),
)
async def test_nonsense_is_an_error_of_that_request_alone(misdeeds: Misdeeds, message: str):
    async with engine_and_server() as (engine, server):
        server.misdeeds = misdeeds
        with pytest.raises(EngineError, match=message):
            await hear(engine, request(1, max_tokens=16))
        await load_is(engine, running=0, waiting=0)
        server.misdeeds = Misdeeds()
        assert len((await hear(engine, request(2, max_tokens=16))).tokens) == 16


@run_async
async def test_a_prompt_that_the_server_finds_too_long_is_told_as_such():
    async with engine_and_server() as (engine, server):
        server.misdeeds.longest_prompt = 3
        with pytest.raises(PromptTooLong, match="maximum context length is 3"):
            await hear(engine, request())


@run_async
async def test_a_stream_that_stays_open_after_its_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "END_GRACE_S", 0.01)
    async with engine_and_server() as (engine, server):
        server.misdeeds.never_end = True
        assert len((await hear(engine, request(max_tokens=16))).tokens) == 16


# a server that goes


@run_async
async def test_a_server_that_is_gone_is_an_engine_that_is_lost():
    async with over_script() as (server, _):
        engine = OpenAIEngine("one", settings(server, retries=1))
        await engine.start()
    health = await engine.health()
    assert (health.state, "cannot reach" in health.why) == ("dead", True)
    with pytest.raises(EngineLost, match=r"no answer.*cannot reach"):
        await hear(engine, request())
    await engine.suspend("interrupt")
    await engine.close()


@run_async
async def test_no_more_requests_than_its_capacity_are_at_the_server():
    async with engine_and_server(capacity=3) as (engine, server):
        behind = server.engine
        behind.hold_at(8)  # type: ignore[attr-defined]  # it is a script
        async with asyncio.TaskGroup() as group:
            many = [ask(group, engine, request(n, max_tokens=16)) for n in range(5)]
            await begun(many[:3])
            await load_is(engine, running=3, waiting=2)
            assert len(server.asked) == 3
            await engine.interrupt([many[0].request.id])
            await begun([many[3]])
            await engine.suspend("interrupt")  # control does not queue behind data
            await load_is(engine, running=0, waiting=1)
            behind.hold_at(float("inf"))  # type: ignore[attr-defined]
            await engine.resume()
        assert [heard.finish for heard in many] == [*["interrupted"] * 4, "length"]


@run_async
async def test_a_turn_that_goes_on_is_drawn_with_another_seed():
    async with engine_and_server() as (engine, server):
        server.misdeeds.disconnect_after = 16
        heard = await hear(engine, request())
        server.misdeeds = Misdeeds()
        await hear(engine, heard.rest())
        assert server.asked[0]["seed"] != server.asked[1]["seed"]
        assert server.asked[1]["max_tokens"] == heard.request.sampling.max_tokens - len(heard.tokens)
