"""What is minimised, token by token: policy losses, distance from a reference, entropy, and the critic's loss.

Shapes: B rows, L tokens. Numbers are float32 of shape (B, L), masks are bool.

Promises: every function is pure and gives one number per token. `token_weights` says how much each token counts in the
whole mini-batch, so `(per_token * weights).sum()` is the same however the mini-batch is cut into micro-batches or
shared between processes, as long as rows stay whole and the weights were made from the whole mini-batch. Diagnostics
are detached, one number per token, to be averaged over sampled tokens.

A log-ratio beyond ±20 is taken for ±20: a probability that changed by more is no number to learn from.
"""

from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from windrow.errors import ConfigError, DataError
from windrow.train.config import Aggregation, KlKind, LossConfig

LARGEST_LOG_RATIO = 20.0
"""Its exponential, 5e8, is still far from what float32 cannot hold."""


class TokenLoss(NamedTuple):
    """A loss per token, and what is worth knowing about it."""

    per_token: Tensor
    """(B, L), with gradient."""
    diagnostics: dict[str, Tensor]
    """(B, L) each, without; means over sampled tokens make sense."""


class Sampled(NamedTuple):
    """What the loss of a policy is made from, (B, L) each."""

    logprobs: Tensor
    """Of the policy as it is now, with gradient."""
    old: Tensor
    """What ratios compare with."""
    advantages: Tensor
    mask: Tensor
    """Where a token was sampled; elsewhere the loss is 0, whatever stands in the others."""
    correction: Tensor | None = None
    """Weights of `correction.weights`, on the policy loss alone; none: 1."""
    ref: Tensor | None = None
    """The reference's log-probabilities; needed if its distance counts."""
    entropy: Tensor | None = None
    """Of the policy at each place, with gradient; needed if its bonus counts."""


def policy_loss(config: LossConfig, sampled: Sampled) -> TokenLoss:
    """Policy loss × correction + kl × distance from the reference − entropy × its bonus.

    It and its diagnostics are 0 where nothing was sampled, whatever stands there. Raises a ConfigError if a term has a
    weight but not what it is made from.
    """
    mask = sampled.mask
    logprobs, old, advantages = (
        torch.where(mask, each, 0.0) for each in (sampled.logprobs, sampled.old, sampled.advantages)
    )
    total, diagnostics = _chosen(config, logprobs, old, advantages, mask)
    if sampled.correction is not None:
        total = total * sampled.correction
    diagnostics["policy_loss"] = total.detach()
    if config.kl > 0:
        if sampled.ref is None:
            raise ConfigError(f"loss.kl is {config.kl} but there is no reference; set it to 0 or give ref_logprobs")
        distance = kl(logprobs, torch.where(mask, sampled.ref, 0.0), config.kl_kind)
        diagnostics["kl"] = distance.detach()
        total = total + config.kl * distance
    if sampled.entropy is not None:
        diagnostics["entropy"] = sampled.entropy.detach()
    if config.entropy != 0:
        if sampled.entropy is None:
            raise ConfigError(f"loss.entropy is {config.entropy} but entropies were not computed; compute them")
        total = total - config.entropy * torch.where(mask, sampled.entropy, 0.0)
    return TokenLoss(
        torch.where(mask, total, 0.0), {name: torch.where(mask, each, 0.0) for name, each in diagnostics.items()}
    )


def _chosen(config: LossConfig, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    low, high = config.clips
    match config.kind:
        case "ppo":
            return ppo(logprobs, old, advantages, clip_low=low, clip_high=high, dual_clip=config.dual_clip)
        case "gspo":
            return gspo(logprobs, old, advantages, mask, clip_low=low, clip_high=high)
        case "cispo":
            return cispo(logprobs, old, advantages, clip_low=low, clip_high=high)
        case "topr":
            return topr(logprobs, old, advantages, mask)
        case "pg":
            return pg(logprobs, old, advantages)
        case _:
            assert_never(config.kind)


def ppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """−min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A), with the ratio r = π / π_old of each token.

    `clip_high` above `clip_low` is clip-higher. With `dual_clip` c the loss of a bad token is at most −c·A, so one
    that became far more likely no longer pulls without bound. A clipped token has no gradient.
    """
    log_ratio = _log_ratio(logprobs, old)
    loss, clipped = _clipped(log_ratio.exp(), advantages, clip_low, clip_high)
    diagnostics = _compared(log_ratio) | {"clip_share": clipped}
    if dual_clip is not None:
        bound = -advantages * dual_clip
        beyond = (advantages < 0) & (loss > bound)
        diagnostics["dual_clip_share"] = beyond.float()
        loss = torch.where(beyond, bound, loss)
    return TokenLoss(loss, diagnostics)


def gspo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """PPO's loss with one ratio per row, s = exp(mean of log r over its sampled tokens).

    The gradient at a token is s·A·∇log π of that token (the paper's GSPO-token). Where a row has one advantage this is
    exactly the gradient of GSPO; where turns have their own, each token is moved by its own. A row is clipped whole,
    as far as its advantages have one sign. The paper's mean over rows is aggregation `sequence_mean`, and its bounds
    are far tighter than PPO's (3e-4 and 4e-4).
    """
    log_ratio = _log_ratio(logprobs, old)
    tokens = mask.sum(dim=1, keepdim=True).clamp(min=1)
    row = torch.where(mask, log_ratio, 0.0).sum(dim=1, keepdim=True) / tokens
    through_token = logprobs - logprobs.detach()  # 0, with the gradient of the token alone
    ratio = (row.detach() + through_token).exp()
    loss, clipped = _clipped(ratio, advantages, clip_low, clip_high)
    return TokenLoss(loss, _compared(log_ratio) | {"clip_share": clipped, "row_ratio": ratio.detach().expand_as(loss)})


def cispo(logprobs: Tensor, old: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> TokenLoss:
    """−w·A·log π with w = clip(r, 1 − clip_low, 1 + clip_high) held constant: no token loses its gradient.

    The paper leaves the lower bound open: clip_low 1 or more does, and is the default. TRL's `epsilon_high` is the
    largest weight itself, 1 + clip_high here.
    """
    log_ratio = _log_ratio(logprobs, old)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(max(0.0, 1 - clip_low), 1 + clip_high)
    clipped = (weight != ratio).float()
    return TokenLoss(-weight * advantages * logprobs, _compared(log_ratio) | {"clip_share": clipped})


def topr(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """−w·A·log π with w = 1 where A ≥ 0, else the row's ratio π(row) / π_old(row), truncated to [0, 1].

    What was good is learnt as in supervised training, however unlikely it is now; what was bad is pushed down only as
    far as the policy still does it. The ratio is the product over all sampled tokens of the row, held constant. `old`
    is meant to be whoever sampled the row, so that the taper is all the correction that there is.
    """
    log_ratio = _log_ratio(logprobs, old)
    row = torch.where(mask, (logprobs - old).detach(), 0.0).sum(dim=1, keepdim=True)
    taper = row.clamp(max=0.0).exp().expand_as(advantages)
    weight = torch.where(advantages >= 0, 1.0, taper)
    tapered = ((advantages < 0) & (taper < 1)).float()
    return TokenLoss(-weight * advantages * logprobs, _compared(log_ratio) | {"taper_share": tapered})


def pg(logprobs: Tensor, old: Tensor, advantages: Tensor) -> TokenLoss:
    """−A·log π: the plain policy gradient; `old` serves the diagnostics alone."""
    return TokenLoss(-advantages * logprobs, _compared(_log_ratio(logprobs, old)))


def kl(logprobs: Tensor, ref: Tensor, kind: KlKind) -> Tensor:
    """An estimate per token of KL(π ‖ reference) from tokens that π sampled, with d = log π − log ref.

    | kind | value           | unbiased as value | gradient             | unbiased as gradient of KL(π ‖ reference) |
    | ---- | --------------- | ----------------- | -------------------- | ----------------------------------------- |
    | k1   | d               | yes               | d·∇log π (that of k2) | yes                                      |
    | k2   | d² / 2          | no                | d·∇log π             | yes                                       |
    | k3   | exp(−d) − 1 + d | yes, and never < 0 | (1 − exp(−d))·∇log π | no: it is that of KL(reference ‖ π)       |

    k1's own gradient, ∇log π, is 0 on average and would push nowhere, so it is given that of k2. In a reward, where
    nothing is differentiated, only the value counts.
    """
    log_ratio = _log_ratio(logprobs, ref)
    match kind:
        case "k1":
            squared = log_ratio.square() / 2
            return log_ratio.detach() + (squared - squared.detach())
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(-log_ratio) + log_ratio
        case _:
            assert_never(kind)


def entropy(logits: Tensor) -> Tensor:
    """Of the distribution over the last axis, in nats; logits of −∞ are tokens that cannot come."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    possible = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return -(logprobs.exp() * possible).sum(dim=-1)


def token_weights(
    mask: Tensor, aggregation: Aggregation, constant: float | None = None, rows: int | None = None
) -> Tensor:
    """How much each token counts in the loss of the mini-batch whose mask this is; 0 where nothing was sampled.

    token_mean: 1 / all tokens. sequence_mean: 1 / (rows that have tokens × tokens of the row). constant:
    1 / (rows × constant), where `rows` is given if empty ones were added to the mask; none: all of the mask.
    A mask without any token gives zeros.
    """
    tokens = mask.sum(dim=1, keepdim=True)
    match aggregation:
        case "token_mean":
            share = 1.0 / tokens.sum().clamp(min=1)
        case "sequence_mean":
            share = 1.0 / ((tokens > 0).sum().clamp(min=1) * tokens.clamp(min=1))
        case "constant":
            if constant is None:
                raise ConfigError("aggregation constant needs loss.constant, the tokens per row that it divides by")
            share = torch.tensor(1.0 / (constant * max(1, len(mask) if rows is None else rows)), device=mask.device)
        case _:
            assert_never(aggregation)
    return mask * share.float()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> TokenLoss:
    """½·(v − return)² per token; with `clip`, the worse of that and the same for v held within `clip` of the old value.

    A value that has moved further than `clip` from the old one towards its return has no gradient.
    """
    if values.shape != returns.shape:
        raise DataError(f"values {tuple(values.shape)} and returns {tuple(returns.shape)} must have one shape")
    error = (values - returns).square()
    if clip is None:
        return TokenLoss(error / 2, {"value_error": error.detach()})
    held = torch.clamp(values, old_values - clip, old_values + clip)
    clipped_error = (held - returns).square()
    diagnostics = {"value_error": error.detach(), "value_clip_share": (clipped_error > error).float()}
    return TokenLoss(torch.maximum(error, clipped_error) / 2, diagnostics)


def _log_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    return (logprobs - old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The pessimistic loss, and where its bound was reached."""
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - low, 1 + high)
    return torch.maximum(free, held), (held > free).float()


def _compared(log_ratio: Tensor) -> dict[str, Tensor]:
    """How far the policy is from the old one: the ratio, and the k3 estimate of KL(old ‖ now)."""
    detached = log_ratio.detach()
    return {"ratio": detached.exp(), "kl_old": torch.expm1(detached) - detached}
