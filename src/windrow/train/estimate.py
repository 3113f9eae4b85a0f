"""A batch gets its advantages: the one place that knows both the batch's columns and the estimators' settings.

Promises: the batch that is given stays as it was; the one that comes back has `advantages` (B, L), for gae `returns`
(B, L) too, 0 where nothing was sampled, and metrics. Comparisons are between trajectories, not rows: a trajectory of
several rows counts once and each of its rows gets what it was worth. A trajectory without any sampled token counts in
what its siblings are compared with; there is nothing of its own to train on. What an estimator needs and the batch
does not have is an error that says what to set.

Where rewards stand: with credit `episode` the whole score comes with the last turn; with credit `turn` each turn has
its step score, and the last one also what the score has beyond their sum. The distance from the reference, if it counts
in the reward, is taken off at each token, or for comparisons within groups from the score.
"""

from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from windrow.errors import ConfigError, DataError
from windrow.protocol import DataProto
from windrow.protocol.columns import tensors_of
from windrow.train import estimators
from windrow.train.config import EstimatorConfig, LossConfig
from windrow.train.episodes import Episodes, Line
from windrow.train.losses import kl


class _Estimate(NamedTuple):
    """What one estimator found; (B, L) each."""

    advantages: Tensor
    returns: Tensor | None = None


class _View:
    """The batch as an estimator asks for it."""

    def __init__(self, columns: dict[str, Tensor], config: EstimatorConfig) -> None:
        self.columns = columns
        self.config = config
        self.mask = self.column("response_mask").bool()
        self.episodes = Episodes.of(self.column("traj_id"), self.column("traj_group_id"), self.column("scores"))
        self._line: Line | None = None
        self.penalty: Tensor | None = None
        """(N, S), what the distance from the reference costs each token; none: nothing."""

    def column(self, name: str, way_out: str = "make the batch with windrow.rollout.batching") -> Tensor:
        if name not in self.columns:
            raise DataError(f"estimator {self.config.kind} needs the column {name}; {way_out}")
        return self.columns[name]

    @property
    def line(self) -> Line:
        if self._line is None:
            self._line = Line.of(self.episodes, self.mask, self.column("turn_ids"))
        return self._line

    @property
    def scores(self) -> Tensor:
        """(N,) after the penalty."""
        scores = self.episodes.scores
        return scores if self.penalty is None else scores - self.penalty.sum(dim=1)

    def turn_rewards(self, *, by_step: bool) -> Tensor:
        """(N, T) before the penalty: what each turn earned, or the whole score with the last one."""
        steps = self.column("step_scores")[self.episodes.first].float()
        played = ~steps.isnan()
        rewards = torch.where(played, steps, 0.0) if by_step else torch.zeros_like(steps)
        turns = played.sum(dim=1)
        rest = torch.where(turns > 0, self.episodes.scores - rewards.sum(dim=1), 0.0)
        if rewards.shape[1]:
            rewards = rewards.scatter_add(1, (turns - 1).clamp(min=0)[:, None], rest[:, None])
        return rewards

    def turn_returns(self) -> Tensor:
        """(N, T) what came from each turn on, after the penalty."""
        rewards = self.turn_rewards(by_step=True)
        if self.penalty is not None:
            rewards = rewards - self.line.summed(self.penalty, rewards.shape[1])
        return estimators.turn_returns(rewards, self.config.discount)

    def token_rewards(self) -> Tensor:
        """(N, S) after the penalty."""
        turns = self.turn_rewards(by_step=self.config.credit == "turn")
        rewards = self.line.at_turn_ends(turns, self.config.discount)
        return rewards if self.penalty is None else rewards - self.penalty

    def of_turns(self, turns: Tensor) -> Tensor:
        return self.line.spread(self.line.of_turns(turns), self.mask)


def estimate(batch: DataProto, config: EstimatorConfig, loss: LossConfig) -> DataProto:
    """The batch with `advantages`, and `returns` for gae, under `config`; metrics go to `meta_info["metrics"]`."""
    columns = tensors_of(batch.batch)
    with torch.no_grad():
        view = _View(columns, config)
        distance = _reference_distance(view, loss)
        if distance is not None:
            view.penalty = loss.kl_in_reward * distance
        found = _estimated(view)
        advantages = _finished(view, found.advantages)
        metrics = _metrics(view, advantages, found, distance)
    made = columns | {"advantages": advantages}
    if found.returns is not None:
        made["returns"] = found.returns
    there = batch.meta_info.get("metrics", {})
    return DataProto.from_dict(made, batch.non_tensor_batch, batch.meta_info | {"metrics": there | metrics})


def _reference_distance(view: _View, loss: LossConfig) -> Tensor | None:
    """(N, S) the estimate per token, if it counts in the reward."""
    if loss.kl_in_reward == 0:
        return None
    if "ref_logprobs" not in view.columns:
        raise ConfigError(
            f"loss.kl_in_reward is {loss.kl_in_reward:g} but the batch has no ref_logprobs; "
            "give it a reference, or set loss.kl_in_reward to 0"
        )
    own = view.columns["old_logprobs"] if "old_logprobs" in view.columns else view.column("infer_logprobs")
    pair = view.line.gathered(own), view.line.gathered(view.columns["ref_logprobs"])
    return kl(*pair, loss.kl_kind)


def _estimated(view: _View) -> _Estimate:
    config = view.config
    match config.kind:
        case "grpo" | "rloo":
            return _Estimate(_within_groups(view))
        case "gigpo":
            states = view.column("turn_states")[view.episodes.first]
            turns = estimators.gigpo(
                view.scores, view.episodes.groups, view.turn_returns(), states,
                spread=config.spread, anchor_weight=config.anchor_weight,
            )  # fmt: skip
            return _Estimate(view.of_turns(turns))
        case "reinforce" | "reinforce_pp":
            made = estimators.reinforce if config.kind == "reinforce" else estimators.reinforce_pp
            returns = made(view.token_rewards(), view.line.mask, view.line.turn_ids, config.discount)
            return _Estimate(view.line.spread(returns, view.mask))
        case "gae":
            return _with_critic(view)
        case _:
            assert_never(config.kind)


def _within_groups(view: _View) -> Tensor:
    config, groups = view.config, view.episodes.groups
    spread = config.spread if config.kind == "grpo" else None
    if config.credit == "turn":
        played = ~view.column("step_scores")[view.episodes.first].isnan()
        return view.of_turns(estimators.by_turn(view.turn_returns(), groups, played, spread))
    whole = estimators.rloo(view.scores, groups) if spread is None else estimators.grpo(view.scores, groups, spread)
    return torch.where(view.mask, whole[view.episodes.owners][:, None], 0.0)


def _with_critic(view: _View) -> _Estimate:
    values = view.column("values", "ask the critic first, or choose an estimator that needs none, such as grpo")
    line, config = view.line, view.config
    found = estimators.gae(
        view.token_rewards(), line.gathered(values.float()), line.mask, line.turn_ids,
        discount=config.discount, lam=config.gae_lambda,
    )  # fmt: skip
    return _Estimate(line.spread(found.advantages, view.mask), line.spread(found.returns, view.mask))


def _finished(view: _View, advantages: Tensor) -> Tensor:
    """Whitened and clipped as asked for; reinforce_pp is white already, which is no harm."""
    config = view.config
    if config.whiten or (config.whiten is None and config.kind == "gae"):
        advantages = view.line.spread(estimators.whiten(view.line.gathered(advantages), view.line.mask), view.mask)
    return advantages if config.clip is None else advantages.clamp(-config.clip, config.clip)


def _metrics(view: _View, advantages: Tensor, found: _Estimate, distance: Tensor | None) -> dict[str, float]:
    chosen = advantages[view.mask]
    episodes = view.episodes
    signal = estimators.has_signal(episodes.scores, episodes.groups)
    metrics = {
        "train/advantage_mean": _mean(chosen),
        "train/advantage_std": float(chosen.std(correction=0)) if chosen.numel() else 0.0,
        "train/advantage_max": float(chosen.abs().max()) if chosen.numel() else 0.0,
        "train/score_mean": _mean(episodes.scores),
        "train/groups_without_signal_share": _mean((~signal).float()),
        "train/tokens_without_signal_share": _mean((chosen == 0).float()),
    }
    if distance is not None:
        metrics["train/kl_in_reward"] = _mean(distance[view.line.mask])
    if view.config.kind == "gigpo":
        metrics["train/anchored_share"] = _anchored(view)
    if found.returns is not None:
        returns, values = found.returns[view.mask], view.column("values")[view.mask]
        metrics["train/return_mean"] = _mean(returns)
        metrics["train/value_explained"] = _explained(returns, values)
    return metrics


def _anchored(view: _View) -> float:
    """The share of turns that have another turn to be compared with."""
    states = view.column("turn_states")[view.episodes.first]
    known = states >= 0
    _, member, sizes = torch.unique(
        estimators.anchors(view.episodes.groups, states)[known], return_inverse=True, return_counts=True
    )
    return _mean((sizes[member] > 1).float())


def _explained(returns: Tensor, values: Tensor) -> float:
    """1 − what the critic left unexplained of how returns differ; 0 if they do not."""
    spread = float(returns.var(correction=0)) if returns.numel() else 0.0
    return 1.0 - float((returns - values).var(correction=0)) / spread if spread > 0 else 0.0


def _mean(numbers: Tensor) -> float:
    return float(numbers.mean()) if numbers.numel() else 0.0
