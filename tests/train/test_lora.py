"""Adapters instead of all weights."""

import sys

import pytest
import torch
from tests.train import kit

from windrow.errors import ConfigError
from windrow.train.config import (
    CorrectionConfig,
    CriticConfig,
    LoraConfig,
    LossConfig,
    MicroConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from windrow.train.models import load_model
from windrow.train.roles import Actor, Critic, Reference
from windrow.train.roles.base import added
from windrow.train.rows import column


@pytest.fixture(params=["qwen2", "gpt2"])
def folder(request, tmp_path) -> str:
    kit.model(request.param).save_pretrained(tmp_path)
    return str(tmp_path)


def adapted(folder: str, **settings) -> ModelConfig:
    return ModelConfig(path=folder, lora=LoraConfig(rank=2, **settings))


def test_only_adapters_are_trained_and_they_begin_as_nothing(folder):
    actor = Actor(kit.config(), adapted(folder))
    assert actor.has_adapters
    assert all("lora_" in name for name in actor.learner.parameters)
    plain = Actor(kit.config(), ModelConfig(path=folder))
    torch.testing.assert_close(actor.score(kit.batch()).logprobs, plain.score(kit.batch()).logprobs)


def test_an_actor_with_adapters_learns_and_its_base_stays(folder):
    plain = LossConfig(correction=CorrectionConfig(mismatch_cap=None))
    actor = Actor(kit.config(0.01, loss=plain), adapted(folder))
    before = {name: each.clone() for name, each in actor.model.named_parameters() if not each.requires_grad}
    first = actor.score(kit.batch()).logprobs.sum(1)
    for _ in range(8):
        actor.train(kit.with_advantages(kit.batch()))
    moved = actor.score(kit.batch()).logprobs.sum(1) - first
    assert float(moved[1::2].sum()) > 0 > float(moved[::2].sum())
    assert all(torch.equal(each, before[name]) for name, each in actor.model.named_parameters() if name in before)


def test_the_reference_is_the_actor_with_its_adapters_switched_off(folder):
    actor = Actor(kit.config(0.05), adapted(folder))
    reference = Reference(actor.config, actor)
    assert reference.state_dict() == {}, "no weights exist twice"
    first = actor.score(kit.batch()).logprobs
    actor.train(kit.with_advantages(kit.batch()))
    assert torch.equal(column(reference.log_probs(kit.batch()), "ref_logprobs"), first)
    assert not torch.equal(actor.score(kit.batch()).logprobs, first), "they are on again"


def test_a_state_holds_adapters_alone_and_training_goes_on_from_it(folder):
    whole, first, second = (Actor(kit.config(), adapted(folder), seed=seed) for seed in (0, 0, 3))
    batches = [kit.with_advantages(kit.batch(seed=seed)) for seed in range(3)]
    for batch in batches:
        whole.train(batch)
    first.train(batches[0])
    state = first.state_dict()
    assert sum(each.numel() for each in state["weights"].values()) < 0.5 * sum(
        each.numel() for each in first.model.parameters()
    )
    second.load_state_dict(state)
    for batch in batches[1:]:
        second.train(batch)
    assert torch.equal(second.score(kit.batch()).logprobs, whole.score(kit.batch()).logprobs)


def test_adapters_are_trained_with_activations_that_are_computed_again(tmp_path):
    kit.model().save_pretrained(tmp_path)
    found = []
    for again in (False, True):
        model = ModelConfig(path=str(tmp_path), lora=LoraConfig(rank=2), activation_checkpointing=again)
        actor = Actor(kit.config(0.05, micro=MicroConfig(packing=True)), model)
        actor.train(kit.with_advantages(kit.batch()))
        found.append(actor.score(kit.batch()).logprobs)
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def test_a_critic_of_an_actor_with_adapters_has_adapters_of_its_own(tmp_path):
    kit.model().save_pretrained(tmp_path)
    actor = Actor(kit.config(), adapted(str(tmp_path)))
    critic = Critic(TrainConfig(critic=CriticConfig(optimizer=OptimizerConfig(lr=0.01))), actor)
    assert all("lora_" in name or name.startswith("head.") for name in critic.learner.parameters)
    before = kit.weights(actor.learner)
    batch = critic.values(kit.batch())
    for _ in range(3):
        critic.train(added(batch, returns=column(batch, "response_mask") * 1.0))
    assert bool(column(critic.values(kit.batch()), "values").any())
    assert all(torch.equal(each, before[name]) for name, each in actor.learner.parameters.items())


def test_layers_that_are_not_there_are_refused_by_name(tmp_path):
    kit.model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"lora.targets \['nowhere'\]: "):
        load_model(adapted(str(tmp_path), targets=("nowhere",)))


def test_adapters_go_where_they_are_told_to(tmp_path):
    kit.model().save_pretrained(tmp_path)
    model = load_model(adapted(str(tmp_path), targets=("q_proj",)))
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    assert len(names) == 4  # two matrices in each of two layers
    assert all("q_proj.lora_" in name for name in names)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    kit.model().save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)  # as Python itself says that there is none
    with pytest.raises(ConfigError, match=r"model.lora needs the package peft; pip install 'windrow\[lora\]'"):
        load_model(adapted(str(tmp_path)))
