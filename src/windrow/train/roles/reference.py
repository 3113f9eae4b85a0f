"""The policy that stays as it is.

Promises: nothing ever changes it. Of an actor with adapters it is the actor itself with its adapters switched off, so
that no weights exist twice; of any other actor it is a copy as the actor is at that moment.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from windrow.errors import ConfigError
from windrow.protocol import DataProto
from windrow.train.config import ModelConfig, TrainConfig
from windrow.train.learner import ALONE, Peers, score
from windrow.train.networks import Policy
from windrow.train.roles.actor import Actor
from windrow.train.roles.base import Dtype, added, dtype_of, model_of, prepared
from windrow.train.rows import Rows, temperature
from windrow.train.threads import use_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Reference:
    """A frozen policy."""

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
        self._micro = config.micro
        self._threads = threads
        self._actor = model if isinstance(model, Actor) and model.has_adapters else None
        self._peers = peers
        self._network: Policy | None = None
        if self._actor is None:
            self._network = prepared(_frozen(model, seed, dtype), config.micro, peers)

    def log_probs(self, batch: DataProto) -> DataProto:
        """The batch with `ref_logprobs`."""
        use_threads(self._threads)
        if self._actor is not None:
            with self._actor.without_adapters():
                return added(batch, ref_logprobs=self._actor.score(batch).logprobs)
        assert self._network is not None  # one of the two is there
        rows = Rows.of(batch, device=next(self._network.parameters()).device)
        said = score(self._network, rows, self._micro, temperature(batch), self._peers)
        return added(batch, ref_logprobs=said.logprobs)

    def state_dict(self) -> dict[str, Any]:  # tensors
        """Its weights; nothing if they are the actor's."""
        if self._network is None:
            return {}
        return {name: self._peers.whole(tensor) for name, tensor in self._network.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # as `state_dict` made it
        """Be again what it was when an earlier run began; nothing saved: what the actor is without its adapters."""
        if self._network is not None and state:
            own = self._network.state_dict()
            parts = {name: self._peers.part(each, own[name]) if name in own else each for name, each in state.items()}
            self._network.load_state_dict(parts)


def _frozen(model: "ModelConfig | PreTrainedModel | Actor", seed: int, dtype: Dtype | None) -> Policy:
    if isinstance(model, Actor):
        if model.learner.peers.size > 1:
            raise ConfigError("an actor that is spread over processes cannot be copied; give the reference a model")
        network = model.learner.network
        assert isinstance(network, Policy)
        copy = Policy(deepcopy(model.model), dtype=network.dtype)
    else:
        copy = Policy(model_of(model, seed), dtype=dtype_of(model, dtype))
    copy.requires_grad_(requires_grad=False)
    torch.nn.Module.eval(copy)
    return copy
