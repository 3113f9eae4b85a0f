"""The roles of a run in trainer processes: an actor, and whoever its estimator and its loss need.

Promises: `Trainers` has the roles of the same run in one process, with the same methods, and they learn the same, up to
rounding, in processes on this machine as on Ray. New weights leave it through memory that engines can read: a folder of
this machine, or Ray's object store. What is saved does not depend on how many processes there are, or where.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Self

from torch import Tensor

from windrow.engines.buckets import Shipment, fetched
from windrow.errors import TrainError
from windrow.train.config import ModelConfig, TrainConfig
from windrow.train.models import load_model
from windrow.train.processes import Make, TrainerProcesses
from windrow.train.remote import Processes, remote
from windrow.train.roles import Actor, Critic, Reference
from windrow.train.sharding import Shards
from windrow.train.streams import Number, wholes
from windrow.train.weights import Packed, SharedWeights, bring_shards, read_weights, ship_weights, write_weights
from windrow.types import Value, but

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Start = Callable[[int, Make, float, Literal["cpu", "cuda"]], Processes]
"""Starts trainer processes: how many, what makes the object in each, how long a call may take, on which devices."""


class Source(Value, frozen=True, kw_only=True):
    """Where the weights come from, in every process."""

    model: ModelConfig
    seed: int = 0
    vocabulary: int | None = None
    """Tokens of a model that is made on the spot."""
    state: dict[str, Tensor] | None = None
    """Its `state_dict`, if it has learnt something since it was made."""
    reference: ModelConfig | None = None
    """A model of its own for the reference; None: that of the actor."""


class Team:
    """What is in each trainer process."""

    def __init__(self, peers: Shards) -> None:
        self._peers = peers
        self.actor: Actor
        self.reference: Reference | None = None
        self.critic: Critic | None = None

    def recruit(self, config: TrainConfig, source: Source) -> None:
        """Make the roles of a run, all from the same weights but for a reference of its own."""
        make = partial(_model, source, self._peers.device)
        dtype = source.model.dtype
        self.actor = Actor(config, make(), seed=source.seed, dtype=dtype, threads=config.threads, peers=self._peers)
        if config.loss.needs_reference:
            origin: Actor | PreTrainedModel = self.actor if self.actor.has_adapters else make()
            if source.reference is not None:
                origin = load_model(but(source.reference, device=self._peers.device))
            self.reference = Reference(config, origin, dtype=dtype, threads=config.threads, peers=self._peers)
        if config.estimator.kind == "gae":
            self.critic = Critic(config, make(), dtype=dtype, threads=config.threads, peers=self._peers)

    def pack(self, root: Path | None, version: int, dtype: Number | None) -> Packed | None:
        """Write the actor's weights for engines, to a folder or else to Ray's object store.

        All processes take part, and the first one says where they are.
        """
        weights = wholes(self.actor.model, dtype)
        if self._peers.rank == 0:
            return write_weights(root, version, weights) if root else ship_weights(version, weights)
        bring_shards(weights)
        return None


class Trainers:
    """The roles of a run, in processes of their own."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        dtype: Number | None = None,
        start: Start = TrainerProcesses,
        folder: Path | None = None,
    ) -> None:
        """`dtype` is what engines compute with; `start` decides where the processes are.

        Weights for engines are written below `folder`; None: wherever there is room.
        """
        device: Literal["cpu", "cuda"] = "cuda" if source.model.device.startswith("cuda") else "cpu"
        self._dtype = dtype
        self._processes = start(config.processes, Team, config.timeout_s, device)
        try:
            self._processes.call("recruit", config, source)
            size = self._processes.run(_bytes)
            self._shared = SharedWeights(folder, needs_bytes=size) if self._processes.on_this_machine else None
        except BaseException:
            self._processes.close()
            raise
        self.actor = remote(self._processes, "actor", Actor)
        self.reference = remote(self._processes, "reference", Reference) if config.loss.needs_reference else None
        self.critic = remote(self._processes, "critic", Critic) if config.estimator.kind == "gae" else None

    @property
    def processes(self) -> Processes:
        return self._processes

    def pack(self, version: int) -> Packed:
        """The weights of the actor as they are now, for engines."""
        return self._packed(self._shared.root if self._shared else None, version, self._dtype)

    def weights(self) -> dict[str, Tensor]:
        """The same as tensors that may be read, in the numbers in which they are trained."""
        if self._shared is None:
            sent = self._packed(None, 0, None).weights
            assert isinstance(sent, Shipment)
            return fetched(sent)
        with TemporaryDirectory(prefix="whole-", dir=self._shared.root) as folder:
            packed = self._packed(Path(folder), 0, None)
            assert isinstance(packed.weights, Path)
            return read_weights(packed.weights)

    def close(self) -> None:
        """End the processes and remove what they shared; a second call does nothing."""
        self._processes.close()
        if self._shared:
            self._shared.close()

    def _packed(self, root: Path | None, version: int, dtype: Number | None) -> Packed:
        packed = self._processes.call("pack", root, version, dtype)
        if not isinstance(packed, Packed):
            raise TrainError(f"trainer processes packed {packed!r} as version {version}; the first must have weights")
        return packed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _model(source: Source, device: str) -> "PreTrainedModel":
    model = load_model(but(source.model, device=device), source.seed, source.vocabulary)
    if source.state is not None:
        model.load_state_dict(source.state)
    return model


def _bytes(team: Team) -> int:
    """Of the actor's weights, all processes together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in team.actor.model.parameters())
