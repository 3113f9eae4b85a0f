"""How good each trajectory, turn or token was, compared with what could be expected.

Shapes: N trajectories, T turns, L tokens. Numbers are float32, masks are bool, groups and states are whole numbers.

Promises: every function is pure and what it gives is finite for finite input. Who has nothing to be compared with gets
0: a group of one, a group whose scores are all equal, a turn that nobody else has, a token that was not sampled.
Scores count as equal if they differ by no more than rounding, so rounding is never blown up to an advantage of ±1. The
order of trajectories does not matter.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from windrow.train.config import Spread

ROUNDING = 1e-6
"""A deviation below this share of the largest number it comes from is rounding, not signal."""


class Advantages(NamedTuple):
    """What gae gives, (N, L) each, 0 where nothing was sampled."""

    advantages: Tensor
    returns: Tensor
    """What the critic should have said."""


def grpo(scores: Tensor, groups: Tensor, spread: Spread = "group") -> Tensor:
    """(score − mean of its group) / deviation, of shape (N,).

    The deviation (with n − 1) is that of the group, of all scores of the batch, or 1 with `none` (Dr. GRPO). 0 for a
    group of one and where the deviation is none.
    """
    return _compared(scores, groups, spread)


def rloo(scores: Tensor, groups: Tensor) -> Tensor:
    """Score − mean score of the others of its group, of shape (N,); 0 for a group of one."""
    stats = _stats(scores, groups)
    others = stats.size / (stats.size - 1).clamp(min=1)  # n / (n − 1) × (score − mean) leaves the score itself out
    return (stats.centred * others).float()


def gigpo(
    scores: Tensor,
    groups: Tensor,
    turn_returns: Tensor,
    states: Tensor,
    *,
    spread: Spread = "group",
    anchor_weight: float = 1.0,
) -> Tensor:
    """GRPO of episodes + anchor_weight × GRPO of turns that saw the same state, of shape (N, T).

    `turn_returns` (N, T) is what came from each turn on; `states` (N, T) says what was seen before it, negative where
    there is no turn or nobody knows. Turns are compared if they saw the same state in the same group, in whichever
    trajectories and however often. Where no state is known, or it was seen once, the comparison of episodes is all.
    """
    made = grpo(scores, groups, spread)[:, None].repeat(1, states.shape[1])
    known = states >= 0
    made[known] += anchor_weight * _compared(turn_returns[known], anchors(groups, states)[known], spread)
    return made


def anchors(groups: Tensor, states: Tensor) -> Tensor:
    """A number for each pair of group and state, (N, T): equal where turns are compared with each other."""
    return _pairs(groups[:, None].expand_as(states), states)


def by_turn(turn_returns: Tensor, groups: Tensor, played: Tensor, spread: Spread | None) -> Tensor:
    """GRPO, or RLOO if `spread` is None, of turn t with turn t of the group's others that have one, shape (N, T)."""
    places = torch.arange(played.shape[1], device=played.device).expand_as(played)
    peers = _pairs(groups[:, None].expand_as(places)[played], places[played])
    made = torch.zeros_like(turn_returns, dtype=torch.float32)
    numbers = turn_returns[played]
    made[played] = rloo(numbers, peers) if spread is None else grpo(numbers, peers, spread)
    return made


def turn_returns(step_scores: Tensor, discount: float) -> Tensor:
    """The discounted sum of step scores from each turn on, (N, T); NaN, where there is no turn, counts 0."""
    rewards = step_scores.double().nan_to_num(nan=0.0)
    made = torch.zeros_like(rewards)
    running = rewards.new_zeros(len(rewards))
    for turn in reversed(range(rewards.shape[1])):
        running = rewards[:, turn] + discount * running
        made[:, turn] = running
    return made.float()


def reinforce(rewards: Tensor, mask: Tensor, turn_ids: Tensor, discount: float) -> Tensor:
    """The sum of rewards from each sampled token on, (N, L); a turn later counts `discount` as much, a token no less.

    Rewards that do not stand on a sampled token are nobody's and do not count. 0 where nothing was sampled.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, turn_ids, discount=discount, lam=1.0).advantages


def reinforce_pp(rewards: Tensor, mask: Tensor, turn_ids: Tensor, discount: float) -> Tensor:
    """REINFORCE++: `reinforce`, whitened over all sampled tokens of the batch instead of compared within groups."""
    return whiten(reinforce(rewards, mask, turn_ids, discount), mask)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, turn_ids: Tensor, *, discount: float, lam: float) -> Advantages:
    """Generalised advantages over sampled tokens alone, (N, L) each.

    What stands between sampled tokens is skipped: the next state of a turn's last token is that of the next turn's
    first. With g = 1 between tokens of a turn and g = discount^(turns between) between turns,
    δ = reward + g·V(next) − V and A = δ + g·lam·A(next). The value at a token is of the state before it was sampled;
    after the last token it is 0. Returns are A + V. 0 where nothing was sampled.
    """
    rewards, values = rewards.double(), values.double()
    advantages = torch.zeros_like(rewards)
    kept = rewards.new_tensor(discount)
    next_advantage = rewards.new_zeros(len(rewards))
    next_value = next_advantage.clone()
    next_turn = turn_ids.new_full((len(rewards),), -1)  # -1: nothing follows, and what follows is 0 then
    for place in reversed(range(rewards.shape[1])):
        here, turn = mask[:, place], turn_ids[:, place]
        left = kept.pow((next_turn - turn).clamp(min=0))
        delta = rewards[:, place] + left * next_value - values[:, place]
        advantage = delta + left * lam * next_advantage
        advantages[:, place] = torch.where(here, advantage, 0.0)
        next_advantage = torch.where(here, advantage, next_advantage)
        next_value = torch.where(here, values[:, place], next_value)
        next_turn = torch.where(here, turn, next_turn)
    returns = torch.where(mask, advantages + values, 0.0)
    return Advantages(advantages.float(), returns.float())


def whiten(numbers: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over what is in the mask; all 0 if there is one number or all are equal; 0 elsewhere."""
    made = torch.zeros_like(numbers, dtype=torch.float32)
    chosen = numbers[mask]
    if chosen.numel():
        made[mask] = _compared(chosen, torch.zeros_like(chosen, dtype=torch.int64), "group")
    return made


def has_signal(scores: Tensor, groups: Tensor) -> Tensor:
    """For each group, in the order of their ids, whether its scores differ."""
    stats = _stats(scores, groups)
    found = torch.zeros(len(torch.unique(groups)), dtype=torch.bool, device=scores.device)
    found[stats.member[stats.deviation > 0]] = True
    return found


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """One number for each pair, the same for equal pairs."""
    one: Tensor = torch.unique(first, return_inverse=True)[1]
    other: Tensor = torch.unique(second, return_inverse=True)[1]
    return one * other.numel() + other


class _Stats(NamedTuple):
    """Of the group of each number, in float64, one entry per number."""

    member: Tensor
    """Which group, counted from 0 in the order of ids."""
    size: Tensor
    """Of the group."""
    centred: Tensor
    """The number minus the mean of its group; exactly 0 where the group's numbers differ by rounding alone."""
    deviation: Tensor
    """With n − 1; 0 for a group of one, and where it is rounding."""


def _stats(numbers: Tensor, groups: Tensor) -> _Stats:
    exact = numbers.double()
    ids, member = torch.unique(groups, return_inverse=True)
    zero = exact.new_zeros(len(ids))
    count = zero.index_add(0, member, torch.ones_like(exact))
    centred = exact - (zero.index_add(0, member, exact) / count)[member]
    deviation = (zero.index_add(0, member, centred.square()) / (count - 1).clamp(min=1)).sqrt()
    largest = zero.scatter_reduce(0, member, exact.abs(), "amax")
    deviation = torch.where(deviation > ROUNDING * largest, deviation, 0.0)[member]
    return _Stats(member, count[member], torch.where(deviation > 0, centred, 0.0), deviation)


def _compared(numbers: Tensor, groups: Tensor, spread: Spread) -> Tensor:
    """Each number with the mean of its group, in units of the spread."""
    stats = _stats(numbers, groups)
    if spread == "none":
        return stats.centred.float()
    divisor = _stats(numbers, torch.zeros_like(groups)).deviation if spread == "batch" else stats.deviation
    return (stats.centred / torch.where(divisor > 0, divisor, 1.0)).float()
