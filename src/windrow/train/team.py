"""The roles of a run in trainer processes: an actor, and whoever its estimator and its loss need; or some of them.

Promises: `Trainers` has the roles of the same run in one process, with the same methods, and they learn the same, up to
rounding, in processes on this machine as on Ray. So do those of a `Company`, which are some of them in processes apart
from the actor's. New weights leave the actor through memory that engines can read: a folder of this machine, or Ray's
object store. What is saved does not depend on how many processes there are, or where.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Self

from torch import Tensor

from windrow.cluster.mapping import Member
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

    def recruit(self, config: TrainConfig, source: Source, members: Sequence[Member]) -> None:
        """Make some roles of a run, all from the same weights but for a reference of its own."""
        make = partial(_model, source, self._peers.device)
        dtype, threads, peers = source.model.dtype, config.threads, self._peers
        if "actor" in members:
            self.actor = Actor(config, make(), seed=source.seed, dtype=dtype, threads=threads, peers=peers)
        if "reference" in members:
            has_own = source.reference is not None or "actor" not in members or source.model.lora is None
            origin = _unchanged(source, peers.device) if has_own else self.actor
            self.reference = Reference(config, origin, dtype=dtype, threads=threads, peers=peers)
        if "critic" in members:
            self.critic = Critic(config, make(), dtype=dtype, threads=threads, peers=peers)

    def pack(self, root: Path | None, version: int, dtype: Number | None) -> Packed | None:
        """Write the actor's weights for engines, to a folder or else to Ray's object store.

        All processes take part, and the first one says where they are.
        """
        weights = wholes(self.actor.model, dtype)
        if self._peers.rank == 0:
            return write_weights(root, version, weights) if root else ship_weights(version, weights)
        bring_shards(weights)
        return None


class Company:
    """Some roles of a run, in processes of their own."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        members: Sequence[Member],
        size: int,
        start: Start = TrainerProcesses,
    ) -> None:
        """`size` processes share each of them; `start` decides where they are."""
        device: Literal["cpu", "cuda"] = "cuda" if source.model.device.startswith("cuda") else "cpu"
        self.processes = start(size, Team, config.timeout_s, device)
        try:
            self.processes.call("recruit", config, source, members)
        except BaseException:
            self.processes.close()
            raise
        self.reference = remote(self.processes, "reference", Reference) if "reference" in members else None
        self.critic = remote(self.processes, "critic", Critic) if "critic" in members else None

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        self.processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trainers(Company):
    """The roles of a run, in processes of their own."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        dtype: Number | None = None,
        start: Start = TrainerProcesses,
        folder: Path | None = None,
        members: Sequence[Member] | None = None,
    ) -> None:
        """`dtype` is what engines compute with; `start` decides where the processes are.

        Weights for engines are written below `folder`; None: wherever there is room. `members` are the roles that are
        here, the actor among them; None: all that there are.
        """
        super().__init__(config, source, members or config.members, config.processes, start)
        self._dtype = dtype
        try:
            size = self.processes.run(_bytes)
            self._shared = SharedWeights(folder, needs_bytes=size) if self.processes.on_this_machine else None
        except BaseException:
            self.processes.close()
            raise
        self.actor = remote(self.processes, "actor", Actor)

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
        super().close()
        if self._shared:
            self._shared.close()

    def _packed(self, root: Path | None, version: int, dtype: Number | None) -> Packed:
        packed = self.processes.call("pack", root, version, dtype)
        if not isinstance(packed, Packed):
            raise TrainError(f"trainer processes packed {packed!r} as version {version}; the first must have weights")
        return packed


def _model(source: Source, device: str) -> "PreTrainedModel":
    model = load_model(but(source.model, device=device), source.seed, source.vocabulary)
    if source.state is not None:
        model.load_state_dict(source.state)
    return model


def _unchanged(source: Source, device: str) -> "PreTrainedModel":
    """What a reference is made of where it has weights of its own: never adapters, which learn."""
    if source.reference is not None:
        return load_model(but(source.reference, device=device))
    if source.model.lora is not None:
        return load_model(but(source.model, device=device, lora=None), source.seed, source.vocabulary)
    return _model(source, device)


def _bytes(team: Team) -> int:
    """Of the actor's weights, all processes together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in team.actor.model.parameters())
