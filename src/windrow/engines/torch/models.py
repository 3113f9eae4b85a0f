"""The model of an engine: from a folder, from a config or as it is, and whether the engine can run it at all.

Promises: a model whose attention or cache is not the ordinary one is refused by name when the engine is made. What is
accepted has proven itself: fed in pieces through the engine's cache it says what it says when it is called plainly.
"""

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from windrow.engines.torch.attention import ATTENTION
from windrow.engines.torch.forward import Forward
from windrow.engines.torch.settings import TorchSettings
from windrow.engines.torch.store import KvStore
from windrow.errors import ConfigError, blame

Source = PreTrainedModel | PretrainedConfig | Path | str

PROBE = ((0, 3), (3, 1), (4, 4))
"""Pieces in which the model is tried: where each begins and how long it is."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""How far two ways to the same logits may lie apart, as a share of the largest."""


def made(source: Source, settings: TorchSettings) -> PreTrainedModel:
    """The model, ready to be run by an engine that owns it from now on."""
    model = _model(source, settings)
    name = type(model).__name__
    if model.config.is_encoder_decoder or not model._can_set_attn_implementation():  # noqa: SLF001  # no public way to ask
        raise ConfigError(f"{name} does not use transformers' attention interface; the torch engine cannot run it")
    with blame(ConfigError, f"{name} cannot be run by the torch engine"):
        nn.Module.to(model, device=settings.device, dtype=_dtype(settings))
        nn.Module.eval(model)
        _check_cache(model, context(model, settings))
        _prove(model)
    return model


def context(model: PreTrainedModel, settings: TorchSettings) -> int:
    """Tokens of a prompt and its response together."""
    most = model.config.get_text_config().max_position_embeddings
    wanted = settings.context_tokens
    if wanted is not None and wanted > most:
        raise ConfigError(f"context_tokens is {wanted} and {type(model).__name__} has {most} positions; set {most}")
    return int(wanted or most)


def vocabulary(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config().vocab_size)


def _model(source: Source, settings: TorchSettings) -> PreTrainedModel:
    if isinstance(source, PreTrainedModel):
        return source
    if isinstance(source, PretrainedConfig):
        return _fresh(source, settings)
    folder = Path(source)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json; give a folder that save_pretrained wrote")
    config = AutoConfig.from_pretrained(folder)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model folder {folder} has no safetensors file; give its config for random weights")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=_dtype(settings))
    return model


def _fresh(config: PretrainedConfig, settings: TorchSettings) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(config), dtype=_dtype(settings))  # type: ignore[no-untyped-call]  # transformers'
    return model


def _dtype(settings: TorchSettings) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.dtype]


def _check_cache(model: PreTrainedModel, context_tokens: int) -> None:
    """Whether every layer remembers all that it has seen, as keys and values."""
    name = type(model).__name__
    if model._is_stateful:  # noqa: SLF001  # no public way to ask
        raise ConfigError(f"{name} keeps a state instead of keys and values; the torch engine cannot run it")
    for number, layer in enumerate(DynamicCache(config=model.config).layers):
        if type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= context_tokens:
            continue  # the window is never left
        if type(layer) is DynamicSlidingWindowLayer:
            raise ConfigError(
                f"{name} layer {number} sees a window of {layer.sliding_window} tokens and the context is "
                f"{context_tokens}; set context_tokens to {layer.sliding_window} or less"
            )
        if type(layer) is not DynamicLayer:
            raise ConfigError(f"{name} layer {number} needs {type(layer).__name__}; the torch engine cannot run it")


def _prove(model: PreTrainedModel) -> None:
    """Run the model with its own attention, then through a store with the engine's, which it keeps, and compare."""
    size = sum(count for _, count in PROBE)
    ids = np.arange(1, size + 1, dtype=np.int32)[None] % vocabulary(model)
    with torch.inference_mode():
        plain = model(input_ids=torch.from_numpy(ids).long().to(model.device), use_cache=False).logits[0]
        model.set_attn_implementation(ATTENTION)
        forward = Forward(model, KvStore(1), fixed=False)
        for done, count in PROBE:
            ours = forward.run(ids, np.array([done]), np.array([count]))[0]
            _compare(type(model).__name__, ours.float(), plain[done + count - 1].float(), model.dtype)


def _compare(name: str, ours: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    if not bool(plain.isfinite().all()):
        return  # such weights say nothing either way
    apart = float((ours - plain).abs().max() / plain.abs().max().clamp(min=1e-6))
    if not apart <= TOLERANCE[dtype]:
        raise ConfigError(
            f"{name} says something else through the engine's cache (apart by {apart:.2g} of the largest logit); "
            "the torch engine cannot run it"
        )
