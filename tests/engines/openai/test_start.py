"""What an engine finds out about a server when it starts, and what it refuses then."""

import sys
from contextlib import aclosing

import numpy as np
import pytest
from tests.engines.kits import hear, over_script, request, run_async, settings
from tests.engines.server import Misdeeds, Server

from windrow.engines.openai import OpenAIEngine, OpenAISettings
from windrow.errors import ConfigError, EngineError, EngineLost, Refused
from windrow.requests import Sampling
from windrow.types import but


async def refused(server: Server, **changes) -> str:
    """What start says; a session that is left open would fail the test."""
    engine = OpenAIEngine("one", settings(server, **changes))
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    assert (await engine.health()).state == "cold"
    return str(caught.value)


@run_async
@pytest.mark.parametrize(
    ("misdeeds", "missing"),
    [
        (Misdeeds(no_token_ids=True), "returns no token ids, so"),
        (Misdeeds(no_logprobs=True), "returns no log-probs, so"),
        (Misdeeds(no_token_ids=True, no_logprobs=True), "returns no token ids and no log-probs, so"),
        (Misdeeds(only_plain_words=True), "returns no token ids and no log-probs, so"),
    ],
    ids=["ids", "log-probs", "both", "unknown words"],
)
async def test_a_server_that_cannot_be_trained_on_is_refused_with_the_way_out(misdeeds: Misdeeds, missing: str):
    async with over_script() as (server, _):
        server.misdeeds = misdeeds
        said = await refused(server)
        assert missing in said
        assert "require_training: false" in said


@run_async
@pytest.mark.parametrize(
    "misdeeds", [Misdeeds(no_token_ids=True), Misdeeds(only_plain_words=True)], ids=["ids", "words"]
)
async def test_for_evaluation_text_will_do(misdeeds: Misdeeds):
    async with over_script() as (server, _):
        server.misdeeds = misdeeds
        engine = OpenAIEngine("one", settings(server, require_training=False), encode=lambda text: [*text.encode()])
        await engine.start()
        assert engine.traits.can_train is False
        heard = await hear(engine, request(max_tokens=20))
        assert heard.finish == "length"
        assert 0 < len(heard.tokens) <= 20
        assert np.isnan(heard.logprobs).all()
        await engine.close()


@run_async
async def test_for_evaluation_without_token_ids_a_tokenizer_is_needed():
    async with over_script() as (server, _):
        server.misdeeds.no_token_ids = True
        assert "encode=" in await refused(server, require_training=False)


@run_async
async def test_a_model_that_is_not_served_is_refused_with_those_that_are():
    async with over_script() as (server, _):
        assert "no model 'large', it serves tiny" in await refused(server, model="large")


@run_async
async def test_a_server_need_not_list_its_models():
    async with over_script() as (server, _):
        server.models = []
        engine = OpenAIEngine("one", settings(server, model="any"))
        await engine.start()
        await engine.close()


@run_async
async def test_a_longer_context_than_the_servers_is_refused():
    async with over_script() as (server, _):
        assert "context_tokens is 100000, the server's is 512" in await refused(server, context_tokens=100_000)


@run_async
async def test_the_key_opens_the_door(monkeypatch: pytest.MonkeyPatch):
    async with over_script() as (server, _):
        server.key = "hush"
        assert "api_key_env" in await refused(server)
        monkeypatch.setenv("SOME_KEY", "wrong")
        said = await refused(server, api_key_env="SOME_KEY")
        assert "wrong" not in said
        monkeypatch.setenv("SOME_KEY", "hush")
        engine = OpenAIEngine("one", settings(server, api_key_env="SOME_KEY"))
        await engine.start()
        assert len((await hear(engine, request(max_tokens=3))).tokens) == 3
        await engine.close()


@run_async
async def test_a_server_that_is_not_there_is_lost():
    async with over_script() as (server, _):
        gone = settings(server)
    engine = OpenAIEngine("one", gone)
    with pytest.raises(EngineLost, match=r"cannot reach http.*start the server or correct base_url"):
        await engine.start()
    await engine.close()


@run_async
async def test_a_server_that_hangs_is_lost():
    async with over_script() as (server, _):
        server.misdeeds.hang_after = 0
        engine = OpenAIEngine("one", settings(server, control_timeout_s=0.05))
        with pytest.raises(EngineLost, match=r"did not answer within 0\.05 s"):
            await engine.start()


@run_async
async def test_a_server_that_fails_is_an_error():
    async with over_script() as (server, _):
        server.misdeeds.statuses = [500]
        with pytest.raises(EngineError, match="answered 500: told to answer 500"):
            await OpenAIEngine("one", settings(server)).start()


@run_async
@pytest.mark.parametrize("processed", [True, False])
async def test_a_vllm_server_is_asked_what_its_log_probs_mean(processed: bool):
    async with over_script() as (server, _):
        server.processed = processed
        engine = OpenAIEngine("one", settings(server, flavour="vllm"))
        await engine.start()
        asked = request(max_tokens=3, temperature=0.5)
        if processed:
            assert len((await hear(engine, asked)).tokens) == 3
        else:
            with pytest.raises(ConfigError, match="logprobs_mode: processed"):
                await hear(engine, asked)
        await engine.close()


@run_async
async def test_for_evaluation_log_probs_that_mean_something_else_are_nan():
    async with over_script() as (server, _):
        engine = OpenAIEngine("one", settings(server, require_training=False))
        await engine.start()
        heard = await hear(engine, request(1, max_tokens=3, temperature=0.5))
        assert len(heard.tokens) == 3
        assert np.isnan(heard.logprobs).all()
        assert np.isfinite((await hear(engine, request(2, max_tokens=3))).logprobs).all()
        await engine.close()


@run_async
async def test_a_vllm_server_that_was_left_paused_is_woken():
    async with over_script() as (server, behind):
        server._paused = True
        await behind.suspend("interrupt")
        engine = OpenAIEngine("one", settings(server, flavour="vllm"))
        await engine.start()
        assert server.calls == ["wake_up"]
        assert len((await hear(engine, request(max_tokens=3))).tokens) == 3
        await engine.close()


@run_async
async def test_a_vllm_server_without_its_control_calls_serves_but_cannot_freeze_or_load():
    async with over_script() as (server, _):
        server.has_controls = False
        engine = OpenAIEngine("one", settings(server, flavour="vllm"))
        await engine.start()
        assert (engine.traits.can_freeze, engine.traits.can_load) == (False, False)
        with pytest.raises(Refused, match=r"cannot freeze.*VLLM_SERVER_DEV_MODE=1"):
            await engine.suspend("freeze")
        await engine.suspend("interrupt")
        await engine.resume()
        assert len((await hear(engine, request(max_tokens=3))).tokens) == 3
        await engine.close()


def test_without_aiohttp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    @run_async
    async def starts():
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        monkeypatch.delitem(sys.modules, "windrow.engines.openai.http", raising=False)
        engine = OpenAIEngine("one", OpenAISettings(base_url="http://x", model="m", context_tokens=9))
        with pytest.raises(ConfigError, match=r"pip install 'windrow\[openai\]'"):
            await engine.start()

    starts()


@run_async
async def test_a_request_is_refused_before_it_costs_anything():
    async with over_script() as (server, _):
        engine = OpenAIEngine("one", settings(server))
        await engine.start()
        asked = len(server.asked)
        with pytest.raises(ConfigError, match="min_p"):
            async with aclosing(engine.generate(but(request(), sampling=Sampling(min_p=0.2)))) as chunks:
                await anext(chunks)
        assert len(server.asked) == asked
        await engine.close()
