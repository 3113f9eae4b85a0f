"""Which models the engine runs, and that it says what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.kits import Endless, run_async
from tests.engines.tiny import Kind, tiny_model, tiny_tokenizer
from tests.engines.torch.given import CONTEXT, expected, hear, hear_all, made, request, started
from transformers import (
    BloomConfig,
    Gemma2Config,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    T5Config,
    T5ForConditionalGeneration,
)

from windrow.engines.torch import TorchEngine, TorchSettings, forward
from windrow.errors import ConfigError
from windrow.text import ChatCodec

KINDS: list[Kind] = ["qwen2", "llama", "gpt2"]
SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deterministic", [False, True])
@run_async
async def test_log_probabilities_are_those_of_the_model(kind: Kind, deterministic: bool):
    """Ragged prompts and answers, more of them than fit at once."""
    many = [request(n, size=3 + 17 * n % 90, max_tokens=5 + 13 * n % 60) for n in range(12)]
    async with started(kind, capacity=5, deterministic=deterministic) as engine:
        for heard in await hear_all(engine, many):
            assert len(heard.tokens) == heard.asked.sampling.max_tokens
            assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@run_async
async def test_greedy_answers_are_those_of_generate(kind: Kind):
    asked = request(size=12, max_tokens=24, temperature=0.0)
    model = tiny_model(kind, context=CONTEXT)
    whole = model.generate(  # type: ignore[operator]  # transformers'
        torch.from_numpy(asked.prompt).long()[None], max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    async with started(kind) as engine:
        assert (await hear(engine, asked)).tokens == whole[0, 12:].tolist()


@run_async
async def test_a_long_prompt_goes_in_by_pieces_beside_others(monkeypatch: pytest.MonkeyPatch):
    """As that of a large model does; this one could read it at once."""
    monkeypatch.setattr(forward, "PREFILL_WORK", 0)
    async with started(context=2048) as engine:
        many = await hear_all(engine, [request(0, size=1500), request(1, size=4), request(2, size=700)])
        assert engine.counters().steps > 20 + 3
        for heard in many:
            assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)


@run_async
async def test_a_model_comes_from_a_folder(tmp_path: Path):
    model = tiny_model(context=CONTEXT)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    engine = TorchEngine("e0", tmp_path, ChatCodec(tiny_tokenizer()))
    other = TorchEngine("e1", str(tmp_path))
    assert (await engine.start()).checksum == (await other.start()).checksum
    heard = await hear(engine, request(max_tokens=5))
    assert np.allclose(heard.logprobs, expected(model, heard), atol=1e-4)
    await engine.close()
    await other.close()


@run_async
async def test_a_model_made_from_its_config_depends_on_the_seed():
    said = []
    for seed in (1, 1, 2):
        engine = TorchEngine("e0", Qwen2Config(**SMALL, num_key_value_heads=1), seed=seed)
        said.append((await engine.start()).checksum)
        await engine.close()
    assert said[0] == said[1] != said[2]


@run_async
async def test_tied_weights_and_half_precision_work():
    config = Qwen2Config(**SMALL, num_key_value_heads=1, tie_word_embeddings=True)
    engine = TorchEngine("e0", config, dtype="bfloat16")
    await engine.start()
    heard = await hear(engine, request(prompt=np.arange(1, 9, dtype=np.int32), max_tokens=8))
    assert engine.model.dtype == torch.bfloat16
    assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=0.1)
    await engine.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "Mamba"),
        (BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2), "attention interface"),
        (
            MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=16, max_position_embeddings=64),
            "layer 0 sees a window of 16 tokens and the context is 64; set context_tokens to 16 or less",
        ),
        (Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=16, sliding_window=64), "window of 64"),
    ],
    ids=["state", "alibi", "window", "mixed windows"],
)
def test_what_cannot_work_is_refused_by_name(config: PretrainedConfig, words: str):
    with pytest.raises(ConfigError, match=words):
        TorchEngine("e0", config)


def test_soft_capped_attention_is_refused_by_name():
    config = Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=16, sliding_window=64, max_position_embeddings=64)
    with pytest.raises(ConfigError, match="softcap"):
        TorchEngine("e0", config)


def test_an_encoder_is_refused_by_name():
    model = T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration"):
        TorchEngine("e0", model)


@run_async
async def test_a_window_that_is_never_left_is_no_window():
    config = MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=64, max_position_embeddings=128)
    engine = TorchEngine("e0", config, context_tokens=64)
    await engine.start()
    heard = await hear(engine, request(prompt=np.arange(1, 40, dtype=np.int32), max_tokens=20))
    assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)
    await engine.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context_tokens": 1000}, f"context_tokens is 1000 and Qwen2ForCausalLM has {CONTEXT} positions"),
        ({"capacity": 0}, "capacity"),
        ({"dtype": "int3"}, "dtype"),
        ({"stream_every": 0}, "stream_every"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        made(**options)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        TorchEngine("e0", tmp_path)
    tiny_model().config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="safetensors"):
        TorchEngine("e0", tmp_path)


def test_a_codec_of_another_model_is_refused():
    with pytest.raises(ConfigError, match="codec of 257 tokens and a model of 64"):
        TorchEngine("e0", Qwen2Config(**SMALL, num_key_value_heads=1), Endless())


def test_keywords_win_over_settings():
    engine = made(settings=TorchSettings(capacity=3, stream_every=5), stream_every=7, capacity=2, devices=(4,))
    assert (engine.traits.capacity, engine.settings.stream_every, engine.traits.devices) == (2, 7, (4,))
    assert engine.traits.context_tokens == CONTEXT
    assert not engine.traits.deterministic


def test_a_model_that_the_engine_holds_can_still_be_called_by_others():
    plain = tiny_model()(torch.arange(12)[None]).logits
    engine = made()
    assert torch.allclose(engine.model(torch.arange(12)[None]).logits, plain, atol=1e-4)
