"""The critic, and the model that scores."""

from typing import Any

import pytest
import torch
from tests.train import kit
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from windrow.errors import ConfigError, DataError
from windrow.protocol import DataProto
from windrow.train.config import CriticConfig, MicroConfig, OptimizerConfig, TrainConfig
from windrow.train.roles import Actor, Critic, RewardModel
from windrow.train.roles.base import added
from windrow.train.rows import column

FAST = CriticConfig(optimizer=OptimizerConfig(lr=1e-2), clip=None)


def with_returns(batch: DataProto, returns: Tensor) -> DataProto:
    return added(batch, returns=column(batch, "response_mask") * returns)


def test_a_fresh_critic_expects_nothing():
    batch = Critic(kit.config(), kit.model()).values(kit.batch())
    assert torch.equal(column(batch, "values"), torch.zeros(4, 9))


def test_a_critic_learns_what_is_to_come_and_says_how_much_it_knew():
    """Rows with an odd number are worth 1, the others nothing; prompts tell them apart."""
    critic = Critic(TrainConfig(critic=FAST), kit.model())
    worth = torch.arange(4)[:, None] % 2 * 1.0
    told = [critic.train(with_returns(critic.values(kit.batch()), worth)) for _ in range(40)]
    assert told[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert told[-1]["critic/explained_variance"] > 0.9
    assert told[-1]["critic/loss"] < 0.05 * told[0]["critic/loss"]
    mask = column(kit.batch(), "response_mask")
    values = column(critic.values(kit.batch()), "values")
    torch.testing.assert_close(values[mask], (mask * worth)[mask], atol=0.3, rtol=0.0)


def test_values_stand_at_sampled_tokens_and_nowhere_else():
    critic = Critic(TrainConfig(critic=FAST), kit.model())
    critic.train(with_returns(critic.values(kit.batch()), torch.ones(1)))
    values, mask = column(critic.values(kit.batch()), "values"), column(kit.batch(), "response_mask")
    assert bool((values[mask] != 0).all())
    assert not values[~mask].any()


@pytest.mark.parametrize("micro", [MicroConfig(tokens=9), MicroConfig(packing=True)])
def test_values_are_the_same_however_rows_are_cut(micro):
    whole, cut = (Critic(TrainConfig(critic=FAST, micro=each), kit.model()) for each in (MicroConfig(), micro))
    for critic in (whole, cut):
        critic.train(with_returns(critic.values(kit.batch()), torch.ones(1)))
    one, other = (column(critic.values(kit.batch()), "values") for critic in (whole, cut))
    torch.testing.assert_close(other, one, atol=1e-3, rtol=1e-3)


def test_nothing_that_a_critic_learns_reaches_the_actor_that_it_came_from():
    actor = Actor(kit.config(), kit.model())
    critic = Critic(TrainConfig(critic=FAST), actor)
    before = kit.weights(actor.learner)
    for _ in range(3):  # in the first step its head alone moves
        critic.train(with_returns(critic.values(kit.batch()), torch.ones(1)))
    assert all(torch.equal(each, before[name]) for name, each in actor.learner.parameters.items())


def test_a_critic_goes_on_from_a_state():
    first, second = (Critic(TrainConfig(critic=FAST), kit.model(seed=seed)) for seed in (0, 1))
    first.train(with_returns(first.values(kit.batch()), torch.ones(1)))
    second.load_state_dict(first.state_dict())
    one, other = (column(critic.values(kit.batch()), "values") for critic in (first, second))
    assert torch.equal(one, other)


def test_a_critic_takes_its_own_number_of_steps():
    config = TrainConfig(critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-3), epochs=3), minibatches=2)
    critic = Critic(config, kit.model())
    told = critic.train(with_returns(critic.values(kit.batch()), torch.ones(1)))
    assert (told["critic/steps"], critic.learner.steps) == (6.0, 6)


def test_a_batch_without_returns_is_refused():
    critic = Critic(kit.config(), kit.model())
    with pytest.raises(DataError, match="the batch has no column returns"):
        critic.train(critic.values(kit.batch()))


@pytest.fixture
def judge(tmp_path) -> str:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": kit.VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
    }
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 1, "pad_token_id": 3}
    config = Qwen2Config(**sizes, bos_token_id=None, eos_token_id=None)
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("tokens", [9, 1000])
def test_a_row_is_scored_by_its_last_real_token_even_if_that_looks_like_padding(judge, tokens):
    batch = kit.batch()
    lengths = column(batch, "attention_mask").sum(1)
    column(batch, "input_ids")[:, 0] = 0  # what rows are padded with is a word like any other
    column(batch, "input_ids")[torch.arange(4), lengths - 1] = 3  # the model's own padding token
    model = RewardModel(judge, micro=MicroConfig(tokens=tokens))
    found = column(model.scores(batch), "model_scores")
    for row, length in enumerate(lengths.tolist()):
        ids = column(batch, "input_ids")[row : row + 1, :length]
        model.model.config.pad_token_id = 31 if not (ids == 31).any() else 30
        torch.testing.assert_close(found[row], model.model(input_ids=ids).logits[0, 0])


def test_a_model_with_several_labels_is_refused(judge):
    model = Qwen2ForSequenceClassification.from_pretrained(judge, num_labels=2, ignore_mismatched_sizes=True)
    model.save_pretrained(judge)
    with pytest.raises(ConfigError, match="has 2 labels; one that scores has 1"):
        RewardModel(judge)
