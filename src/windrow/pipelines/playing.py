"""Who plays in a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.engines.protocol import Engine
from windrow.pipelines.config import Agentic, Cloning, Rlvr
from windrow.rollout.scheduler import RolloutScheduler
from windrow.rollout.sharing import InferCluster
from windrow.text import ChatCodec

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from windrow.engines.torch import TorchEngine

AnyFile = Agentic | Rlvr | Cloning


class Playing:
    """Those who play: engines, and the schedulers of training and validation on them."""

    def __init__(self, cluster: InferCluster, rollouts: RolloutScheduler, held_out: RolloutScheduler) -> None:
        self.rollouts = rollouts
        self.held_out = held_out
        self._cluster = cluster

    def busy_seconds(self) -> float:
        """How long the engines have computed, all together."""
        engines: list[TorchEngine] = [*self._cluster.workers.values()]  # type: ignore[list-item]  # made below
        return sum(engine.counters().busy_s for engine in engines)

    async def close(self) -> None:
        """End them; a second time does nothing."""
        await self.held_out.shutdown()
        await self.rollouts.shutdown()


def playing(file: AnyFile, model: "PreTrainedModel", codec: ChatCodec, version: int) -> Playing:
    """Engines with the weights of a model, and who plays with them."""
    from windrow.engines.torch import TorchEngine
    from windrow.train.weights import engine_weights

    weights = engine_weights(model)

    def make(name: str, devices: tuple[int, ...], _: EngineConfig) -> Engine:
        return TorchEngine(name, plain(model, weights), codec, file.engine, devices=devices, version=version)

    config = file.collecting
    devices = ResourceManager(file.devices)
    cluster: InferCluster = Cluster("engine", make, devices, _placed(file, codec))
    rollouts = RolloutScheduler(config, config.train_env_manager, devices, cluster, "train")
    held_out = RolloutScheduler(config, config.val_env_manager, devices, cluster, "val")
    return Playing(cluster, rollouts, held_out)


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


def plain(model: "PreTrainedModel", weights: "Mapping[str, Tensor]") -> "PreTrainedModel":
    """A Hugging Face model of the same form without adapters, with these weights."""
    from windrow.train.networks import bare

    base = bare(model)
    made = type(base)(base.config)
    made.load_state_dict(weights)
    return made
