"""Which token comes next: one draw per token, of which everything but the model's word is known beforehand.

Promises: the number that decides the token at place `i` of a turn is a function of the turn's seed and of `i` alone;
it is looked up in the cumulated probabilities in the order of token ids. A row is drawn by itself: which rows are
drawn beside it changes nothing. Log-probabilities are those of `Chunk.logprobs`: temperature and allowed tokens count,
what top-k, top-p and min-p cut off does not.

The order is temperature, allowed tokens, top-k, top-p of what top-k left, min-p.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
BITS = 52
"""Of a uniform number: with these its product with any total stays below the total."""

Numbers = NDArray[np.int64]


class Rules:
    """How the rows of one draw are drawn, one entry per row."""

    __slots__ = ("allowed", "greedy", "min_p", "temperature", "top_k", "top_p", "uniform")

    def __init__(self) -> None:
        self.uniform = torch.empty(0, dtype=torch.float64)  # in [0, 1), one per row
        self.temperature: Tensor | None = None  # None: 1 everywhere
        self.greedy: Tensor | None = None  # None: nowhere
        self.top_k: Tensor | None = None  # None, like top_p and min_p: nothing is cut off anywhere
        self.top_p: Tensor | None = None
        self.min_p: Tensor | None = None
        self.allowed: Tensor | None = None  # [rows, vocabulary]; None: everything everywhere


class Drawn:
    """Token and log-probability of each row; the log-probability of a row that has none is not a number."""

    __slots__ = ("logprobs", "tokens")

    def __init__(self, tokens: Tensor, logprobs: Tensor) -> None:
        self.tokens = tokens
        self.logprobs = logprobs


def uniforms(seeds: NDArray[np.uint64], places: Numbers) -> NDArray[np.float64]:
    """A number in [0, 1) for each seed and place: splitmix64 of both."""
    with np.errstate(over="ignore"):
        mixed = _mixed(seeds + GAMMA) + (places.astype(np.uint64) + np.uint64(1)) * GAMMA
        mixed = _mixed(mixed)
    return (mixed >> np.uint64(64 - BITS)).astype(np.float64) * 2.0**-BITS


def draw(logits: Tensor, rules: Rules) -> Drawn:
    """One token per row of `[rows, vocabulary]`."""
    logits = logits.float()
    if rules.temperature is not None:
        logits = logits / rules.temperature[:, None]
    if rules.allowed is not None:
        logits = logits.masked_fill(~rules.allowed, -torch.inf)
    logprobs = torch.log_softmax(logits, dim=1)
    shares = logprobs.exp()
    if rules.top_k is not None and rules.top_p is not None and rules.min_p is not None:
        shares = shares * kept(shares, rules.top_k, rules.top_p, rules.min_p)
    sums = shares.cumsum(1, dtype=torch.float64)
    wanted = rules.uniform[:, None] * sums[:, -1:]
    tokens = torch.searchsorted(sums, wanted, right=True).clamp_(max=logits.shape[1] - 1)
    if rules.greedy is not None:
        tokens = torch.where(rules.greedy[:, None], logits.argmax(1, keepdim=True), tokens)
    return Drawn(tokens[:, 0], logprobs.gather(1, tokens)[:, 0])


def kept(shares: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens of `[rows, vocabulary]` may be drawn; `top_k` 0 and `top_p` 1 keep all."""
    ordered, order = shares.double().sort(dim=1, descending=True, stable=True)
    places = torch.arange(shares.shape[1], device=shares.device)
    keep = (places < top_k[:, None]) | (top_k[:, None] == 0)
    ordered = ordered * keep
    before = ordered.cumsum(1) - ordered
    keep &= (before < top_p[:, None] * ordered.sum(1, keepdim=True)) | (top_p[:, None] >= 1.0)
    keep &= ordered >= min_p[:, None] * ordered[:, :1]
    keep[:, 0] = True  # rounding never leaves nothing
    return torch.zeros_like(keep).scatter(1, order, keep)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MIX_1
    state = (state ^ (state >> np.uint64(27))) * MIX_2
    return state ^ (state >> np.uint64(31))
