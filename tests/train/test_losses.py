"""Losses per token and the weights of tokens: worked out by hand."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.errors import ConfigError, DataError
from windrow.train import losses
from windrow.train.config import Aggregation, KlKind, LossConfig
from windrow.train.losses import Sampled, TokenLoss

AGGREGATIONS: tuple[Aggregation, ...] = ("token_mean", "sequence_mean", "constant")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers])


def ratios(*numbers: float) -> Tensor:
    """Log-probabilities that have these ratios to an old policy of probability ½."""
    return row(*numbers).log() + math.log(0.5)


def old(tokens: int) -> Tensor:
    return torch.full((1, tokens), math.log(0.5))


def close(found: Tensor, *wanted: float) -> bool:
    return torch.allclose(found, row(*wanted), atol=1e-5)


def everywhere(tokens: int) -> Tensor:
    return torch.ones(1, tokens, dtype=torch.bool)


def test_ppo_by_hand():
    """Good tokens are held at 1.3 from above, bad ones at 0.8 from below; elsewhere −A·ratio."""
    made = losses.ppo(
        ratios(1.0, 1.5, 0.5, 1.5, 0.5), old(5), row(2.0, 2.0, 2.0, -2.0, -2.0), clip_low=0.2, clip_high=0.3
    )
    assert close(made.per_token, -2.0, -2.6, -1.0, 3.0, 1.6)
    assert made.diagnostics["clip_share"].tolist() == [[0.0, 1.0, 0.0, 0.0, 1.0]]
    assert close(made.diagnostics["ratio"], 1.0, 1.5, 0.5, 1.5, 0.5)


def test_dual_clip_bounds_what_a_bad_token_can_cost():
    """5 × −A = 10 becomes 3 × −A = 6; good tokens and small ratios stay."""
    found = losses.ppo(ratios(5.0, 2.0, 5.0), old(3), row(-2.0, -2.0, 2.0), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert close(found.per_token, 6.0, 4.0, -2.4)
    assert found.diagnostics["dual_clip_share"].tolist() == [[1.0, 0.0, 0.0]]


def test_the_distance_from_the_old_policy_by_hand():
    """r − 1 − log r."""
    found = losses.pg(ratios(1.0, 2.0), old(2), row(1.0, 1.0)).diagnostics["kl_old"]
    assert close(found, 0.0, 1 - math.log(2))


def test_gspo_has_one_ratio_per_row():
    """Sampled ratios 2 and 8: the root of 16 is 4, held at 1.5 where that is worse; the third place was not sampled."""
    mask = torch.tensor([[True, True, False]])
    found = losses.gspo(ratios(2.0, 8.0, 9.0), old(3), row(1.0, -1.0, 0.0), mask, clip_low=0.5, clip_high=0.5)
    assert close(found.per_token, -1.5, 4.0, 0.0)
    assert found.diagnostics["clip_share"].tolist() == [[1.0, 0.0, 0.0]]
    assert close(found.diagnostics["row_ratio"], 4.0, 4.0, 4.0)


def test_cispo_by_hand():
    """The weight 3 is held at 1.5, 0.25 at 0.5; × −A × log-probability."""
    now = ratios(3.0, 1.0, 0.25)
    found = losses.cispo(now, old(3), row(2.0, 2.0, -1.0), clip_low=0.5, clip_high=0.5)
    assert close(found.per_token, -1.5 * 2 * math.log(1.5), -2 * math.log(0.5), 0.5 * math.log(0.125))
    assert found.diagnostics["clip_share"].tolist() == [[1.0, 0.0, 1.0]]


def test_cispo_without_a_lower_bound():
    found = losses.cispo(ratios(0.01), old(1), row(1.0), clip_low=5.0, clip_high=0.5)
    assert close(found.per_token, -0.01 * math.log(0.005))


def test_topr_by_hand():
    """Ratios ½ and ½ of a row multiply to ¼; a good token weighs 1 all the same."""
    now = ratios(0.5, 0.5)
    found = losses.topr(now, old(2), row(-2.0, 2.0), everywhere(2))
    assert close(found.per_token, 0.25 * 2 * math.log(0.25), -2 * math.log(0.25))
    assert found.diagnostics["taper_share"].tolist() == [[1.0, 0.0]]


def test_topr_never_weighs_a_bad_row_above_one():
    """½ × 6 = 3 is truncated to 1; a place that was not sampled is no part of the product."""
    mask = torch.tensor([[True, True, False]])
    found = losses.topr(ratios(0.5, 6.0, 0.01), old(3), row(-1.0, -1.0, 0.0), mask)
    assert close(found.per_token, math.log(0.25), math.log(3.0), 0.0)


def test_plain_policy_gradient_by_hand():
    assert close(losses.pg(row(-1.0, -2.0), row(0.0, 0.0), row(3.0, -1.0)).per_token, 3.0, -2.0)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("k1", math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 0.5 - 1 + math.log(2)),  # ref / policy − 1 − log(ref / policy)
    ],
)
def test_kl_of_a_token_that_is_twice_as_likely_as_in_the_reference(kind: KlKind, wanted: float):
    assert close(losses.kl(ratios(2.0), old(1), kind), wanted)


def test_kl_estimates_agree_with_the_exact_distance():
    """Averaged over what the policy samples, k1 and k3 are the distance itself; k2 is not."""
    policy, ref = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = float((policy * (policy / ref).log()).sum())
    mean = {kind: float((policy * losses.kl(policy.log(), ref.log(), kind)).sum()) for kind in ("k1", "k2", "k3")}
    assert mean["k1"] == pytest.approx(exact, abs=1e-6)
    assert mean["k3"] == pytest.approx(exact, abs=1e-6)
    assert abs(mean["k2"] - exact) > 0.005


def test_entropy_by_hand():
    """Of ½, ¼, ¼: 1.5 bits. A token that cannot come adds nothing, one that surely comes leaves nothing."""
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]).log()
    assert torch.allclose(losses.entropy(logits), torch.tensor([1.5 * math.log(2), 0.0]), atol=1e-6)


def test_extreme_ratios_stay_finite():
    far = row(-300.0, 0.0)
    for name in ("ppo", "gspo", "cispo", "topr", "pg"):
        now = row(0.0, -300.0).requires_grad_()
        sampled = Sampled(now, far, row(1.0, -1.0), everywhere(2))
        found = losses.policy_loss(LossConfig(kind=name, dual_clip=None), sampled)
        found.per_token.sum().backward()
        assert bool(found.per_token.isfinite().all()), name
        assert now.grad is not None
        assert bool(now.grad.isfinite().all()), name
        assert all(bool(each.isfinite().all()) for each in found.diagnostics.values()), name


MASK = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]).bool()


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        ("token_mean", [1 / 7, 1 / 7, 0, 1 / 7]),
        ("sequence_mean", [1 / 12, 1 / 3, 0, 1 / 6]),  # three rows have tokens: 4, 1 and 2 of them
        ("constant", [1 / 40, 1 / 40, 0, 1 / 40]),  # four rows of ten
    ],
)
def test_weights_of_tokens_by_hand(aggregation: Aggregation, wanted: list[float]):
    found = losses.token_weights(MASK, aggregation, constant=10.0)
    assert torch.allclose(found, MASK * torch.tensor(wanted)[:, None])
    assert found.dtype == torch.float32


def test_rows_that_were_added_do_not_count_where_rows_are_counted():
    """Only `constant` asks for it: the others count what has tokens."""
    padded = torch.cat([MASK, torch.zeros_like(MASK)])
    for aggregation in AGGREGATIONS:
        found = losses.token_weights(padded, aggregation, constant=10.0, rows=len(MASK))
        assert torch.equal(found[: len(MASK)], losses.token_weights(MASK, aggregation, constant=10.0))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_mini_batch_without_tokens_weighs_nothing(aggregation: Aggregation):
    found = losses.token_weights(torch.zeros(2, 3, dtype=torch.bool), aggregation, constant=1.0)
    assert found.tolist() == [[0.0] * 3] * 2


def test_a_constant_must_be_given_where_one_divides():
    with pytest.raises(ConfigError, match=r"loss\.constant"):
        losses.token_weights(MASK, "constant")


@given(
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), max_size=4),
    st.sampled_from(AGGREGATIONS),
    st.sampled_from(["ppo", "gspo", "cispo", "topr", "pg"]),
)
def test_the_loss_is_the_same_however_a_mini_batch_is_cut(
    rows: list[list[bool]], cuts: list[int], aggregation: Aggregation, kind: str
):
    """Value and gradient, for micro-batches that keep rows whole."""
    mask = torch.tensor(rows)
    draw = torch.Generator().manual_seed(len(rows))
    now, before, advantages, ref, entropy = (torch.randn(mask.shape, generator=draw) / 4 for _ in range(5))
    config = LossConfig(kind=kind, kl=0.1, entropy=0.01, aggregation=aggregation, constant=5.0)  # type: ignore[arg-type]
    weights = losses.token_weights(mask, aggregation, 5.0)

    def total(logprobs: Tensor, part: slice) -> Tensor:
        rest = (before[part], advantages[part], mask[part], None, ref[part], entropy[part])
        made = losses.policy_loss(config, Sampled(logprobs[part], *rest))
        return (made.per_token * weights[part]).sum()

    whole, in_parts = now.clone().requires_grad_(), now.clone().requires_grad_()
    one = total(whole, slice(None))
    one.backward()
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [total(in_parts, slice(begin, end)) for begin, end in pairwise(bounds)]
    torch.stack(parts).sum().backward()
    assert one.item() == pytest.approx(sum(part.item() for part in parts), abs=1e-5)
    assert whole.grad is not None
    assert in_parts.grad is not None
    assert torch.allclose(whole.grad, in_parts.grad, atol=1e-6)


def given_sampled(**others: Tensor) -> Sampled:
    return Sampled(ratios(1.5, 1.0, 9.0), old(3), row(2.0, -1.0, 7.0), torch.tensor([[True, True, False]]), **others)


def test_the_whole_loss_by_hand():
    """Policy −2.4 and 1, corrected by ½ and 1; + 0.1 × k2 of ratios 2 and 1 to the reference; − 0.01 × entropy."""
    config = LossConfig(kl=0.1, kl_kind="k2", entropy=0.01)
    sampled = given_sampled(
        correction=row(0.5, 1.0, 0.0), ref=ratios(0.75, 1.0, 1.0), entropy=row(3.0, 5.0, float("nan"))
    )
    found = losses.policy_loss(config, sampled)
    assert close(found.per_token, -1.2 + 0.1 * math.log(2) ** 2 / 2 - 0.03, 1.0 - 0.05, 0.0)
    assert close(found.diagnostics["policy_loss"][:, :2], -1.2, 1.0)
    assert close(found.diagnostics["kl"][:, :2], math.log(2) ** 2 / 2, 0.0)
    assert close(found.diagnostics["entropy"], 3.0, 5.0, 0.0)


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo", "topr", "pg"])
def test_settings_choose_the_formula(kind: str):
    now, before, advantages, mask, *_ = given_sampled()
    bounds = {"clip_low": 0.1, "clip_high": 0.3}
    table: dict[str, TokenLoss] = {
        "ppo": losses.ppo(now, before, advantages, **bounds, dual_clip=2.0),
        "gspo": losses.gspo(now, before, advantages, mask, **bounds),
        "cispo": losses.cispo(now, before, advantages, **bounds),
        "topr": losses.topr(now, before, advantages, mask),
        "pg": losses.pg(now, before, advantages),
    }
    given = {} if kind in ("topr", "pg") else bounds
    config = LossConfig(kind=kind, **given, dual_clip=2.0 if kind == "ppo" else None)  # type: ignore[arg-type]
    found = losses.policy_loss(config, given_sampled())
    assert torch.allclose(found.per_token[:, :2], table[kind].per_token[:, :2])
    assert found.per_token[0, 2] == 0.0


@pytest.mark.parametrize(("kind", "bounds"), [("ppo", (0.2, 0.2)), ("gspo", (3e-4, 4e-4)), ("cispo", (1.0, 4.0))])
def test_every_loss_has_the_bounds_that_it_was_published_with(kind: Any, bounds: tuple[float, float]):
    assert LossConfig(kind=kind).clips == bounds
    assert LossConfig(kind=kind, clip_high=0.5).clips == (bounds[0], 0.5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "topr", "clip_high": 0.2}, "clip_high 0.2 changes nothing with topr"),
        ({"kind": "pg", "clip_low": 0.1}, "clip_low 0.1 changes nothing with pg"),
        ({"kind": "gspo", "dual_clip": 3.0}, "dual_clip 3 changes nothing with gspo"),
    ],
)
def test_a_bound_that_a_loss_does_not_have_is_refused(settings: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        LossConfig(**settings)


def test_what_was_not_sampled_may_hold_anything():
    nothing = float("nan")
    logprobs = row(-1.0, nothing, nothing).requires_grad_()
    mask = torch.tensor([[True, False, False]])
    junk = row(-1.0, float("inf"), nothing)
    for kind in ("ppo", "gspo", "cispo", "topr", "pg"):
        config = LossConfig(kind=kind, kl=0.1, entropy=0.1)
        sampled = Sampled(logprobs, junk, row(1.0, nothing, 1.0), mask, row(1.0, nothing, 0.0), junk, junk)
        made, diagnostics = losses.policy_loss(config, sampled)
        (gradient,) = torch.autograd.grad(made.sum(), logprobs)
        for numbers in (made, gradient, *diagnostics.values()):
            assert bool(numbers.isfinite().all()), kind
            assert numbers[0, 1:].tolist() == [0.0, 0.0], kind


def test_a_term_that_counts_needs_what_it_is_made_from():
    with pytest.raises(ConfigError, match=r"loss\.kl is 0\.1 but there is no reference"):
        losses.policy_loss(LossConfig(kl=0.1), given_sampled())
    with pytest.raises(ConfigError, match=r"loss\.entropy is 0\.1 but entropies"):
        losses.policy_loss(LossConfig(entropy=0.1), given_sampled())


def test_the_loss_of_values_by_hand():
    """½·(1 − 3)²; held at 0.5 the first is ½·(0.5 − 3)²; the second moved the other way and is worse as it is."""
    values, before, returns = row(1.0, -1.0), row(0.0, 0.0), row(3.0, 3.0)
    assert close(losses.value_loss(values, before, returns, None).per_token, 2.0, 8.0)
    found = losses.value_loss(values, before, returns, 0.5)
    assert close(found.per_token, 3.125, 8.0)
    assert found.diagnostics["value_clip_share"].tolist() == [[1.0, 0.0]]
    assert close(found.diagnostics["value_error"], 4.0, 16.0)


def test_values_and_returns_of_different_shapes_are_refused():
    with pytest.raises(DataError, match="must have one shape"):
        losses.value_loss(row(1.0, 2.0), row(1.0, 2.0), row(1.0), None)
