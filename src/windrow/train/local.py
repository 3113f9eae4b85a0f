"""The roles of a run in this process; `team.Trainers` has the same in processes of their own."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from windrow.cluster.mapping import Member
from windrow.train.config import ModelConfig, TrainConfig
from windrow.train.roles import Actor, Critic, Reference
from windrow.train.streams import Number
from windrow.train.weights import LocalWeights, Packed, SharedWeights, engine_weights


class Roles(Protocol):
    """Those who have weights in a run."""

    actor: Actor
    reference: Reference | None
    critic: Critic | None

    def pack(self, version: int) -> Packed:
        """The actor's weights as they are now, for engines."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The same as plain tensors, in the numbers in which they are trained."""
        ...

    def close(self) -> None:
        """End whatever was started; a second call does nothing."""
        ...


class LocalTrainers:
    """An actor, and whoever its estimator and its loss need; all begin as what the actor is then."""

    def __init__(
        self,
        config: TrainConfig,
        actor: Actor,
        engine_dtype: Number | None = None,
        reference: ModelConfig | None = None,
        shared: SharedWeights | None = None,
        members: Sequence[Member] | None = None,
    ) -> None:
        """`reference` is a model of its own for the reference; None: what the actor is now.

        `shared` is where weights are written for engines in other processes, and closed with it; None: they are here.
        `members` are the roles that are here; None: all that there are.
        """
        here = members or config.members
        self.actor = actor
        self.reference: Reference | None = None
        if "reference" in here:
            self.reference = Reference(config, reference or actor, threads=config.threads)
        self.critic = Critic(config, actor, threads=config.threads) if "critic" in here else None
        self._weights = LocalWeights(actor.model, engine_dtype)
        self._shared = shared
        self._dtype: Number | None = engine_dtype

    def pack(self, version: int) -> Packed:
        if self._shared is not None:
            return self._shared.pack(version, self.actor.model, self._dtype)
        return self._weights.pack(version)

    def weights(self) -> dict[str, Tensor]:
        return engine_weights(self.actor.model)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
