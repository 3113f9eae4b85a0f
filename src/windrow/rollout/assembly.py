"""From a configuration file to engines and schedulers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.core.settings import Count
from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.engines.torch.settings import TorchSettings
from windrow.errors import ConfigError
from windrow.rollout.config import RolloutConfig
from windrow.rollout.sharing import InferCluster
from windrow.text import ByteCodec, ChatCodec, read_tokenizer
from windrow.types import Meta, Value

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = "tiny"
"""The model that is made on the spot."""


class Scripted(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="scripted"):
    """Engines that play a script: no model at all."""

    settings: Annotated[ScriptedSettings, Meta(description="how they behave")] = ScriptedSettings(vocabulary=257)


class Torch(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="torch"):
    """Embedded engines: a Hugging Face causal language model in this process."""

    model: Annotated[str, Meta(description="folder of a Hugging Face model; tiny: one that is made on the spot")] = TINY
    settings: Annotated[TorchSettings, Meta(description="how they work")] = TorchSettings()


class OpenAI(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="openai"):
    """A server that speaks the OpenAI API, for each device one engine that asks it."""

    tokenizer: Annotated[str, Meta(description="folder of the model's tokenizer")]
    settings: Annotated[OpenAISettings, Meta(description="where it is and what it can do")]


class RolloutFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """Everything that `windrow rollout` needs."""

    batches: Annotated[Count, Meta(description="batches to collect")] = 1
    devices: Annotated[Count, Meta(description="logical devices; one engine on each")] = 1
    engine: Annotated[Torch | Scripted | OpenAI, Meta(description="what generates")] = Torch()
    rollout: Annotated[RolloutConfig, Meta(description="what is collected, and how")] = RolloutConfig()


def make_cluster(file: RolloutFile) -> InferCluster:
    """The engines of a configuration, not yet started."""
    match file.engine:
        case Scripted():
            return _scripted(file, file.engine)
        case Torch():
            return _torch(file, file.engine)
        case OpenAI():
            return _openai(file, file.engine)


def _scripted(file: RolloutFile, engine: Scripted) -> InferCluster:
    codec = ByteCodec()
    if engine.settings.vocabulary > codec.vocabulary:
        raise ConfigError(
            f"engine.settings.vocabulary must be {codec.vocabulary} or less, got {engine.settings.vocabulary}"
        )

    def make(name: str, devices: tuple[int, ...], _: EngineConfig) -> Engine:
        return ScriptedEngine(name, engine.settings, devices=devices, codec=codec)

    return Cluster("engine", make, ResourceManager(file.devices), EngineConfig(codec=codec))


def _torch(file: RolloutFile, engine: Torch) -> InferCluster:
    from windrow.engines.torch import TorchEngine

    codec = _codec(engine.model)

    def make(name: str, devices: tuple[int, ...], _: EngineConfig) -> Engine:
        return TorchEngine(name, _model(engine), codec, engine.settings, devices=devices)

    return Cluster("engine", make, ResourceManager(file.devices), EngineConfig(codec=codec))


def _openai(file: RolloutFile, engine: OpenAI) -> InferCluster:
    from windrow.engines.openai import OpenAIEngine

    codec = _codec(engine.tokenizer)

    def make(name: str, devices: tuple[int, ...], _: EngineConfig) -> Engine:
        return OpenAIEngine(name, engine.settings, devices=devices, encode=lambda text: codec.encode(text).tolist())

    return Cluster("engine", make, ResourceManager(file.devices), EngineConfig(codec=codec))


def _model(engine: Torch) -> "PreTrainedModel | Path":
    if engine.model != TINY:
        return Path(engine.model)
    from windrow.tiny import tiny_model

    return tiny_model(seed=engine.settings.seed)


def _codec(model: str) -> ChatCodec:
    """The tokenizer of a model, with its chat template."""
    if model == TINY:
        from windrow.tiny import tiny_tokenizer

        return ChatCodec(tiny_tokenizer())
    if not Path(model).is_dir():
        raise ConfigError(f"there is no folder {model!r} with a model; name one, or use {TINY}")
    return ChatCodec(read_tokenizer(Path(model)))
