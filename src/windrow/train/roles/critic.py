"""The critic: what is still to come, said before each token.

Promises: a fresh critic says 0 everywhere, so that the first estimates are those of no critic at all. Its weights are
its own: of an actor it copies what the actor is at that moment (adapters included, which are then all that it trains
besides its head), and nothing that it learns reaches the actor.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windrow.errors import ConfigError
from windrow.protocol import DataProto
from windrow.train.config import ModelConfig, TrainConfig
from windrow.train.learner import ALONE, Learner, Peers, gather
from windrow.train.losses import token_weights, value_loss
from windrow.train.networks import Policy, Values
from windrow.train.roles.actor import Actor
from windrow.train.roles.base import Dtype, added, dtype_of, mean_over_steps, model_of, parts_of, prepared
from windrow.train.rows import Piece, Rows
from windrow.train.threads import use_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Critic:
    """A network of values with its optimizer."""

    def __init__(
        self,
        config: TrainConfig,
        model: "ModelConfig | PreTrainedModel | Actor",
        *,
        seed: int = 0,
        dtype: Dtype | None = None,
        threads: int | None = None,
        peers: Peers = ALONE,
    ) -> None:
        network = prepared(_values(model, seed, dtype), config.micro, peers)
        self.config = config
        self.learner = Learner(network, config.critic.optimizer, config.micro, peers=peers)
        self._seed = seed
        self._threads = threads

    def values(self, batch: DataProto) -> DataProto:
        """The batch with `values` (B, L): at each sampled token, what was to be expected before it."""
        use_threads(self._threads)
        rows = Rows.of(batch, device=self.learner.device)
        found = torch.zeros(rows.mask.shape, device=rows.mask.device)
        with torch.no_grad():
            for piece in self.learner.pieces(rows):
                gather(found, piece, self.learner.network(piece.asked))
        return added(batch, values=self.learner.peers.total(found))

    def train(self, batch: DataProto) -> dict[str, float]:
        """Learn from a batch that has `values` and `returns`; what happened, as means over its steps."""
        use_threads(self._threads)
        rows = Rows.of(batch, ("values", "returns"), device=self.learner.device)
        chance = (self._seed, self.learner.steps)
        parts = parts_of(batch, rows, self.config.minibatches, self.config.critic.epochs, chance)
        seen = [self._step(rows.take(part)) for part in parts]
        found = mean_over_steps([step for step in seen if step])
        return {name.replace("train/", "critic/"): value for name, value in found.items()} | _explained(rows)

    def state_dict(self) -> dict[str, Any]:  # tensors and numbers
        """All that the next update depends on."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:  # as `state_dict` made it
        self.learner.load_state_dict(state)

    def _step(self, rows: Rows) -> dict[str, float]:
        clip, network = self.config.critic.clip, self.learner.network
        rows = rows.but(weights=token_weights(rows.mask, "token_mean"))
        outside = torch.zeros((), device=rows.mask.device)

        def loss(piece: Piece) -> Tensor:
            values = piece.spread(network(piece.asked))
            per_token, told = value_loss(values, piece.columns["values"], piece.columns["returns"], clip)
            if "value_clip_share" in told:
                outside.add_((told["value_clip_share"] * piece.columns["weights"]).sum())
            return (per_token * piece.columns["weights"]).sum()

        said = self.learner.step(rows, loss)
        return {**said, "train/clip_share": float(self.learner.peers.total(outside))} if said else said


def _values(model: "ModelConfig | PreTrainedModel | Actor", seed: int, dtype: Dtype | None) -> Values:
    if not isinstance(model, Actor):
        return Values(model_of(model, seed), dtype=dtype_of(model, dtype))
    if model.learner.peers.size > 1:
        raise ConfigError("an actor that is spread over processes cannot be copied; give the critic a model")
    policy = model.learner.network
    assert isinstance(policy, Policy), "an actor's network is a policy"
    return Values(deepcopy(model.model), dtype=policy.dtype)


def _explained(rows: Rows) -> dict[str, float]:
    """How much of the returns the values knew beforehand: 1 all, 0 nothing, less than 0 worse than a constant."""
    returns, values = (rows.columns[name][rows.mask] for name in ("returns", "values"))
    if len(returns) < 2 or float(returns.var()) == 0:
        return {"critic/explained_variance": 0.0}
    return {"critic/explained_variance": 1.0 - float((returns - values).var() / returns.var())}
