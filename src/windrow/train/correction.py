"""Truncated importance weights for tokens that other numbers or older weights sampled.

Shapes: B rows, L tokens; (B, L) everywhere.

An engine computes log-probabilities a little differently from the trainer (other kernels, other precision), and a token
may have been sampled by an older version altogether. Both are the same kind of error: the token came from π_engine but
is trained on as if it came from π_old, the trainer's policy before the update. The weight π_old / π_engine repairs that
on average; truncating it keeps the variance bounded at the price of some bias.

Promises: weights are 0 where nothing was sampled and where a token is dropped, finite everywhere, and never above the
cap of their kind. A token is current if the version that is trained sampled it, else stale; each kind has its own cap.
Where old and engine log-probabilities are the same numbers all weights are 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from windrow.train.config import CorrectionConfig
from windrow.train.losses import LARGEST_LOG_RATIO


class Correction(NamedTuple):
    """What a token counts for, whether it counts at all, and how far apart the two sides are."""

    weights: Tensor
    keep: Tensor
    """Sampled and not dropped."""
    metrics: dict[str, float]


def weights(
    old_logprobs: Tensor,
    infer_logprobs: Tensor,
    policy_versions: Tensor,
    version: int,
    mask: Tensor,
    config: CorrectionConfig,
) -> Correction:
    """min(π_old / π_engine, cap) per token, or per row and kind as geometric mean.

    `mismatch_cap` holds for current tokens (none: they weigh 1), `stale_cap` for stale ones (none: they are treated
    like current ones). `drop_above` f drops tokens whose ratio before truncation is above f or below 1 / f.
    """
    stale = mask & (policy_versions < version)
    log_ratio = _log_ratio(old_logprobs, infer_logprobs, mask)
    if config.level == "sequence":
        log_ratio = torch.where(stale, _row_mean(log_ratio, stale), _row_mean(log_ratio, mask & ~stale))
    ratio = log_ratio.exp()
    stale_cap = config.mismatch_cap if config.stale_cap is None else config.stale_cap
    made = torch.where(stale, _truncated(ratio, stale_cap), _truncated(ratio, config.mismatch_cap))
    over = torch.where(stale, _is_over(ratio, stale_cap), _is_over(ratio, config.mismatch_cap))
    keep = mask & _near(ratio, config.drop_above)
    made = torch.where(keep, made, 0.0)
    metrics = mismatch(old_logprobs, infer_logprobs, policy_versions, version, mask) | {
        "train/correction_mean": _mean(made, keep & ~stale, otherwise=1.0),
        "train/correction_stale_mean": _mean(made, keep & stale, otherwise=1.0),
        "train/correction_truncated_share": _mean(over.float(), keep),
        "train/correction_dropped_share": _mean((~keep).float(), mask),
    }
    return Correction(made, keep, metrics)


def mismatch(
    logprobs: Tensor, infer_logprobs: Tensor, policy_versions: Tensor, version: int, mask: Tensor
) -> dict[str, float]:
    """How far trainer and engine are apart on current tokens, where they should agree; how old the others are.

    `train/mismatch_mean` and `_max` are of |log π_trainer − log π_engine|, 0 if no token is current.
    """
    current = mask & (policy_versions >= version)
    apart = (logprobs - infer_logprobs).abs()[current].float()
    lag = (version - policy_versions).clamp(min=0)
    return {
        "train/mismatch_mean": float(apart.mean()) if apart.numel() else 0.0,
        "train/mismatch_max": float(apart.max()) if apart.numel() else 0.0,
        "train/stale_share": _mean((policy_versions < version).float(), mask),
        "train/lag_mean": _mean(lag.float(), mask),
    }


def _log_ratio(old: Tensor, infer: Tensor, mask: Tensor) -> Tensor:
    apart = torch.where(mask, (old - infer).float(), 0.0)
    return apart.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def _row_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Over the tokens of a row in the mask, (B, 1); 0 if there are none."""
    total = torch.where(mask, log_ratio, 0.0).sum(dim=1, keepdim=True)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _truncated(ratio: Tensor, cap: float | None) -> Tensor:
    return torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)


def _is_over(ratio: Tensor, cap: float | None) -> Tensor:
    return ratio > (math.inf if cap is None else cap)


def _near(ratio: Tensor, factor: float | None) -> Tensor:
    if factor is None:
        return torch.ones_like(ratio, dtype=torch.bool)
    return (ratio <= factor) & (ratio >= 1 / factor)


def _mean(numbers: Tensor, mask: Tensor, otherwise: float = 0.0) -> float:
    chosen = numbers[mask]
    return float(chosen.mean()) if chosen.numel() else otherwise
