"""What a model says about tokens: the same as one row at a time with all logits, however it was asked."""

from typing import Any

import pytest
import torch
from tests.train import kit
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, MambaConfig, MambaForCausalLM

from windrow.errors import ConfigError
from windrow.train import networks
from windrow.train.config import MicroConfig
from windrow.train.learner import score
from windrow.train.networks import Policy, Values, check_packing
from windrow.train.rows import Rows, pieces

KINDS = ["qwen2", "llama", "gpt2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("micro", [MicroConfig(), MicroConfig(tokens=9), MicroConfig(packing=True)])
def test_log_probabilities_are_those_of_each_row_alone(kind, temperature, micro):
    model, batch = kit.model(kind), kit.batch()
    said = score(Policy(model), Rows.of(batch), micro, temperature)
    torch.testing.assert_close(said.logprobs, kit.plain_logprobs(model, batch, temperature).detach())


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_give_the_same_gradients(kind):
    padded, packed = (_gradients(kit.model(kind), MicroConfig(packing=packing)) for packing in (False, True))
    kit.assert_alike(packed, padded)


def test_logits_in_chunks_give_the_same_numbers_and_gradients(monkeypatch):
    whole = _gradients(kit.model(), MicroConfig())
    monkeypatch.setattr(networks, "CHUNK", 3 * kit.VOCABULARY)
    chunked = _gradients(kit.model(), MicroConfig())
    kit.assert_alike(chunked, whole)


def test_a_chunk_never_has_more_logits_than_it_may(monkeypatch):
    monkeypatch.setattr(networks, "CHUNK", 3 * kit.VOCABULARY)
    model, seen = kit.model(), []
    policy = Policy(model)
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: seen.append(logits.numel()))
    score(policy, Rows.of(kit.batch()), MicroConfig())
    assert len(seen) > 1
    assert max(seen) == 3 * kit.VOCABULARY


def test_logits_of_several_chunks_are_not_kept_for_the_backward_pass(monkeypatch):
    """They are computed again, so that only one chunk's exist at any time."""
    monkeypatch.setattr(networks, "CHUNK", 3 * kit.VOCABULARY)
    model, seen = kit.model(), []
    policy = Policy(model)
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: seen.append(logits.numel()))
    said = policy(next(pieces(Rows.of(kit.batch()), MicroConfig())).asked, 1.0)
    before = len(seen)
    said.logprobs.sum().backward()
    assert len(seen) == 2 * before > 2


def test_logits_are_computed_only_where_a_token_was_sampled():
    model, seen = kit.model(), []
    policy, rows = Policy(model), Rows.of(kit.batch())
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: seen.append(len(logits)))
    score(policy, rows, MicroConfig())
    assert seen == [rows.tokens()]


def test_the_entropy_is_that_of_the_whole_distribution():
    model, batch = kit.model(), kit.batch([(2, 1)])
    said = score(Policy(model), Rows.of(batch), MicroConfig(), 0.5)
    logits = model(input_ids=batch.batch["input_ids"]).logits[0, 1] / 0.5  # type: ignore[index]
    wanted = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(said.entropy[0, 2], wanted.detach())


@pytest.mark.parametrize("counts", [True, False])
def test_gradients_flow_through_the_entropy_only_where_it_counts(counts):
    policy = Policy(kit.model())
    piece = next(pieces(Rows.of(kit.batch()), MicroConfig()))
    assert policy(piece.asked, 1.0, entropy_counts=counts).entropy.requires_grad is counts


def test_whatever_a_model_does_to_its_logits_counts():
    """Gemma 2 bends logits after its head, so that no head alone gives its probabilities."""
    sizes: dict[str, Any] = {
        "vocab_size": kit.VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": None}
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**sizes, **heads, final_logit_softcapping=0.5)).eval()
    batch = kit.batch()
    for micro in (MicroConfig(), MicroConfig(packing=True)):
        said = score(Policy(model), Rows.of(batch), micro)
        torch.testing.assert_close(said.logprobs, kit.plain_logprobs(model, batch).detach())


def test_bfloat16_is_near_float32_and_leaves_weights_and_gradients_in_float32():
    model = kit.model()
    exact = score(Policy(model), Rows.of(kit.batch()), MicroConfig()).logprobs
    policy = Policy(model, dtype=torch.bfloat16)
    near = score(policy, Rows.of(kit.batch()), MicroConfig()).logprobs
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=0.2, rtol=0.05)
    gradients = _gradients(model, MicroConfig(), torch.bfloat16)
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}


def test_a_model_that_cannot_keep_packed_rows_apart_is_refused_by_name():
    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(
        ConfigError, match=r"MambaModel .*; set train.micro.packing=false|MambaModel cannot read packed"
    ):
        check_packing(Policy(model.eval()))


def test_a_model_that_ignores_positions_is_refused_by_name():
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = kit.model().base_model

        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **_: bool) -> object:
            return self.inner(input_ids=input_ids)

    values = Values(kit.model())
    values.backbone = Forgetful()
    with pytest.raises(ConfigError, match="Forgetful does not keep packed rows apart"):
        check_packing(values)


def test_a_value_is_said_before_its_token_is_seen():
    """It stands at the token, and must not know it."""
    values = Values(kit.model())
    nn.init.normal_(values.head.weight)
    batch = kit.batch([(3, 3)])
    ids = batch.batch["input_ids"]  # type: ignore[index]
    before = values(next(pieces(Rows.of(batch), MicroConfig())).asked)
    ids[0, 4] = (ids[0, 4] + 1) % kit.VOCABULARY
    after = values(next(pieces(Rows.of(batch), MicroConfig())).asked)
    assert torch.equal(after[:2], before[:2])
    assert after[2] != before[2]


def test_a_model_without_a_head_is_refused_by_name():
    with pytest.raises(ConfigError, match="Qwen2Model has no head over a vocabulary"):
        Policy(kit.model().base_model)


def _gradients(model, micro: MicroConfig, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Of a sum in which every token has another weight."""
    policy, rows = Policy(model, dtype=dtype), Rows.of(kit.batch())
    rows = rows.but(weights=torch.linspace(-1, 2, rows.mask.numel()).reshape(rows.mask.shape))
    for piece in pieces(rows, micro):
        said = policy(piece.asked, 0.8, entropy_counts=True)
        (piece.spread(said.logprobs + said.entropy) * piece.columns["weights"]).sum().backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters()}  # type: ignore[misc]
