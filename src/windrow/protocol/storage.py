"""A DataProto in a folder.

Promises: a folder is whole or absent; it is never written over. Tensors are in `batch.safetensors` under their names,
arrays of numbers and text each in a `.npy` file, arrays of objects and `meta_info` in `proto.json`, which also names
the columns in order. Nothing is pickled and nothing that is read is executed. What comes back equals what was saved,
dtype and shape included; what JSON would change (a tuple, a key that is no string, an object of a class) is refused.
Scalars of numpy come back as the Python number they equal. Devices and gradients are not kept: tensors come back on the
CPU.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from uuid import uuid4

import numpy as np

from windrow.errors import DataError
from windrow.protocol.columns import Array, as_tensordict, object_array

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

FORMAT = "windrow.DataProto"
VERSION = 1
INDEX = "proto.json"
TENSORS = "batch.safetensors"
RESERVED = "__metadata__"
"""The one name that a safetensors file keeps for itself."""

Json: TypeAlias = dict[str, Any]


class Parts(NamedTuple):
    """What a DataProto is made of."""

    batch: "TensorDict | None"
    arrays: dict[str, Array]
    meta: dict[str, Any]


def save(folder: Path, parts: Parts) -> None:
    """Write a new folder; refused if there is one already that is not empty."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise DataError(f"{folder} exists already; save to a new folder or remove it first")
    index = {
        "format": FORMAT,
        "version": VERSION,
        "batch": _index_of_batch(parts.batch),
        "arrays": [_index_of_array(name, array) for name, array in parts.arrays.items()],
        "meta_info": {key: _plain(value, f"meta_info {key}") for key, value in parts.meta.items()},
    }
    try:
        with _whole(folder) as part:
            if parts.batch is not None:
                _save_tensors(part / TENSORS, parts.batch)
            for number, (name, array) in enumerate(parts.arrays.items()):
                _save_array(part / _file_of(number), name, array)
            (part / INDEX).write_text(json.dumps(index), encoding="ascii")
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error


def load(folder: Path) -> Parts:
    """What `save` wrote."""
    index = _read_index(folder)
    try:
        arrays = {
            entry["name"]: _load_array(folder / _file_of(number), entry) for number, entry in enumerate(index["arrays"])
        }
        batch = index["batch"]
        tensors = None if batch is None else _load_tensors(folder / TENSORS, batch["columns"], batch["rows"])
        return Parts(tensors, arrays, index["meta_info"])
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{folder} is damaged, it cannot be read: {type(error).__name__}: {error}") from error


def _index_of_batch(batch: "TensorDict | None") -> Json | None:
    if batch is None:
        return None
    columns = [str(name) for name in batch.keys()]  # noqa: SIM118  # a TensorDict iterates over its rows
    if RESERVED in columns:
        raise DataError(f"column {RESERVED} cannot be saved, safetensors keeps that name for itself; rename it")
    return {"rows": batch.batch_size[0], "columns": columns}


def _index_of_array(name: str, array: Array) -> Json:
    if array.dtype != object:
        if array.dtype.hasobject:
            raise DataError(f"column {name} is {array.dtype}, objects inside a structure cannot be saved; split it up")
        return {"name": name}
    values = [_plain(value, f"column {name}") for value in array.flat]
    return {"name": name, "shape": list(array.shape), "objects": values}


def _plain(value: object, where: str) -> object:
    """The same value if JSON gives it back equal."""
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        value = value.item()
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if type(value) is list:
        return [_plain(entry, where) for entry in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _plain(entry, where) for key, entry in value.items()}
    hint = "use strings as keys" if isinstance(value, dict) else "use lists, dicts, strings and numbers, or drop it"
    raise DataError(f"{where} holds a {type(value).__name__} that JSON cannot give back, {value!r:.60}; {hint}")


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder beside the wanted one, which takes its name when everything is on disk."""
    part = folder.with_name(f".{folder.name}.{uuid4().hex}.part")
    part.mkdir(parents=True)
    try:
        yield part
        for path in (*part.iterdir(), part):
            _sync(path)
        part.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_of(number: int) -> str:
    return f"array_{number}.npy"


def _save_tensors(path: Path, batch: "TensorDict") -> None:
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, column in batch.items():
        tensor = cast("torch.Tensor", column).detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()  # safetensors holds no two tensors over one memory
        seen.add(tensor.untyped_storage().data_ptr())
        tensors[str(name)] = tensor
    try:
        save_file(tensors, path)
    except (KeyError, ValueError) as error:
        raise DataError(f"batch has a tensor that safetensors cannot hold: {error}") from error


def _save_array(path: Path, name: str, array: Array) -> None:
    if array.dtype == object:
        return  # in the index
    try:
        np.save(path, array, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"column {name} is {array.dtype}, which cannot be saved without pickle: {error}") from error


def _read_index(folder: Path) -> Json:
    path = folder / INDEX
    if not path.is_file():
        raise DataError(f"{folder} holds no saved DataProto, there is no {INDEX} in it")
    try:
        index = json.loads(path.read_text(encoding="ascii"))
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") != VERSION:
        raise DataError(f"{path} is not of the format {FORMAT} {VERSION}; it was written by something else")
    return index


def _load_array(path: Path, entry: Json) -> Array:
    if "objects" in entry:
        return object_array(entry["objects"]).reshape(entry["shape"])
    return cast("Array", np.load(path, allow_pickle=False))


def _load_tensors(path: Path, columns: list[str], rows: int) -> "TensorDict":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return as_tensordict({name: found[name] for name in columns}, rows)
