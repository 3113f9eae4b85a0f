"""Models and tokenizers that are made on the spot."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import ConfigError
from windrow.text import ChatCodec, Message, read_tokenizer
from windrow.tiny import FEWEST_TOKENS, Kind, tiny_model, trained_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEXTS = ["goal down right safe up left", "goal up safe down", "you reached the goal", "12 + 34 = 46"]


@cache
def tokenizer() -> "PreTrainedTokenizerFast":
    return trained_tokenizer(TEXTS)


@cache
def codec() -> ChatCodec:
    return ChatCodec(tokenizer())


def pieces(text: str) -> list[str]:
    return [str(tokenizer().decode([token])) for token in codec().encode(text).tolist()]


def test_words_of_the_texts_are_one_token_each():
    assert pieces("goal down right safe up left") == ["goal", " down", " right", " safe", " up", " left"]


def test_digits_stand_alone():
    assert [piece for piece in pieces("you reached the 2046 goal") if piece.strip().isdigit()] == ["2", "0", "4", "6"]


def test_a_tokenizer_learns_no_more_than_it_may():
    assert len(trained_tokenizer(TEXTS, FEWEST_TOKENS)) == FEWEST_TOKENS
    assert len(trained_tokenizer(TEXTS, FEWEST_TOKENS + 5)) == FEWEST_TOKENS + 5
    assert FEWEST_TOKENS + 5 < len(tokenizer()) < 512, "there is nothing more to join in so few texts"


def test_too_few_tokens_are_refused():
    with pytest.raises(ConfigError, match=f"size must be at least {FEWEST_TOKENS}, a token for every byte, got 255"):
        trained_tokenizer(TEXTS, 255)


@given(text=st.text())
def test_any_text_comes_back_exactly(text: str):
    assert codec().decode(codec().encode(text)) == text


@given(data=st.binary(max_size=40))
def test_whatever_is_sampled_can_be_decoded(data: bytes):
    tokens = np.frombuffer(data, np.uint8).astype(np.int32)
    assert isinstance(codec().decode(tokens), str)


def test_a_message_costs_two_tokens_beside_its_text():
    asked = codec().begin([Message("system", "goal"), Message("user", "goal up")])
    text = "<|system|>goal<|end|><|user|>goal up<|end|><|assistant|>"
    assert tokenizer().decode(asked.tolist()) == text
    assert len(asked) == 2 + 1 + 2 + 2 + 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_conversation_goes_on_with_the_tokens_of_the_whole(closed: bool):
    first, after = [Message("user", "goal up")], [Message("user", "goal down")]
    (end,) = codec().stop_token_ids
    response = np.array([*codec().encode("up").tolist(), *([end] if closed else [])], np.int32)
    grown = [*codec().begin(first).tolist(), *response.tolist(), *codec().extend(response, after).tolist()]
    assert grown == codec().begin([*first, Message("assistant", "up"), *after]).tolist()
    assert codec().decode(response) == "up"


def test_the_end_of_a_message_is_the_one_token_that_stops():
    assert codec().stop_token_ids == (tokenizer().eos_token_id,)
    assert tokenizer().pad_token_id not in codec().stop_token_ids
    assert tokenizer().model_max_length >= 100_000


def test_a_saved_tokenizer_is_read_back_as_it_was(tmp_path: Path):
    tokenizer().save_pretrained(tmp_path)
    other = ChatCodec(read_tokenizer(tmp_path))
    messages = [Message("user", "goal up 12 Grüße")]
    assert other.begin(messages).tolist() == codec().begin(messages).tolist()
    assert other.stop_token_ids == codec().stop_token_ids
    assert other.vocabulary == codec().vocabulary


def test_the_same_texts_make_the_same_tokenizer_in_another_process():
    code = f"from windrow.tiny import trained_tokenizer as make; print(sorted(make({TEXTS!r}).get_vocab().items()))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == str(sorted(tokenizer().get_vocab().items()))


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
def test_a_model_has_the_size_that_was_asked_for(kind: Kind):
    import torch

    model = tiny_model(kind, vocab=300, context=40, layers=3, hidden=48, heads=6)
    config = model.config
    sizes = (config.vocab_size, config.max_position_embeddings, config.num_hidden_layers, config.hidden_size)
    assert (*sizes, config.num_attention_heads) == (300, 40, 3, 48, 6)
    assert model(torch.arange(12)[None]).logits.shape == (1, 12, 300)


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_any_number_of_heads_fits_that_divides_the_width(heads: int):
    import torch

    assert tiny_model(hidden=48, heads=heads)(torch.arange(5)[None]).logits.isfinite().all()


def test_a_width_that_its_heads_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"hidden must be a multiple of 2 \* heads = 8, got 60"):
        tiny_model(hidden=60, heads=4)


def test_the_scale_and_the_spread_of_fresh_weights_are_chosen():
    models = [tiny_model(scale=1.0), tiny_model(scale=1.0, spread=0.125), tiny_model()]
    usual, wide, lively = (model.state_dict() for model in models)
    assert float(usual["lm_head.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(wide["lm_head.weight"].std()) == pytest.approx(0.125, rel=0.05)
    assert all((lively[name] == 4 * usual[name]).all() for name in usual)
    assert (wide["model.norm.weight"] == 1).all()


def test_the_same_seed_makes_the_same_model_and_leaves_chance_alone():
    import torch

    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (tiny_model(seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_saved_model_is_read_back_as_it_was(tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    model = tiny_model(vocab=len(tokenizer()), hidden=32, heads=2, scale=1.0)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    tokens = torch.from_numpy(codec().encode("goal up safe down").astype(np.int64))[None]
    assert torch.equal(again(tokens).logits, model(tokens).logits)
