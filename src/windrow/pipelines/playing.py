"""Who plays in a run.

Promises: a look at engines takes a moment, whatever has become of them; one that does not answer is as last seen.
"""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.cluster.mapping import on_this_machine
from windrow.cluster.worker import Runtime
from windrow.engines.buckets import Shipment, fetched, ship
from windrow.engines.protocol import Engine
from windrow.engines.torch.settings import TorchSettings
from windrow.engines.torch.spells import Activity, Busy
from windrow.errors import HostLost
from windrow.pipelines.config import Agentic, Cloning, Rlvr
from windrow.pipelines.serving import ServerMaker
from windrow.rollout.scheduler import RolloutScheduler
from windrow.rollout.sharing import InferCluster
from windrow.text import ChatCodec
from windrow.types import but

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from windrow.cluster.ray.hosts import Remote
    from windrow.train.weights import SharedWeights

AnyFile = Agentic | Rlvr | Cloning

Weights: TypeAlias = "Mapping[str, Tensor] | Shipment"

LOOK_S = 2.0
"""How long engines may take to say how busy they were."""


class Playing:
    """Those who play: engines, and the schedulers of training and validation on them."""

    def __init__(
        self,
        cluster: InferCluster,
        rollouts: RolloutScheduler,
        held_out: RolloutScheduler,
        first: "SharedWeights | None" = None,
    ) -> None:
        """`first` holds what servers begin with, and is closed with them."""
        self.rollouts = rollouts
        self.held_out = held_out
        self._cluster = cluster
        self._first = first
        self._busy: dict[str, Busy] = {}  # by engine elsewhere: what it said last

    async def busy(self) -> dict[str, Busy]:
        """How long each engine has computed, by name."""
        if self._cluster.runtime == "ray":
            async with asyncio.TaskGroup() as group:
                for name, host in self._cluster.hosts.items():
                    group.create_task(self._look(name, host), name=f"look at {name}")
            return dict(self._busy)
        if self._first is not None:
            return {}  # servers do not say
        return {name: engine.busy() for name, engine in self._cluster.workers.items()}  # type: ignore[attr-defined]  # made below

    async def _look(self, name: str, host: "Remote") -> None:
        with suppress(HostLost, TimeoutError):  # it is as it was
            async with asyncio.timeout(LOOK_S):
                self._busy[name] = await host.insist("worker.busy")

    def activity(self) -> dict[str, Activity]:
        """What each engine has done, by name; engines that are lost are left out."""
        if self._first is not None:
            return {}  # servers do not say
        if self._cluster.runtime != "ray":
            return {name: engine.activity() for name, engine in self._cluster.workers.items()}  # type: ignore[attr-defined]  # made below
        found: dict[str, Activity] = {}
        for name, host in self._cluster.hosts.items():
            with suppress(HostLost, TimeoutError):
                found[name] = host.look("worker.activity", within_s=LOOK_S)
        return found

    async def close(self) -> None:
        """End them; a second time does nothing."""
        await self.held_out.shutdown()
        await self.rollouts.shutdown()
        self._cluster.shutdown()
        if self._first is not None:
            self._first.close()


class EngineMaker:
    """Makes engines with the weights of a model, here or in a host."""

    def __init__(
        self,
        model: "PreTrainedModel",
        weights: "Mapping[str, Tensor] | Shipment",
        settings: TorchSettings,
        version: int,
        runtime: Runtime = "local",
    ) -> None:
        """On Ray a host sees only the GPUs that it was given, so all of them call theirs the same."""
        from windrow.train.networks import bare

        base = bare(model)
        self._kind = type(base)
        self._config = deepcopy(base.config)  # it says how attention is computed, and engines have a way of their own
        self._weights = weights
        self._settings = settings
        self._version = version
        self._runtime: Runtime = runtime

    def __call__(self, name: str, devices: tuple[int, ...], config: EngineConfig) -> Engine:
        from windrow.engines.torch import TorchEngine
        from windrow.train import attention  # noqa: F401 -- the configuration may name it, also in another process

        made = self._kind(self._config)
        made.load_state_dict(fetched(self._weights) if isinstance(self._weights, Shipment) else self._weights)
        codec = config.codec
        assert isinstance(codec, ChatCodec)
        return TorchEngine(name, made, codec, self.settings_on(devices), devices=devices, version=self._version)

    def settings_on(self, devices: tuple[int, ...]) -> TorchSettings:
        """Of the engine on these devices."""
        if self._runtime == "ray":
            return self._settings
        return but(self._settings, device=on_this_machine(self._settings.device, devices))


def playing(
    file: AnyFile, model: "PreTrainedModel", codec: ChatCodec, version: int, devices: ResourceManager
) -> Playing:
    """Engines with the weights of a model, and who plays with them."""
    from windrow.train.weights import SharedWeights, engine_weights

    config = file.collecting
    first: SharedWeights | None = None
    make: EngineMaker | ServerMaker
    with ExitStack() as undo:
        if not isinstance(file, Cloning) and file.servers is not None:
            first = undo.enter_context(SharedWeights(file.servers.folder()))
            folder = first.pack(version, model, file.engine.dtype).weights
            assert isinstance(folder, Path)
            make = ServerMaker(file.servers, file.layout, folder)
        else:
            weights = engine_weights(model)
            given = ship(version, weights) if devices.runtime == "ray" else weights
            make = EngineMaker(model, given, file.engine, version, devices.runtime)
        cluster: InferCluster = Cluster("engine", make, devices, _placed(file, codec))
        undo.callback(cluster.shutdown)
        rollouts = RolloutScheduler(config, config.train_env_manager, devices, cluster, "train")
        held_out = RolloutScheduler(config, config.val_env_manager, devices, cluster, "val")
        undo.pop_all()
    return Playing(cluster, rollouts, held_out, first)


def _placed(file: AnyFile, codec: ChatCodec) -> EngineConfig:
    if isinstance(file, Cloning):
        return EngineConfig(codec=codec)
    layout = file.layout
    return EngineConfig(codec=codec, device_mapping=layout.infer, devices_per_worker=layout.infer_each)


def success_at(file: AnyFile) -> dict[str, float]:
    """By tag, from which score on an episode of validation is a success."""
    return {tag: env.success_at for tag, env in file.collecting.val_env_manager.by_tag().items()}


def save_model(
    path: Path, model: "PreTrainedModel", weights: "Mapping[str, Tensor]", tokenizer: "PreTrainedTokenizerFast"
) -> None:
    """A Hugging Face folder that anybody can load: a model of this form with these weights, and its tokenizer."""
    plain(model, weights).save_pretrained(path)
    tokenizer.save_pretrained(path)


def save_adapter(path: Path, model: "PreTrainedModel", weights: "Mapping[str, Tensor]") -> None:
    """The adapters alone, as peft loads them onto the model that they were trained on."""
    named = {name.removeprefix("model."): weight for name, weight in weights.items()}
    # its vocabulary is never changed here, and peft would ask others whether it was
    model.save_pretrained(path, state_dict=named, save_embedding_layers=False)


def plain(model: "PreTrainedModel", weights: "Mapping[str, Tensor]") -> "PreTrainedModel":
    """A Hugging Face model of the same form without adapters, with these weights."""
    from windrow.train.networks import bare

    base = bare(model)
    made = type(base)(deepcopy(base.config))
    made.load_state_dict(weights)
    return made
