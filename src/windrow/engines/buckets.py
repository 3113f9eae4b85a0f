"""Weights on their way to engines: many tensors in a few pieces of memory.

```
tensors ── packed ── buckets ── ray.put, once ── Shipment ── received, in each engine's process ── tensors
```

Promises
- A bucket holds no more than its limit; a tensor that is larger has one for itself. Whoever packs holds one bucket and
  one tensor at a time, however many there are.
- What is unpacked is what was packed: names, shapes, kinds of number and bits. Nothing is copied, so tensors are views
  of their bucket, and a tensor with several names is one tensor. A bucket that was damaged is an EngineError.
- `Checksum` is the word that an engine confirms for these weights, though nobody had them all at once.
- A shipment's buckets are in Ray's object store: a node fetches each of them once, and all engines on it read the same
  memory. They live as long as somebody holds the shipment, and the process that put them there lives.

Nobody may write to tensors that were received: others are reading them.
"""

import asyncio
import ctypes
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ConfigError, EngineError, InternalError
from windrow.types import Value

if TYPE_CHECKING:
    from torch import Tensor

LIMIT_BYTES = 256 << 20
"""Of a bucket: large enough that fetching many costs nothing, small enough to be held beside a shard."""
ALIGNED = 64
"""Every tensor begins at a multiple of it: the size of any number divides it, and processors read in such pieces."""
MANIFEST = "manifest.json"
"""Beside weights in a folder: of each tensor, all names that it has (`names`)."""

Bytes = npt.NDArray[np.uint8]
Named: TypeAlias = "tuple[tuple[str, ...], Tensor]"
"""A tensor under all its names, in their order."""


class Entry(Value, frozen=True, kw_only=True):
    """A tensor in a bucket."""

    names: tuple[str, ...]
    """All that it has, in their order."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Bucket(Value, frozen=True, kw_only=True):
    """Tensors in one piece of memory."""

    number: int
    """Its place among the buckets of these weights, from 0."""
    entries: tuple[Entry, ...]
    data: Bytes
    checksum: str
    """Of its bytes."""

    def __str__(self) -> str:
        more = f" and {len(self.entries) - 1} more" if len(self.entries) > 1 else ""
        return f"bucket {self.number} ({self.entries[0].names[0]}{more})"

    def bytes_of(self, entry: Entry) -> memoryview:
        """Those of one tensor."""
        return self.data[entry.offset : entry.offset + entry.nbytes].data


class Shipment(Value, frozen=True, kw_only=True):
    """Weights that any process of a Ray cluster can fetch; it is small, and can be sent anywhere by Ray."""

    version: int
    places: tuple[Any, ...]
    """The buckets, as references of Ray, which have no type."""
    manifest: dict[str, int]
    """Of every name: the number of its bucket."""
    checksum: str
    """What an engine with these weights confirms."""
    nbytes: int
    """Of all tensors."""


class Checksum:
    """A word for weights that are seen one after the other, in the order of their names."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()  # processors have instructions for it
        self._last: tuple[str, ...] = ()

    def add(self, names: tuple[str, ...], dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        if names <= self._last:
            raise InternalError(f"weights {names} came after {self._last}; their checksum needs them in order")
        self._last = names
        self._digest.update(f"{names} torch.{dtype} {shape}\n".encode())
        self._digest.update(data)

    @property
    def word(self) -> str:
        return self._digest.hexdigest()[:32]


def packed(tensors: "Iterable[Named]", limit_bytes: int = LIMIT_BYTES) -> Iterator[Bucket]:
    """Tensors in buckets, each of which is handed out before the next one is begun; forget it before you ask again."""
    if limit_bytes < 1:
        raise ConfigError(f"buckets of weights must have room for a byte or more, got limit_bytes={limit_bytes}")
    filling = _Filling(0, limit_bytes)
    seen: set[str] = set()
    for names, tensor in tensors:
        _check_new(names, seen)
        seen.update(names)
        if filling.entries and not filling.has_room_for(tensor):
            yield filling.bucket()
            filling = _Filling(filling.number + 1, limit_bytes)
        filling.add(names, tensor)
        del tensor  # the next one is made before the name is used again
    if filling.entries:
        yield filling.bucket()


def unpacked(buckets: Iterable[Bucket], expected: Collection[str] | None = None) -> "dict[str, Tensor]":
    """The tensors in buckets, as views of them; `expected` are the names that they must have."""
    found: dict[str, Tensor] = {}
    for bucket in buckets:
        if _word(bucket.data) != bucket.checksum:
            raise EngineError(f"weights: {bucket} was damaged on its way; send the weights again")
        whole = _memory(bucket.data)
        for entry in bucket.entries:
            _check_new(entry.names, found)
            found |= dict.fromkeys(entry.names, _view(whole, entry))
    if expected is not None and found.keys() != set(expected):
        missing, strange = sorted(set(expected) - found.keys()), sorted(found.keys() - set(expected))
        raise EngineError(f"weights lack {missing} and have {strange} that nobody expects; send all their buckets")
    return found


def shared(tensors: "Mapping[str, Tensor]") -> "dict[tuple[str, ...], Tensor]":
    """Each piece of memory once, under all its names."""
    names: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
    return {tuple(sorted(same)): tensors[same[0]] for same in names.values()}


def ship(
    version: int, weights: "Mapping[str, Tensor] | Path | Iterable[Named]", limit_bytes: int = LIMIT_BYTES
) -> Shipment:
    """Put weights into Ray's object store, bucket by bucket: tensors, a folder of them, or a stream by order of names.

    A tensor in a folder that has no manifest of ours has the one name under which it is in its file.
    """
    import ray

    return shipped(version, packed(_stream(weights), limit_bytes), ray.put)


def shipped(version: int, buckets: Iterable[Bucket], put: Callable[[Bucket], Any]) -> Shipment:
    """Hand each bucket to `put`, which says where it is then."""
    places: list[Any] = []
    manifest: dict[str, int] = {}
    checksum, nbytes = Checksum(), 0
    for bucket in buckets:
        for entry in bucket.entries:
            checksum.add(entry.names, entry.dtype, entry.shape, bucket.bytes_of(entry))
            nbytes += entry.nbytes
        manifest |= {name: bucket.number for entry in bucket.entries for name in entry.names}
        places.append(put(bucket))
        del bucket  # the next one is filled before the name is used again
    word = checksum.word
    return Shipment(version=version, places=tuple(places), manifest=manifest, checksum=word, nbytes=nbytes)


async def received(shipment: Shipment) -> "dict[str, Tensor]":
    """The tensors of a shipment, fetched beside the event loop."""
    return await asyncio.to_thread(fetched, shipment)


def fetched(shipment: Shipment) -> "dict[str, Tensor]":
    """The same for whoever can wait here."""
    import ray
    from ray.exceptions import RayError

    try:
        buckets: list[Bucket] = ray.get(list(shipment.places))
    except RayError as error:
        why = str(error).strip().partition("\n")[0]
        raise EngineError(f"weights of version {shipment.version} cannot be fetched: {why}; pack them again") from error
    return unpacked(buckets, shipment.manifest)


class _Filling:
    """A bucket that is not full yet."""

    def __init__(self, number: int, limit_bytes: int) -> None:
        self.number = number
        self.entries: list[Entry] = []
        self._limit = limit_bytes
        self._used = 0
        self._data: Bytes = np.empty(0, np.uint8)

    def has_room_for(self, tensor: "Tensor") -> bool:
        return _aligned(self._used) + tensor.nbytes <= self._limit

    def add(self, names: tuple[str, ...], tensor: "Tensor") -> None:
        offset = _aligned(self._used)
        if not self.entries:  # memory that is not written to is not taken yet
            self._data = np.empty(max(self._limit, tensor.nbytes), np.uint8)
        entry = Entry(
            names=names,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offset=offset,
            nbytes=tensor.nbytes,
        )
        self._data[self._used : offset] = 0  # what lies between is sent as well
        _view(_memory(self._data), entry).copy_(tensor.detach())
        self.entries.append(entry)
        self._used = offset + entry.nbytes

    def bucket(self) -> Bucket:
        data = self._data[: self._used]
        return Bucket(number=self.number, entries=tuple(self.entries), data=data, checksum=_word(data))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED) * ALIGNED


def _word(data: Bytes) -> str:
    return hashlib.sha256(data.data).hexdigest()[:32]


def _memory(data: Bytes) -> "Tensor":
    """A tensor over the same bytes; by their address, because torch complains of memory that cannot be written to."""
    import torch

    if not data.size:
        return torch.empty(0, dtype=torch.uint8)
    place = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    place.owner = data  # type: ignore[attr-defined]  # whoever holds the tensor holds the memory
    return torch.frombuffer(place, dtype=torch.uint8)


def _view(whole: "Tensor", entry: Entry) -> "Tensor":
    import torch

    dtype: torch.dtype = getattr(torch, entry.dtype)
    return whole[entry.offset : entry.offset + entry.nbytes].view(dtype).view(entry.shape)


def _check_new(names: tuple[str, ...], seen: Collection[str]) -> None:
    twice = [name for name in names if name in seen]
    if twice or not names:
        raise EngineError(
            f"weights: a tensor has the names {names}, of which {twice} were there before; send each once"
        )


def _stream(weights: "Mapping[str, Tensor] | Path | Iterable[Named]") -> "Iterable[Named]":
    if isinstance(weights, Path):
        return _in_folder(weights)
    if isinstance(weights, Mapping):
        return sorted(shared(weights).items(), key=lambda item: item[0])
    return weights


def _in_folder(folder: Path) -> "Iterator[Named]":
    """The tensors of all safetensors files in a folder, one after the other."""
    from safetensors import SafetensorError, safe_open

    try:
        files: list[Any] = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
        if not files:
            raise EngineError(f"weights: no safetensors file in {folder}; give a folder that a trainer wrote")
        manifest = folder / MANIFEST
        known = json.loads(manifest.read_bytes())["names"] if manifest.is_file() else {}
        found = [(tuple(known.get(name, [name])), name, file) for file in files for name in _names(file)]
        for names, name, file in sorted(found, key=lambda each: each[0]):
            yield names, file.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise EngineError(f"weights: {folder} cannot be read: {error}") from error


def _names(file: Any) -> list[str]:  # noqa: ANN401 -- safetensors has no types
    return list(file.keys())
