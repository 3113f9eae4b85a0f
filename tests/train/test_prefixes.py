"""What rows begin with in common is computed once, and nothing that is said about them changes."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train import kit
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from windrow.cluster.config import EngineConfig
from windrow.engines.torch.models import made
from windrow.engines.torch.settings import TorchSettings
from windrow.pipelines.playing import EngineMaker
from windrow.text import ChatCodec
from windrow.tiny import tiny_model, tiny_tokenizer
from windrow.train.attention import ATTENTION
from windrow.train.config import CriticConfig, LoraConfig, MicroConfig, ModelConfig, OptimizerConfig, TrainConfig
from windrow.train.learner import Learner, score
from windrow.train.micro import READ_AGAIN, cut_shared, share_shared, shared_tokens
from windrow.train.models import load_model, silenced
from windrow.train.networks import Policy, Values, can_share
from windrow.train.prefixes import in_order, numbered
from windrow.train.roles import Actor, Critic
from windrow.train.roles.base import added
from windrow.train.rows import Piece, Rows, column, pieces

KINDS = ["qwen2", "llama", "gpt2"]
ONCE, APART = MicroConfig(), MicroConfig(share_prefixes=False)
TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12)


def table(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Texts as rows, with something behind their ends that does not count, and their lengths."""
    rows = np.array([text + [7] * (6 - len(text)) for text in texts], np.int64)
    return rows, np.array([len(text) for text in texts], np.int64)


@given(TEXTS)
def test_rows_have_a_token_in_common_if_they_are_equal_up_to_it(texts: list[list[int]]):
    ids, lengths = table(texts)
    order = in_order(ids, lengths)
    assert sorted(order.rows.tolist()) == list(range(len(texts)))
    numbers = numbered(lengths[order.rows], order.common)
    begun: dict[tuple[int, ...], int] = {}
    for row, of in zip(order.rows, numbers, strict=True):
        for place in range(lengths[row]):
            assert begun.setdefault(tuple(texts[row][: place + 1]), of[place]) == of[place]
        assert set(of[lengths[row] :]) <= {of[lengths[row] - 1]}
    assert sorted(begun.values()) == list(range(len(begun)))


@given(TEXTS, st.integers(1, 20), st.integers(1, 4))
def test_every_row_is_in_one_micro_batch_that_keeps_the_budget(texts: list[list[int]], budget: int, ranks: int):
    ids, lengths = table(texts)
    order = in_order(ids, lengths)
    sizes = lengths[order.rows]
    shares = share_shared(sizes, order.common, ranks, budget)
    assert len({len(parts) for parts in shares}) == 1
    parts = [part for each in shares for part in each if part]
    assert sorted(row for part in parts for row in part) == list(range(len(texts)))
    for part in parts:
        different = {tuple(texts[order.rows[row]][: place + 1]) for row in part for place in range(sizes[row])}
        assert shared_tokens([[part]], sizes, order.common) == len(different)
        assert len(part) == 1 or (len(different) <= budget and sizes[part].sum() <= READ_AGAIN * budget)


def test_a_full_micro_batch_ends_where_the_least_is_in_common():
    lengths, common = np.full(8, 10), np.array([0, 8, 8, 8, 2, 8, 8, 8])
    assert cut_shared(lengths, common, 26) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut_shared(lengths, common, 18) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut_shared(lengths, common, 14) == [[0, 1, 2], [3], [4, 5, 6], [7]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [16384, 20, 9])
def test_log_probabilities_and_entropies_are_those_of_each_row_alone(kind, tokens):
    model, batch = silenced(kit.model(kind)), kit.siblings(temperature=0.7)
    policy = Policy(model)
    said = score(policy, Rows.of(batch), MicroConfig(tokens=tokens), 0.7)
    assert policy.shares
    torch.testing.assert_close(said.logprobs, kit.plain_logprobs(model, batch, 0.7).detach())
    plain = score(Policy(silenced(kit.model(kind))), Rows.of(batch), APART, 0.7)
    torch.testing.assert_close(said.entropy, plain.entropy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [16384, 20])
def test_gradients_are_those_of_rows_that_are_computed_apart(kind, tokens):
    once = gradients(Policy(silenced(kit.model(kind))), MicroConfig(tokens=tokens))
    apart = gradients(Policy(silenced(kit.model(kind))), APART)
    kit.assert_alike(once, apart)


def test_a_token_that_several_rows_have_is_computed_once():
    policy, seen = Policy(kit.model()), []
    policy.backbone.register_forward_hook(lambda _, __, out: seen.append(out.last_hidden_state.shape[:2].numel()))
    rows = Rows.of(kit.siblings())
    score(policy, rows, ONCE)
    score(policy, rows, APART)
    assert seen == [kit.SIBLINGS_ONCE, len(rows) * 13]
    assert [piece.tokens for piece in pieces(rows, ONCE, shares=True)] == [kit.SIBLINGS_ONCE]


def test_rows_that_have_nothing_in_common_are_padded_as_ever():
    rows = Rows.of(kit.batch([(3, 4), (3, 4), (4, 3), (2, 5)]))
    assert [piece.asked.layout for piece in pieces(rows, ONCE, shares=True)] == [None]


def test_rows_with_and_without_something_in_common_are_read_together():
    model, batch = kit.model(), kit.siblings()
    ids = column(batch, "input_ids")
    ids[2] = torch.randint(1, kit.VOCABULARY, ids[2].shape)
    rows = Rows.of(batch)
    piece = next(pieces(rows, ONCE, shares=True))
    assert kit.SIBLINGS_ONCE < piece.tokens < kit.SIBLINGS_APART
    torch.testing.assert_close(score(Policy(model), rows, ONCE).logprobs, kit.plain_logprobs(model, batch).detach())


def test_equal_rows_are_one_and_each_is_answered():
    model, batch = kit.model(), kit.batch([(3, 4), (3, 4)])
    ids = column(batch, "input_ids")
    ids[1] = ids[0]
    rows = Rows.of(batch)
    assert next(pieces(rows, ONCE, shares=True)).tokens == 7
    torch.testing.assert_close(score(Policy(model), rows, ONCE).logprobs, kit.plain_logprobs(model, batch).detach())


def test_values_and_what_a_critic_learns_are_the_same():
    fast = CriticConfig(optimizer=OptimizerConfig(lr=1e-2, eps=1e-3), clip=None)
    once, apart = (Critic(TrainConfig(critic=fast, micro=micro), kit.model()) for micro in (ONCE, APART))
    for critic in (once, apart):
        batch = critic.values(kit.siblings())
        for _ in range(2):
            critic.train(added(batch, returns=column(batch, "response_mask") * 1.0))
    one, other = (column(critic.values(kit.siblings()), "values") for critic in (once, apart))
    assert bool(other.any())
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("again", [False, True])
def test_an_update_is_the_same_with_adapters_and_with_activations_that_are_computed_again(tmp_path, lora, again):
    kit.model("llama").save_pretrained(tmp_path)
    model = ModelConfig(path=str(tmp_path), lora=lora, activation_checkpointing=again)
    told, found = [], []
    for micro in (ONCE, APART):
        config = kit.config(micro=micro, optimizer=OptimizerConfig(lr=1e-2, eps=1e-3))
        actor = Actor(config, model)
        told.append([actor.train(kit.with_advantages(kit.siblings(seed=seed))) for seed in (0, 1)])
        found.append(kit.weights(actor.learner))
    kit.assert_alike(found[0], found[1], share=1e-3)
    for one, other in zip(*told, strict=True):
        assert one["train/tokens"] == kit.SIBLINGS_ONCE < other["train/tokens"]
        assert one["train/grad_norm"] == pytest.approx(other["train/grad_norm"], rel=1e-4)
        assert one["train/mismatch_mean"] == pytest.approx(other["train/mismatch_mean"], rel=1e-4)


def test_half_precision_is_as_near_as_it_is_apart():
    exact = gradients(Policy(kit.model(scale=1.0)), APART)
    once, apart = (gradients(Policy(kit.model(scale=1.0), dtype=torch.bfloat16), micro) for micro in (ONCE, APART))
    for name, wanted in exact.items():
        near, usual = ((each[name] - wanted).norm() / wanted.norm() for each in (once, apart))
        assert near <= 2 * usual + 0.01, name


@pytest.mark.parametrize("network", [Policy, Values])
def test_a_network_that_was_given_another_attention_meanwhile_is_read_as_ever(network):
    model, rows = kit.model(), Rows.of(kit.siblings())
    learner = Learner(network(model), OptimizerConfig(), ONCE)
    assert next(learner.pieces(rows)).asked.layout is not None
    model.set_attn_implementation("sdpa")
    assert next(learner.pieces(rows)).asked.layout is None


def test_an_engine_of_the_same_configuration_leaves_attention_as_it_is():
    policy = Policy(kit.model())
    made(policy.model.config, TorchSettings())
    assert policy.shares


def test_engines_of_a_run_leave_the_attention_of_its_trainer_as_it_is():
    policy = Policy(tiny_model("llama"))
    codec = ChatCodec(tiny_tokenizer())
    make = EngineMaker(policy.model, policy.model.state_dict(), TorchSettings(capacity=1), version=0)
    make("engine", (0,), EngineConfig(codec=codec))
    assert policy.shares


def test_packing_comes_first_where_somebody_asked_for_it():
    rows = Rows.of(kit.siblings())
    assert next(pieces(rows, MicroConfig(packing=True), shares=True)).tokens == kit.SIBLINGS_APART


def windowed() -> Any:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": kit.VOCABULARY}
    return MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=9)).eval()


def eager() -> Any:
    model = kit.model()
    model.set_attn_implementation("eager")
    return model


def with_a_state() -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()


@pytest.mark.parametrize("model", [windowed, eager, with_a_state])
def test_a_model_that_cannot_is_read_as_ever(model):
    made, batch = model(), kit.siblings()
    before = made.config._attn_implementation
    policy = Policy(made)
    assert not policy.shares
    assert made.config._attn_implementation == before
    said = score(policy, Rows.of(batch), ONCE)
    torch.testing.assert_close(said.logprobs, kit.plain_logprobs(made, batch).detach())


def test_a_model_that_ignores_positions_is_found_out():
    model = silenced(kit.model("gpt2"))
    forward = model.base_model.forward

    def forgetful(position_ids: Tensor | None = None, **inputs: Any) -> Any:
        return forward(**inputs)

    model.base_model.forward = forgetful
    assert not can_share(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_raises_is_found_out():
    model = kit.model()
    forward = model.base_model.forward

    def narrow(input_ids: Tensor, *, use_cache: bool) -> Any:
        return forward(input_ids=input_ids, use_cache=use_cache)

    model.base_model.forward = narrow
    assert not can_share(model)
    assert model.config._attn_implementation == "sdpa"


def test_adapters_that_forget_at_random_do_so_in_each_row(tmp_path):
    kit.model().save_pretrained(tmp_path)
    for dropout in (0.0, 0.5):
        model = load_model(ModelConfig(path=str(tmp_path), lora=LoraConfig(rank=2, dropout=dropout)))
        assert Policy(model).shares is (dropout == 0.0)


def test_a_model_that_shares_is_called_by_others_as_ever_and_saved_as_ever(tmp_path):
    plain, sharing = kit.model("llama"), kit.model("llama")
    assert Values(sharing).shares
    assert sharing.config._attn_implementation == ATTENTION
    ids = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]])
    padded = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    assert torch.equal(sharing(**padded).logits, plain(**padded).logits)
    sharing.save_pretrained(tmp_path)
    assert ATTENTION not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


def gradients(policy: Policy, micro: MicroConfig) -> dict[str, Tensor]:
    """Of a sum in which every token has another weight."""
    assert policy.shares
    rows = Rows.of(kit.siblings())
    rows = rows.but(weights=torch.linspace(-1, 2, rows.mask.numel()).reshape(rows.mask.shape))

    def loss(piece: Piece) -> Tensor:
        said = policy(piece.asked, 0.8, entropy_counts=True)
        return (piece.spread(said.logprobs + said.entropy) * piece.columns["weights"]).sum()

    for piece in Learner(policy, OptimizerConfig(), micro).pieces(rows):
        loss(piece).backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters()}  # type: ignore[misc]
