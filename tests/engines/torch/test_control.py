"""Suspending, loading, releasing, closing; the thread and what it leaves behind."""

import asyncio
import gc
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.engines.kits import run_async
from tests.engines.tiny import tiny_model
from tests.engines.torch.given import (
    CONTEXT,
    ask,
    begun,
    expected,
    hear,
    hear_all,
    logprobs_of,
    made,
    request,
    started,
)
from transformers import Qwen2Config

from windrow.engines.protocol import Engine
from windrow.engines.torch import TorchEngine, spells
from windrow.engines.torch.weights import checksum
from windrow.errors import EngineError, EngineLost, Refused


def weights(seed: int) -> dict[str, torch.Tensor]:
    return tiny_model(seed=seed, context=CONTEXT).state_dict()


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("torch engine")]


@run_async
async def test_not_one_token_is_sampled_between_suspend_and_resume():
    async with started(capacity=4) as engine, asyncio.TaskGroup() as group:
        many = [ask(group, engine, request(n, max_tokens=200)) for n in range(4)]
        await begun(*many)
        sampled = 0
        for how in ("freeze", "interrupt"):
            await engine.suspend(how)
            sampled = engine.counters().sampled_tokens
            late = ask(group, engine, request(10 + len(how), max_tokens=3))
            for _ in range(50):
                await asyncio.sleep(0)
                await engine.interrupt(["nobody"])  # goes through the thread
            assert engine.counters().sampled_tokens == sampled
            assert not late.chunks
        assert sum(len(heard.tokens) for heard in many) == sampled, "and all of it was handed over"
        await engine.resume()


@run_async
async def test_draining_can_be_turned_into_interrupting():
    async with started() as engine, asyncio.TaskGroup() as group:
        heard = ask(group, engine, request(max_tokens=240))
        await begun(heard)
        drain = group.create_task(engine.suspend("drain"))
        await asyncio.sleep(0)
        await engine.suspend("interrupt")
        await drain
        assert heard.finish in ("interrupted", "length")


@run_async
async def test_draining_is_called_off_by_opening_the_gate():
    async with started() as engine, asyncio.TaskGroup() as group:
        heard = ask(group, engine, request(max_tokens=240))
        await begun(heard)
        drain = group.create_task(engine.suspend("drain"))
        await asyncio.sleep(0)
        await engine.resume()
        await drain
    assert len(heard.tokens) == 240


@run_async
async def test_new_weights_take_over_between_two_tokens():
    """Each token is worth what the weights of its version say, with everything before it computed by them."""
    async with started(stream_every=5) as engine:
        old = tiny_model(seed=0, context=CONTEXT)
        new = tiny_model(seed=1, context=CONTEXT)
        async with asyncio.TaskGroup() as group:
            many = [ask(group, engine, request(n, size=10 + 20 * n, max_tokens=180)) for n in range(4)]
            await begun(*many)
            said = await engine.load(7, new.state_dict())
        assert (said.version, said.checksum) == (7, checksum(new))
        assert engine.counters().cache_tokens_dropped > 0
        for heard in many:
            assert heard.versions == sorted(heard.versions)
            assert set(heard.versions) == {0, 7}
            whole = [*heard.asked.prompt, *heard.tokens]
            first = len(heard.asked.prompt) - 1
            by = {0: logprobs_of(old, whole), 7: logprobs_of(new, whole)}
            wanted = [
                float(by[version][first + place, token])
                for place, (token, version) in enumerate(zip(heard.tokens, heard.versions, strict=True))
            ]
            assert np.allclose(heard.logprobs, wanted, atol=1e-4)
            assert not any(chunk.stale_cache for chunk in heard.chunks)


@run_async
async def test_frozen_requests_go_on_under_new_weights():
    async with started() as engine:
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request(max_tokens=60))
            await begun(heard)
            await engine.suspend("freeze")
            count = len(heard.tokens)
            await engine.load(1, weights(1))
            await engine.resume()
        assert heard.versions == [0] * count + [1] * (60 - count)
        whole = logprobs_of(engine.model, [*heard.asked.prompt, *heard.tokens])
        wanted = [float(whole[9 + place, token]) for place, token in enumerate(heard.tokens)][count:]
        assert np.allclose(heard.logprobs[count:], wanted, atol=1e-4)


@run_async
async def test_a_cache_that_is_kept_marks_what_is_sampled_from_it():
    async with started(keep_kv=True) as engine:
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request(0, size=40, max_tokens=60))
            await begun(heard)
            await engine.load(1, weights(1))
        prefilled = engine.counters().prefill_tokens
        assert prefilled == 40, "nothing was computed again"
        assert [chunk.stale_cache for chunk in heard.chunks] == [chunk.version == 1 for chunk in heard.chunks]
        fresh = await hear(engine, request(1, size=40))
        assert not any(chunk.stale_cache for chunk in fresh.chunks)
        heir = await hear(engine, request(2, prompt=heard.asked.prompt))
        assert all(chunk.stale_cache for chunk in heir.chunks)


@pytest.mark.parametrize("keep_kv", [False, True])
@run_async
async def test_weights_that_were_no_numbers_leave_nothing_behind(keep_kv: bool):
    async with started(capacity=2, keep_kv=keep_kv) as engine:
        await engine.load(1, {name: torch.full_like(tensor, torch.nan) for name, tensor in weights(0).items()})
        for number in range(2):
            with pytest.raises(EngineError, match="under version 1"):
                await hear(engine, request(number, size=100))
        await engine.load(2, weights(0))
        for heard in await hear_all(engine, [request(n, size=5) for n in range(2, 5)]):
            assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)


@run_async
async def test_the_same_weights_under_another_number_keep_the_cache():
    async with started() as engine:
        first = await engine.start()
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request(max_tokens=60))
            await begun(heard)
            said = await engine.load(3, None)
        assert (said.version, said.checksum) == (3, first.checksum)
        assert set(heard.versions) == {0, 3}
        assert engine.counters().prefill_tokens == 10


@run_async
async def test_weights_come_from_a_folder(tmp_path: Path):
    model = tiny_model(seed=5, context=CONTEXT)
    model.save_pretrained(tmp_path / "saved")
    async with started() as engine:
        said = await engine.load(1, tmp_path / "saved")
        assert said.checksum == checksum(model)
        with pytest.raises(Refused, match="no safetensors file"):
            await engine.load(2, tmp_path / "nowhere")
        (tmp_path / "model.safetensors").write_bytes(b"nonsense")
        with pytest.raises(Refused, match="cannot be read"):
            await engine.load(2, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lm_head.weight": None}, "lack lm_head.weight"),
        ({"lm_head.wait": torch.zeros(1)}, "lm_head.wait that the model has not; did you mean lm_head.weight"),
        ({"lm_head.weight": torch.zeros(3, 3)}, r"lm_head.weight as \(3, 3\), the model as \(259, 64\)"),
    ],
)
@run_async
async def test_weights_that_do_not_fit_are_refused_and_nothing_changes(change: dict[str, Any], words: str):
    given = {name: tensor for name, tensor in {**weights(1), **change}.items() if tensor is not None}
    async with started() as engine:
        before = await engine.start()
        with pytest.raises(Refused, match=words):
            await engine.load(1, given)
        assert await engine.start() == before
        assert checksum(engine.model) == before.checksum
        assert (await hear(engine, request())).versions == [0] * 20


@run_async
async def test_tied_weights_stay_tied(tmp_path: Path):
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    engine, other = TorchEngine("e0", config), TorchEngine("e1", config, seed=1)
    first, second = await engine.start(), await other.start()
    assert first.checksum != second.checksum
    state = other.model.state_dict()
    assert (await engine.load(1, state)).checksum == second.checksum
    shared = engine.model.get_input_embeddings().weight
    assert engine.model.get_output_embeddings().weight is shared
    state.pop("lm_head.weight")
    save_file(state, tmp_path / "model.safetensors")
    assert (await engine.load(2, tmp_path)).checksum == second.checksum
    with pytest.raises(Refused, match=r"differ in lm_head.weight and model.embed_tokens.weight"):
        await engine.load(3, {**state, "lm_head.weight": torch.zeros(64, 32)})
    await engine.close()
    await other.close()


@run_async
async def test_a_released_engine_gives_its_memory_back_and_forgets_no_weights():
    async with started() as engine:
        before = await hear(engine, request(0, size=60))
        store = engine._batcher.running._store
        assert store.keys
        await engine.release()
        assert not store.keys
        assert (await engine.health()).state == "released"
        with pytest.raises(EngineError, match="engine 'e0' has released its devices; restore it first"):
            await hear(engine, request(1))
        said = await engine.load(4, weights(0))
        await engine.restore()
        after = await hear(engine, request(2, prompt=before.asked.prompt, seed=before.asked.seed))
        assert after.tokens == before.tokens
        assert after.versions == [said.version] * 20
        assert engine.counters().prefix_tokens_reused == 0


@run_async
async def test_closing_the_stream_frees_the_slot():
    async with started(capacity=1) as engine:
        async with aclosing(engine.generate(request(0, max_tokens=240))) as chunks:
            await anext(chunks)
        heard = await hear(engine, request(1))
        assert len(heard.tokens) == 20
        assert engine.counters().sampled_tokens < 240


@run_async
async def test_the_thread_is_there_from_start_to_close():
    assert not engine_threads()
    engine = made()
    assert isinstance(engine, Engine)
    assert not engine_threads()
    await engine.start()
    assert [thread.daemon for thread in engine_threads()] == [True]
    async with asyncio.TaskGroup() as group:
        many = [ask(group, engine, request(n, max_tokens=240)) for n in range(12)]
        await begun(many[0])
        await engine.close()
    assert not engine_threads()
    assert [heard.finish for heard in many] == ["interrupted"] * 12
    with pytest.raises(EngineLost, match="engine 'e0' is closed"):
        await hear(engine, request())
    with pytest.raises(EngineLost, match="closed"):
        await engine.suspend("drain")
    with pytest.raises(EngineLost, match="closed"):
        await engine.start()


def test_an_engine_that_nobody_closes_ends_with_its_loop():
    kept = []

    async def careless() -> None:
        engine = made()
        kept.append(engine)
        await engine.start()

    asyncio.run(careless())
    for thread in engine_threads():
        thread.join(60.0)
    assert not engine_threads()
    assert asyncio.run(kept[0].health()).state == "dead"


@run_async
async def test_an_engine_that_is_forgotten_lets_its_thread_end():
    engine = made()
    await engine.start()
    threads = engine_threads()
    del engine
    gc.collect()
    await asyncio.to_thread(threads[0].join, 60.0)
    assert not engine_threads()


@run_async
async def test_a_start_that_is_cancelled_leaves_no_thread():
    engine = made()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(engine.start())
        await asyncio.sleep(0)
        task.cancel()
    await engine.close()
    assert not engine_threads()


@run_async
async def test_what_nobody_foresaw_loses_the_engine_and_says_why(monkeypatch: pytest.MonkeyPatch):
    async with started() as engine:

        def explode() -> None:
            raise RuntimeError("out of paper")

        async with asyncio.TaskGroup() as group:
            await engine.suspend("freeze")
            tasks = [group.create_task(_lost(engine, n)) for n in range(3)]
            await asyncio.sleep(0)
            monkeypatch.setattr(engine._batcher.running, "step", explode)
            await engine.resume()
            errors = [await task for task in tasks]
        for error in errors:
            assert "engine 'e0' died: RuntimeError: out of paper" in str(error)
            assert isinstance(error.__cause__, RuntimeError)
        assert len({id(error) for error in errors}) == 3
        health = await engine.health()
        assert (health.state, "out of paper" in health.why) == ("dead", True)
        with pytest.raises(EngineLost, match="out of paper"):
            await engine.resume()
    assert not engine_threads()


async def _lost(engine: TorchEngine, number: int) -> EngineLost:
    with pytest.raises(EngineLost) as caught:
        await hear(engine, request(number))
    return caught.value


@run_async
async def test_the_number_of_threads_of_others_is_left_alone():
    before = torch.get_num_threads()
    async with started(threads=before + 1) as engine:
        await hear(engine, request())
        assert torch.get_num_threads() == before


@run_async
async def test_control_before_the_start_counts():
    engine = made()
    await engine.suspend("drain")
    await engine.load(2, weights(1))
    assert (await engine.start()).version == 2
    async with asyncio.TaskGroup() as group:
        heard = ask(group, engine, request())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not heard.chunks
        await engine.resume()
    assert len(heard.tokens) == 20
    await engine.close()


@pytest.mark.parametrize("gate", ["suspend", "release"])
def test_what_is_computed_on_either_side_of_a_closed_gate_is_no_one_spell(gate: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spells, "PAUSE_S", float("inf"))

    async def scene() -> None:
        async with started() as engine:
            await hear(engine, request(0, max_tokens=3))
            await (engine.suspend("interrupt") if gate == "suspend" else engine.release())
            await (engine.resume() if gate == "suspend" else engine.restore())
            await hear(engine, request(1, max_tokens=3))
            first, second = engine.activity().spells
            assert first[1] <= second[0]
            busy = engine.busy()
            assert busy.seconds <= sum(end - begin for begin, end in (first, second))

    asyncio.run(scene())
