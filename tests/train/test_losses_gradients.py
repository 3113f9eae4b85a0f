"""Which tokens a loss moves, which way, and how much."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from windrow.train import losses
from windrow.train.config import KlKind
from windrow.train.losses import TokenLoss

BOUNDS = {"clip_low": 0.2, "clip_high": 0.2}


def gradient(made: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Of the sum over all places."""
    at = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(made(at).sum(), at)
    return found


def test_ppo_stops_where_it_clips_and_cispo_goes_on():
    """The ratio is 2 everywhere: PPO holds the good token and pulls the bad one by 2; CISPO moves both by 1.2."""
    now, old, advantages = (
        torch.full((1, 2), math.log(0.5)),
        torch.full((1, 2), math.log(0.25)),
        torch.tensor([[1.0, -1.0]]),
    )
    ppo = gradient(lambda at: losses.ppo(at, old, advantages, **BOUNDS).per_token, now)
    cispo = gradient(lambda at: losses.cispo(at, old, advantages, **BOUNDS).per_token, now)
    assert torch.allclose(ppo, torch.tensor([[0.0, 2.0]]))
    assert torch.allclose(cispo, torch.tensor([[-1.2, 1.2]]))


def test_dual_clip_stops_a_bad_token_beyond_its_bound():
    now, old = torch.tensor([[0.0, 0.0]]), torch.tensor([[-math.log(5), -math.log(2)]])
    found = gradient(
        lambda at: losses.ppo(at, old, torch.tensor([[-1.0, -1.0]]), **BOUNDS, dual_clip=3.0).per_token, now
    )
    assert torch.allclose(found, torch.tensor([[0.0, 2.0]]))


@pytest.mark.parametrize("clip_high", [0.2, 0.0])
def test_on_the_old_policy_every_loss_has_the_plain_gradient(clip_high: float):
    """With a ratio of 1, wherever the bounds are, −A per token."""
    torch.manual_seed(0)
    now, advantages, mask = torch.randn(3, 4), torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    bounds = {"clip_low": 0.0, "clip_high": clip_high}
    table: dict[str, Callable[[Tensor], TokenLoss]] = {
        "ppo": lambda at: losses.ppo(at, now, advantages, **bounds),
        "gspo": lambda at: losses.gspo(at, now, advantages, mask, **bounds),
        "cispo": lambda at: losses.cispo(at, now, advantages, **bounds),
        "topr": lambda at: losses.topr(at, now, advantages, mask),
        "pg": lambda at: losses.pg(at, now, advantages),
    }
    for name, made in table.items():
        found = gradient(lambda at, made=made: made(at).per_token, now)  # type: ignore[misc]
        assert torch.allclose(found, -advantages, atol=1e-6), name


def test_gspo_has_the_gradient_of_its_definition():
    """Written out: the mean over rows of max(−A·s, −A·clip(s)) with s = exp(mean of log ratios), one A per row."""
    torch.manual_seed(1)
    now, old = torch.randn(6, 5) / 5, torch.randn(6, 5) / 5
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [0, 1, 0, 1, 0], [1] * 5, [0] * 4 + [1], [1, 1, 0, 0, 0]]).bool()
    advantages = torch.tensor([1.0, -2.0, 0.5, -0.5, 3.0, -1.0])[:, None]
    bounds = {"clip_low": 0.05, "clip_high": 0.05}
    weights = losses.token_weights(mask, "sequence_mean")

    def defined(at: Tensor) -> Tensor:
        ratio = (((at - old) * mask).sum(1) / mask.sum(1)).exp()
        one, other = -advantages[:, 0] * ratio, -advantages[:, 0] * ratio.clamp(0.95, 1.05)
        return torch.maximum(one, other).mean()

    def ours(at: Tensor) -> Tensor:
        return (losses.gspo(at, old, advantages.expand(6, 5), mask, **bounds).per_token * weights).sum()

    assert float(ours(now)) == pytest.approx(float(defined(now)), abs=1e-6)
    found = gradient(ours, now)
    assert torch.allclose(found, gradient(defined, now), atol=1e-7)
    assert 0 < int((found.abs().sum(1) == 0).sum()) < 6  # some rows are clipped, some are not


def test_gspo_moves_each_turn_by_its_own_advantage():
    """The ratio of the row is √2 for both tokens; each has its own A."""
    now, old = torch.tensor([[0.0, 0.0]]), torch.tensor([[-math.log(2), 0.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    bounds = {"clip_low": 0.9, "clip_high": 0.9}
    found = gradient(lambda at: losses.gspo(at, old, torch.tensor([[1.0, -3.0]]), mask, **bounds).per_token, now)
    assert torch.allclose(found, torch.tensor([[-(2**0.5), 3 * 2**0.5]]))


def test_topr_weighs_but_does_not_differentiate_the_ratio():
    now, old = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(2), 0.0]])
    found = gradient(
        lambda at: losses.topr(at, old, torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)).per_token, now
    )
    assert torch.allclose(found, torch.tensor([[0.5, -1.0]]))


@pytest.mark.parametrize(("kind", "wanted"), [("k1", "reverse"), ("k2", "reverse"), ("k3", "forward")])
def test_gradients_of_kl_are_as_promised(kind: KlKind, wanted: str):
    """Averaged over what the policy samples: k1 and k2 descend KL(π ‖ reference), k3 descends KL(reference ‖ π)."""
    logits, ref = torch.tensor([0.9, -0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])

    def reverse(at: Tensor) -> Tensor:
        policy = at.softmax(0)
        return (policy * (policy.log() - ref.log())).sum()

    def forward(at: Tensor) -> Tensor:
        return (ref * (ref.log() - at.log_softmax(0))).sum()

    def sampled(at: Tensor) -> Tensor:
        return (at.softmax(0).detach() * losses.kl(at.log_softmax(0), ref.log(), kind)).sum()

    exact = gradient(reverse if wanted == "reverse" else forward, logits)
    other = gradient(forward if wanted == "reverse" else reverse, logits)
    found = gradient(sampled, logits)
    assert torch.allclose(found, exact, atol=1e-6)
    assert not torch.allclose(found, other, atol=1e-3)


def test_entropy_has_a_gradient_beside_tokens_that_cannot_come():
    logits = torch.tensor([[1.0, 0.0, -math.inf]])
    found = gradient(losses.entropy, logits)
    bare = gradient(losses.entropy, logits[:, :2])
    assert torch.allclose(found[:, :2], bare)
    assert found[0, 2] == 0.0
    assert bare[0, 0] < 0 < bare[0, 1]  # towards the even distribution


def test_a_clipped_value_is_moved_only_back():
    """Both are 1 from the old value with a clip of ½: one went towards its return, the other away from it."""
    values, old = torch.tensor([[1.0, 1.0]]), torch.zeros(1, 2)
    found = gradient(lambda at: losses.value_loss(at, old, torch.tensor([[3.0, -3.0]]), 0.5).per_token, values)
    assert found.tolist() == [[0.0, 4.0]]
    free = gradient(lambda at: losses.value_loss(at, old, torch.tensor([[3.0, -3.0]]), None).per_token, values)
    assert free.tolist() == [[-2.0, 4.0]]
