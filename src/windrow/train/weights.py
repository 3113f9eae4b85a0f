"""How weights leave a trainer for engines.

Promises
- Names are those of a plain Hugging Face model: adapters are merged into what they adapt, shards are put together,
  and weights that are one tensor in the model (a tied head) are one tensor here, under each of its names.
- The model that is trained stays as it is, bit for bit; what leaves it is a copy.
- The checksum is the one that an engine confirms when it serves exactly these weights.
- What leaves for other processes leaves bucket by bucket: beyond what it trains, a process holds one bucket and one
  tensor, never a copy of everything.
- What was handed out stays as it is until the update after the next one is packed, so an engine that was away can
  still load it. Tensors for engines in this process are filled again: after two updates nothing new is allocated.
- A folder of weights appears whole or not at all. It is removed when its owner closes it; if the owner is killed,
  by whoever makes the next one.

With shards every process must take part, because each has a part of every tensor.
"""

import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from windrow.engines.buckets import LIMIT_BYTES, MANIFEST, packed, shared, ship, shipped
from windrow.engines.protocol import Weights
from windrow.engines.torch.weights import checksum_of, read
from windrow.errors import TrainError
from windrow.train.rooms import Room
from windrow.train.streams import Number, Whole, stream_of, wholes
from windrow.train.tensor_files import TensorFile
from windrow.types import Value, from_json, to_json

ROOM = "weights"
"""The kind of folder that they are written to."""
FILE = "model.safetensors"
KEPT = 2
"""Versions in a folder: the newest, and the one before it, which an engine that was away may be reading."""


class Packed(Value, frozen=True, kw_only=True):
    """Weights that engines can load."""

    version: int
    weights: Weights
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
    model: nn.Module, *, dtype: Number | None = None, into: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """A copy of a model's weights for engines, in the main memory; `into` is a former answer that may be overwritten.

    `dtype` is what the engine computes with; None: what they are stored in.
    """
    found: dict[str, Tensor] = {} if into is None else into
    for whole in wholes(model, dtype):
        copy = _copy(whole(), found.get(whole.first))
        found |= dict.fromkeys(whole.names, copy)
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

    def pack(self, version: int, model: nn.Module, dtype: Number | None = None) -> Packed:
        """Write the weights of a model in this process."""
        return write_weights(self.root, version, wholes(model, dtype))

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        self._room.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_weights(root: Path, version: int, weights: list[Whole], limit_bytes: int = LIMIT_BYTES) -> Packed:
    """Write one version into a folder, bucket by bucket, and remove those that nobody can need any more.

    A tensor with several names is written under the first of them, as Hugging Face does.
    """
    began = time.perf_counter()
    folder, draft = root / f"v{version}", root / f".v{version}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        manifest = _written(draft, version, weights, limit_bytes)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        size = sum(whole.shape.numel() * whole.dtype.itemsize for whole in weights)
        raise TrainError(
            f"weights of version {version} ({size >> 20} MB) cannot be written to {root}: {error}; "
            f"make room there, or give weights another folder"
        ) from error
    _remove_old(root)
    seconds = time.perf_counter() - began
    return Packed(version=version, weights=folder, checksum=manifest.checksum, bytes=manifest.bytes, seconds=seconds)


def ship_weights(version: int, weights: list[Whole], limit_bytes: int = LIMIT_BYTES) -> Packed:
    """Put one version into Ray's object store, bucket by bucket."""
    began = time.perf_counter()
    sent = ship(version, stream_of(weights), limit_bytes)
    seconds = time.perf_counter() - began
    return Packed(version=version, weights=sent, checksum=sent.checksum, bytes=sent.nbytes, seconds=seconds)


def bring_shards(weights: list[Whole]) -> None:
    """What the other processes do meanwhile: put every tensor together with those who keep it."""
    for whole in weights:
        whole()


def read_manifest(folder: Path) -> Manifest:
    """What `write_weights` said about a folder."""
    try:
        return from_json((folder / MANIFEST).read_bytes(), Manifest)
    except (OSError, ValueError) as error:
        raise TrainError(f"{folder} holds no weights of ours: {error}; give a folder that a trainer wrote") from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors that `write_weights` wrote, under all their names; they stay when the folder goes."""
    names, tensors = read_manifest(folder).names, read(folder)
    return {name: tensors[first] for first, same in names.items() for name in same}


async def deliver(
    packed: Packed, update: Callable[[int, Weights], Awaitable[Mapping[str, object]]]
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


def _written(folder: Path, version: int, weights: list[Whole], limit_bytes: int) -> Manifest:
    with TensorFile(folder / FILE, weights) as file:
        sent = shipped(version, packed(stream_of(weights), limit_bytes), file.add)
    names = {whole.first: [*whole.names] for whole in weights}
    manifest = Manifest(version=version, checksum=sent.checksum, bytes=sent.nbytes, names=names)
    (folder / MANIFEST).write_bytes(to_json(manifest))
    return manifest


def _copy(tensor: Tensor, into: Tensor | None) -> Tensor:
    if into is not None and into.dtype == tensor.dtype and into.shape == tensor.shape:
        return into.copy_(tensor)
    return tensor.to(device="cpu", copy=True, memory_format=torch.contiguous_format)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    """Of everything that is sent; what has several names is sent once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in shared(tensors).values())


def _remove_old(root: Path) -> None:
    versions = sorted(
        (folder for folder in root.glob("v*") if folder.is_dir()), key=lambda folder: int(folder.name[1:])
    )
    for folder in versions[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
