"""A server with vLLM's control calls: who is told what, and what happens when that fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.engines.kits import ask, begun, checkpoint, hear, load_is, over_script, request, run_async, settings
from tests.engines.server import Server

from windrow.engines.openai import OpenAIEngine
from windrow.engines.scripted import ScriptedEngine
from windrow.errors import ConfigError, EngineError, EngineLost, Refused


@asynccontextmanager
async def vllm(**changes) -> AsyncIterator[tuple[OpenAIEngine, Server, ScriptedEngine]]:
    async with over_script() as (server, behind):
        engine = OpenAIEngine("one", settings(server, flavour="vllm", **changes))
        await engine.start()
        server.calls.clear()
        try:
            yield engine, server, behind
        finally:
            await engine.close()


@run_async
async def test_suspending_pauses_the_server_and_resuming_lets_it_go_on():
    async with vllm() as (engine, server, _):
        for how in ("interrupt", "drain"):
            server.calls.clear()
            await engine.suspend(how)
            await engine.resume()
            assert server.calls == ["pause mode=abort&clear_cache=false", "resume"]


@run_async
async def test_what_was_interrupted_keeps_the_label_of_the_weights_that_sampled_it():
    async with vllm() as (engine, _, behind):
        behind.hold_at(16)
        chunks = engine.generate(request())
        first = await anext(chunks)
        await engine.suspend("interrupt")
        await engine.load(9, None)
        rest = [chunk async for chunk in chunks]
        assert {chunk.version for chunk in [first, *rest]} == {0}
        assert sum(len(chunk.token_ids) for chunk in [first, *rest]) == 16


@run_async
async def test_a_server_that_cannot_pause_is_left_and_the_streams_end_with_what_arrived():
    async with vllm() as (engine, server, behind):
        behind.hold_at(16)
        async with asyncio.TaskGroup() as group:
            many = [ask(group, engine, request(n)) for n in range(4)]
            await begun(many)
            server.misdeeds.control_status = 500
            await engine.interrupt([many[0].request.id])
            await engine.suspend("interrupt")
        assert [heard.finish for heard in many] == ["interrupted"] * 4
        assert all(heard.tokens for heard in many)
        server.misdeeds.control_status = 0
        await engine.resume()


@run_async
async def test_a_freeze_that_fails_is_an_error():
    async with vllm() as (engine, server, _):
        server.misdeeds.control_status = 500
        with pytest.raises(EngineError, match="engine one /pause: the server answered 500: told to refuse pause"):
            await engine.suspend("freeze")
        server.misdeeds.control_status = 0
        await engine.resume()


@run_async
async def test_draining_lets_frozen_requests_end():
    async with vllm() as (engine, _, behind):
        behind.hold_at(16)
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request())
            await begun([heard])
            await engine.suspend("freeze")
            behind.hold_at(float("inf"))
            await engine.suspend("drain")
        assert heard.finish == "length"


@run_async
async def test_frozen_time_does_not_count():
    async with vllm(request_timeout_s=0.3) as (engine, _, behind):
        behind.hold_at(16)
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request())
            await begun([heard])
            await engine.suspend("freeze")
            flight = engine._gate.running[heard.request.id]
            while asyncio.get_running_loop().time() < flight.deadline:
                await engine.health()
            assert not flight.over
            behind.hold_at(float("inf"))
            await engine.resume()
        assert heard.finish == "length"


@run_async
async def test_loading_pauses_reloads_forgets_and_goes_on(tmp_path: Path):
    async with vllm() as (engine, server, _):
        folder = checkpoint(1, tmp_path)
        said = await engine.load(3, folder)
        assert server.calls == [
            "pause mode=abort&clear_cache=false",
            "collective_rpc",
            "reset_prefix_cache reset_running_requests=true",
            "resume",
        ]
        assert await engine.load(3, folder) == said  # the second of two equal ones asks nothing
        assert len(server.calls) == 4


@run_async
async def test_weights_that_the_server_would_load_wrongly_or_not_at_all_are_refused(tmp_path: Path):
    async with vllm() as (engine, server, _):
        tied = checkpoint(1, tmp_path)
        (tied / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
        with pytest.raises(ConfigError, match=r"tied embeddings.*allow_tied: true"):
            await engine.load(1, tied)
        with pytest.raises(Refused, match="folders, not tensors"):
            await engine.load(1, {})
        with pytest.raises(ConfigError, match="holds no"):
            await engine.load(1, tmp_path)
        assert (server.calls, engine.version) == ([], 0)
    async with vllm(allow_tied=True) as (engine, _, _):
        assert (await engine.load(1, tied)).version == 1


@run_async
async def test_a_server_that_failed_to_load_is_not_used_until_it_succeeds(tmp_path: Path):
    async with vllm() as (engine, server, behind):
        behind.refuses["load"] = EngineError("disk is full")
        with pytest.raises(EngineError, match="disk is full"):
            await engine.load(2, checkpoint(1, tmp_path))
        assert engine.version == 0
        health = await engine.health()
        assert (health.state, "version 2 could not be loaded" in health.why) == ("dead", True)
        with pytest.raises(EngineLost, match="version 2 could not be loaded"):
            await hear(engine, request())
        await engine.resume()  # it must not sample with half of the weights
        assert "resume" not in server.calls
        behind.refuses.clear()
        assert (await engine.load(2, checkpoint(1, tmp_path))).version == 2
        assert set((await hear(engine, request(1, max_tokens=5))).versions) == {2}


@run_async
async def test_requests_that_come_while_weights_are_loaded_wait(tmp_path: Path):
    async with vllm() as (engine, _, behind):
        behind.settings = type(behind.settings)(context_tokens=512, load_s=0.05)
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(engine.load(4, checkpoint(1, tmp_path)))
            while not engine._gate.loading:  # noqa: ASYNC110 -- nobody is told
                await asyncio.sleep(0)
            heard = ask(group, engine, request(max_tokens=5))
            await load_is(engine, waiting=1)
            assert not loading.done()
        assert heard.versions == [4] * 5


@run_async
async def test_release_puts_the_server_to_sleep_and_a_suspended_one_wakes_suspended():
    async with vllm() as (engine, server, _):
        await engine.suspend("interrupt")
        await engine.release()
        await engine.restore()
        assert server.calls == [
            "pause mode=abort&clear_cache=false",
            "sleep level=1",
            "wake_up",
            "pause mode=abort&clear_cache=false",
        ]
        await engine.release()
        await engine.resume()  # a sleeping server is not told to sample
        assert server.calls[-1] == "sleep level=1"
        await engine.restore()
        assert len((await hear(engine, request(max_tokens=5))).tokens) == 5


@run_async
async def test_a_released_engine_loads_nothing(tmp_path: Path):
    async with vllm() as (engine, _, _):
        await engine.release()
        with pytest.raises(Refused, match="restore it before it loads"):
            await engine.load(1, checkpoint(1, tmp_path))


@run_async
async def test_an_engine_that_is_closed_leaves_no_paused_server():
    async with vllm() as (engine, server, _):
        await engine.suspend("interrupt")
        await engine.close()
        assert server.calls[-1] == "resume"
