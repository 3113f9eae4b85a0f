"""How large a model is and what a device has, without loading the one or touching the other.

Promises: of a model in a folder only its configuration and the heads of its weight files are read. What cannot be known
is said to be unknown.
"""

import json
from math import prod
from pathlib import Path
from typing import Any

from windrow.engines.torch.settings import Dtype
from windrow.errors import ConfigError
from windrow.plan.costs import CORE, GPU, Hardware, Model
from windrow.train.config import ModelConfig, TinyConfig
from windrow.train.models import TINY

BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAPTERS = 4
"""Matrices of each layer's width that an adapter sits beside, in a usual model."""


def size_of(config: ModelConfig, dtype: Dtype) -> Model:
    """A model in numbers."""
    each = BYTES[dtype]
    if config.path == TINY:
        tiny = config.tiny
        parameters, layers, width = float(_tiny_weights(tiny)), tiny.layers, tiny.hidden
        cached = width
    else:
        folder = Path(config.path)
        form = _form(folder)
        parameters, layers, width = float(_weights(folder)), form["num_hidden_layers"], form["hidden_size"]
        heads = form["num_attention_heads"]
        cached = width * form.get("num_key_value_heads", heads) // heads
    lora = config.lora
    trained = parameters if lora is None else float(2 * lora.rank * width * layers * ADAPTERS)
    return Model(
        parameters=parameters,
        trained=trained,
        bytes_each=each,
        cache_bytes_per_token=2.0 * layers * cached * each,
    )


def hardware_of(device: str) -> Hardware:
    """What a device is taken to reach."""
    return GPU if device.startswith("cuda") else CORE


def device_bytes(device: str) -> float | None:
    """The memory of a device; None if it has none of its own or cannot be asked."""
    if not device.startswith("cuda"):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)


def _tiny_weights(tiny: TinyConfig) -> int:
    """Embeddings in and out, attention with half the keys and values, three matrices of twice the width."""
    layer = 3 * tiny.hidden**2 + 6 * tiny.hidden**2
    if tiny.kind == "gpt2":
        layer = 12 * tiny.hidden**2
    return 2 * tiny.vocabulary * tiny.hidden + tiny.layers * layer


def _form(folder: Path) -> dict[str, Any]:
    """The configuration of a model, as Hugging Face writes it."""
    try:
        form: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path {folder} has no config.json that can be read; give a folder of a model"
        ) from error
    missing = [name for name in ("num_hidden_layers", "hidden_size", "num_attention_heads") if name not in form]
    if missing:
        raise ConfigError(
            f"{folder}/config.json does not say {missing[0]}, which a plan needs; map the devices yourself"
        )
    return form


def _weights(folder: Path) -> int:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"model.path {folder} has no *.safetensors, whose heads a plan reads; map the devices yourself"
        )
    return sum(_weights_in(path) for path in files)


def _weights_in(path: Path) -> int:
    """The numbers in a file of weights, by its head: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ConfigError(f"{path} is no file of weights; save the model anew")
        head: dict[str, Any] = json.loads(file.read(size))
    return sum(prod(entry["shape"]) for name, entry in head.items() if name != "__metadata__")
