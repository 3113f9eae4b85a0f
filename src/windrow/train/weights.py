"""How weights leave a trainer for engines.

Promises
- Names are those of a plain Hugging Face model: adapters are merged into what they adapt, shards are put together,
  and weights that are one tensor in the model (a tied head) are one tensor here, under each of its names.
- The model that is trained stays as it is, bit for bit; what leaves it is a copy.
- The checksum is the one that an engine confirms when it serves exactly these weights.
- What was handed out stays as it is until the update after the next one is packed, so an engine that was away can
  still load it; after the first two updates nothing new is allocated for it.
- A folder of weights appears whole or not at all. It is removed when its owner closes it; if the owner is killed,
  by whoever makes the next one.

With shards every process must call `engine_weights`, because each has a part of every tensor.
"""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windrow.engines.buckets import shared
from windrow.engines.torch.weights import checksum_of
from windrow.errors import ConfigError, TrainError
from windrow.train.rooms import Room
from windrow.types import Value, from_json, to_json

if TYPE_CHECKING:
    from peft.tuners.tuners_utils import BaseTunerLayer

Number = Literal["float32", "bfloat16", "float16"]
"""The kinds of number that an engine may compute with."""

Loadable = Mapping[str, Tensor] | Path
"""Weights as an engine takes them."""

ROOM = "weights"
"""The kind of folder that they are written to."""
FILE = "model.safetensors"
MANIFEST = "manifest.json"
KEPT = 2
"""Versions in a folder: the newest, and the one before it, which an engine that was away may be reading."""


class Packed(Value, frozen=True, kw_only=True):
    """Weights that engines can load."""

    version: int
    weights: Loadable
    checksum: str
    """What an engine with these weights confirms."""
    bytes: int
    seconds: float
    """How long it took to put them together."""


class Manifest(Value, frozen=True, kw_only=True):
    """What stands beside the weights in a folder."""

    version: int
    checksum: str
    bytes: int
    names: dict[str, list[str]]
    """Of each tensor in the file: all names that it has in the model."""


def engine_weights(
    model: nn.Module, *, dtype: Number | None = None, into: dict[str, Tensor] | None = None, keep: bool = True
) -> dict[str, Tensor]:
    """A copy of a model's weights for engines, in the main memory; `into` is a former answer that may be overwritten.

    `dtype` is what the engine computes with; None: what they are stored in. A process that only brings its shards
    says `keep=False` and gets nothing.
    """
    found: dict[str, Tensor] = {} if into is None else into
    copied: dict[int, Tensor] = {}  # by the identity of what is trained, because a tied tensor has several names
    with torch.no_grad():
        for name, tensor, merged in _plain(model):
            if id(tensor) not in copied:
                whole = merged()
                if not keep:
                    continue
                copied[id(tensor)] = _copy(whole, dtype, found.get(name))
            if keep:
                found[name] = copied[id(tensor)]
    return found


class LocalWeights:
    """Weights for engines in this process: two sets of tensors that are filled in turns."""

    def __init__(self, model: nn.Module, dtype: Number | None = None) -> None:
        self._model = model
        self._dtype: Number | None = dtype
        self._sets: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self._turn = 0

    def pack(self, version: int) -> Packed:
        """The weights as they are now."""
        began = time.perf_counter()
        tensors = engine_weights(self._model, dtype=self._dtype, into=self._sets[self._turn])
        self._turn = 1 - self._turn
        return Packed(
            version=version,
            weights=tensors,
            checksum=checksum_of(tensors),
            bytes=_bytes(tensors),
            seconds=time.perf_counter() - began,
        )


class SharedWeights:
    """A folder for weights that engines in other processes read; in memory where there is room for it."""

    def __init__(self, base: Path | None = None, needs_bytes: int = 0) -> None:
        """`needs_bytes` is the size of one version; it decides whether there is room in memory."""
        self._room = Room(ROOM, base, needs_bytes * (KEPT + 1))
        self.root = self._room.path
        self._tensors: dict[str, Tensor] = {}  # what was written last, to be filled again

    def pack(self, version: int, model: nn.Module, dtype: Number | None = None) -> Packed:
        """Write the weights of a model in this process."""
        began = time.perf_counter()
        self._tensors = engine_weights(model, dtype=dtype, into=self._tensors)
        return write_weights(self.root, version, self._tensors, began)

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        self._room.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_weights(root: Path, version: int, tensors: Mapping[str, Tensor], began: float | None = None) -> Packed:
    """Write one version into a folder and remove those that nobody can need any more; `began` is when work on it did.

    A tensor with several names is written under the first of them, as Hugging Face does.
    """
    began = time.perf_counter() if began is None else began
    checksum, size = checksum_of(tensors), _bytes(tensors)
    names = {next(name for name in tensors if name in same): [*same] for same in shared(tensors)}
    manifest = Manifest(version=version, checksum=checksum, bytes=size, names=names)
    folder, draft = root / f"v{version}", root / f".v{version}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_file({name: tensors[name] for name in names}, draft / FILE, metadata={"format": "pt"})
        (draft / MANIFEST).write_bytes(to_json(manifest))
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise TrainError(
            f"weights of version {version} ({size >> 20} MB) cannot be written to {root}: {error}; "
            f"make room there, or give weights another folder"
        ) from error
    _remove_old(root)
    seconds = time.perf_counter() - began
    return Packed(version=version, weights=folder, checksum=checksum, bytes=size, seconds=seconds)


def read_manifest(folder: Path) -> Manifest:
    """What `write_weights` said about a folder."""
    try:
        return from_json((folder / MANIFEST).read_bytes(), Manifest)
    except (OSError, ValueError) as error:
        raise TrainError(f"{folder} holds no weights of ours: {error}; give a folder that a trainer wrote") from error


async def deliver(
    packed: Packed, update: Callable[[int, Loadable], Awaitable[Mapping[str, object]]]
) -> dict[str, float | int]:
    """Have engines load weights and see that they serve what was trained; the metrics of the update.

    `update` is `RolloutScheduler.update_weights` or something like it: it answers with the checksum that the engines
    have confirmed, which is empty if they cannot say.
    """
    began = time.perf_counter()
    said = await update(packed.version, packed.weights)
    confirm(packed, str(said.get("checksum", "")))
    return {
        "weights/seconds": packed.seconds + time.perf_counter() - began,
        "weights/pack_seconds": packed.seconds,
        "weights/bytes": packed.bytes,
    }


def confirm(packed: Packed, checksum: str) -> None:
    """Raises TrainError if an engine has confirmed other weights than those that it was given."""
    if checksum in {"", packed.checksum}:
        return
    if isinstance(packed.weights, Path) and checksum == _checksum_of_files(packed.weights):
        return  # servers cannot see the tensors of their model, only the files that they read
    raise TrainError(
        f"version {packed.version} has checksum {packed.checksum} in the trainer and {checksum} in the engines; "
        f"give the engines the model that is trained, with the dtype that the weights were packed for"
    )


def _checksum_of_files(folder: Path) -> str:
    from windrow.engines.openai.checkpoint import checksum_of as of_files

    return of_files(folder)


def _plain(model: nn.Module) -> Iterator[tuple[str, Tensor, Callable[[], Tensor]]]:
    """Every weight by its plain name: the tensor that is trained, and how to get it whole with its adapters merged.

    All processes of a sharded model see the same order.
    """
    inner = _inner(model)
    adapters = _adapters(inner)
    added = {id(tensor) for adapter in adapters.values() for tensor in adapter.tensors}
    state: dict[str, Tensor] = inner.state_dict(keep_vars=True)
    uses = Counter(map(id, state.values()))
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
        yield f"{layer}.{leaf}" if layer else leaf, tensor, _Weight(tensor, adapter)


class _Adapter(Value, frozen=True, kw_only=True):
    """What is added to a weight."""

    pairs: list[tuple[Tensor, Tensor, float]]
    """`B`, `A` and the scale of their product."""
    transposed: bool
    """The weight is stored as inputs × outputs."""
    tensors: list[Tensor]
    """All tensors of the layer that a plain model has not."""


class _Weight:
    """A weight, whole when it is called for."""

    def __init__(self, tensor: Tensor, adapter: _Adapter | None) -> None:
        self._tensor = tensor
        self._adapter = adapter

    def __call__(self) -> Tensor:
        whole = _gathered(self._tensor)
        if self._adapter is None:
            return whole
        for left, right, scale in self._adapter.pairs:
            added = _gathered(left).float() @ _gathered(right).float()
            whole = torch.add(whole.float(), added.T if self._adapter.transposed else added, alpha=scale)
        return whole.to(self._tensor.dtype)


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


def _copy(tensor: Tensor, dtype: Number | None, into: Tensor | None) -> Tensor:
    wanted = _dtypes()[dtype] if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if into is not None and into.dtype == wanted and into.shape == tensor.shape:
        return into.copy_(tensor)
    return tensor.to(device="cpu", dtype=wanted, copy=True, memory_format=torch.contiguous_format)


def _dtypes() -> dict[Number, torch.dtype]:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    """Of everything that is sent; what has several names is sent once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in shared(tensors).values())


def _remove_old(root: Path) -> None:
    versions = sorted(
        (folder for folder in root.glob("v*") if folder.is_dir()), key=lambda folder: int(folder.name[1:])
    )
    for folder in versions[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
