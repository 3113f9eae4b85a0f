"""A trained model's weights as a stream of whole tensors.

Promises
- Names are those of a plain Hugging Face model: adapters are merged into what they adapt, shards are put together, and
  a tensor that has several names in the model (a tied head) comes once, with all of them.
- The model that is trained stays as it is, bit for bit.
- All processes of a sharded model see the same tensors in the same order, that of their names. A tensor is put together
  when it is asked for and not kept, so that whoever forgets one before asking for the next holds one at a time.

With shards every process must read the stream to its end, because each has a part of every tensor.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windrow.engines.buckets import Named
from windrow.errors import ConfigError
from windrow.types import Value

if TYPE_CHECKING:
    from peft.tuners.tuners_utils import BaseTunerLayer

Number = Literal["float32", "bfloat16", "float16"]
"""The kinds of number that an engine may compute with."""


class Whole:
    """A weight that is whole when it is called for; what it will be is known before."""

    def __init__(self, names: list[str], tensor: Tensor, adapter: "_Adapter | None", dtype: torch.dtype) -> None:
        self.first = names[0]
        """The name that comes first in the model, under which Hugging Face would store it."""
        self.names = tuple(sorted(names))
        self.dtype = dtype
        self.shape = tensor.shape
        self._tensor = tensor
        self._adapter = adapter

    def __call__(self) -> Tensor:
        """All of it, merged with its adapter; it may be the very tensor that is trained."""
        with torch.no_grad():
            return self._merged(_gathered(self._tensor)).to(self.dtype)

    def _merged(self, whole: Tensor) -> Tensor:
        if self._adapter is None:
            return whole
        for left, right, scale in self._adapter.pairs:
            added = _gathered(left).float() @ _gathered(right).float()
            whole = torch.add(whole.float(), added.T if self._adapter.transposed else added, alpha=scale)
        return whole.to(self._tensor.dtype)


def wholes(model: nn.Module, dtype: Number | None = None) -> list[Whole]:
    """Every weight of a model, by order of names; `dtype` is what engines compute with, None: as they are stored."""
    inner = _inner(model)
    adapters = _adapters(inner)
    added = {id(tensor) for adapter in adapters.values() for tensor in adapter.tensors}
    state: dict[str, Tensor] = inner.state_dict(keep_vars=True)
    uses = Counter(map(id, state.values()))
    names: dict[int, list[str]] = {}  # by the identity of what is trained, because a tied tensor has several
    found: dict[int, tuple[Tensor, _Adapter | None]] = {}
    for name, tensor in state.items():
        if id(tensor) in added:
            continue
        owner, _, leaf = name.rpartition(".")
        layer = owner.removesuffix(".base_layer")
        adapter = adapters.get(layer) if leaf == "weight" else None
        if adapter is not None and uses[id(tensor)] > 1:
            raise ConfigError(
                f"{layer} has an adapter and shares its weights with another layer, so it cannot be merged; "
                f"leave it out of lora.targets"
            )
        names.setdefault(id(tensor), []).append(f"{layer}.{leaf}" if layer else leaf)
        found[id(tensor)] = (tensor, adapter)
    made = [Whole(names[key], tensor, adapter, _wanted(tensor, dtype)) for key, (tensor, adapter) in found.items()]
    return sorted(made, key=lambda whole: whole.names)


def weight_stream(model: nn.Module, dtype: Number | None = None) -> Iterator[Named]:
    """Every weight of a model, whole, one after the other."""
    return stream_of(wholes(model, dtype))


def stream_of(weights: list[Whole]) -> Iterator[Named]:
    return ((whole.names, whole()) for whole in weights)


class _Adapter(Value, frozen=True, kw_only=True):
    """What is added to a weight."""

    pairs: list[tuple[Tensor, Tensor, float]]
    """`B`, `A` and the scale of their product."""
    transposed: bool
    """The weight is stored as inputs × outputs."""
    tensors: list[Tensor]
    """All tensors of the layer that a plain model has not."""


def _gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this process may have a part only."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _inner(model: nn.Module) -> nn.Module:
    """The Hugging Face model itself, which peft wraps."""
    if "peft" not in sys.modules:
        return model
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model


def _adapters(model: nn.Module) -> dict[str, _Adapter]:
    """The adapters that are at work and not merged yet, by the name of the layer that has them."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: _adapter(name, layer) for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}


def _adapter(name: str, layer: "BaseTunerLayer") -> _Adapter:
    from peft.tuners.lora import Linear

    if not isinstance(layer, Linear) or layer.lora_variant or any(layer.lora_bias.values()):
        raise ConfigError(
            f"{name} has an adapter of type {type(layer).__name__}, of which only plain LoRA of linear layers can be "
            f"merged for engines; choose other lora.targets"
        )
    active = [one for one in layer.active_adapters if one in layer.lora_A and one not in layer.merged_adapters]
    pairs = [(_matrix(layer.lora_B[one]), _matrix(layer.lora_A[one]), float(layer.scaling[one])) for one in active]
    plain = {id(tensor) for tensor in layer.get_base_layer().parameters()}
    return _Adapter(
        pairs=pairs,
        transposed=bool(layer.fan_in_fan_out),
        tensors=[tensor for tensor in layer.parameters() if id(tensor) not in plain],
    )


def _matrix(layer: nn.Module) -> Tensor:
    return cast("nn.Linear", layer).weight


def _wanted(tensor: Tensor, dtype: Number | None) -> torch.dtype:
    return _DTYPES[dtype] if dtype is not None and tensor.is_floating_point() else tensor.dtype


_DTYPES: dict[Number, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
