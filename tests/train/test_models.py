"""Models and tokenizers: from a folder, or made on the spot."""

from typing import Any

import pytest
import torch
from tests.train import kit
from transformers import GPT2Config, GPT2LMHeadModel

from windrow.errors import ConfigError
from windrow.tiny import tiny_tokenizer
from windrow.train.config import ModelConfig, TinyConfig
from windrow.train.models import load_model, load_tokenizer

TINY = TinyConfig(hidden=16, layers=2, heads=2, context=32, vocabulary=300)


def test_a_model_that_is_made_has_the_size_that_was_asked_for():
    model = load_model(ModelConfig(tiny=TINY))
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 2, 2)
    assert (config.max_position_embeddings, config.vocab_size) == (32, 300)
    assert load_model(ModelConfig(tiny=TINY), vocabulary=270).config.vocab_size == 270


def test_the_seed_decides_the_weights_of_a_model_that_is_made():
    one, same, other = (_flat(load_model(ModelConfig(tiny=TINY), seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_weights_of_a_folder_are_float32_whatever_they_were_saved_as(tmp_path):
    saved = kit.model().to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(path=str(tmp_path)))
    assert {each.dtype for each in loaded.parameters()} == {torch.float32}
    assert torch.equal(_flat(loaded), _flat(saved).float())


def test_nothing_in_a_model_is_random(tmp_path):
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5)).save_pretrained(tmp_path)
    model = load_model(ModelConfig(path=str(tmp_path))).train()
    ids = torch.arange(8)[None]
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_activations_that_are_computed_again_give_the_same_gradients(tmp_path, kind):
    kit.model(kind).save_pretrained(tmp_path)
    gradients = []
    for again in (False, True):
        model = load_model(ModelConfig(path=str(tmp_path), activation_checkpointing=again)).train()
        assert model.is_gradient_checkpointing is again
        model(input_ids=torch.arange(8)[None], use_cache=False).logits.square().sum().backward()
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(*gradients)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json; give a folder that save_pretrained wrote, or tiny"):
        load_model(ModelConfig(path=str(tmp_path)))


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="device cuda:7: "):
        load_model(ModelConfig(tiny=TINY, device="cuda:7"))


@pytest.mark.parametrize("place", ["folder", "tiny"])
def test_a_way_to_compute_attention_that_is_not_installed_is_refused(tmp_path, place):
    kit.model().save_pretrained(tmp_path)
    path = str(tmp_path) if place == "folder" else "tiny"
    with pytest.raises(ConfigError, match=r"flash_attn|FlashAttention"):
        load_model(ModelConfig(path=path, tiny=TINY, attention="flash_attention_2"))


def test_a_tokenizer_comes_from_the_folder_or_learns_from_texts(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    kit.model().save_pretrained(tmp_path)
    assert load_tokenizer(ModelConfig(path=str(tmp_path))).get_vocab() == tiny_tokenizer().get_vocab()
    learnt = load_tokenizer(ModelConfig(tiny=TINY), ["go left", "go right"] * 9)
    assert len(learnt.encode("left")) < len("left")


def _flat(model) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])
