"""Columns: tensors and numpy arrays whose first axis is the row.

Promises: a tensor is told from everything else without importing torch; NaN equals NaN; an index is checked against the
number of rows before anything is taken with it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from windrow.errors import DataError
from windrow.nearest import did_you_mean

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

Array: TypeAlias = NDArray[Any]  # a column may hold anything
Column: TypeAlias = "torch.Tensor | Array"
Places: TypeAlias = "Sequence[int] | Sequence[bool] | Array | torch.Tensor"
"""Which rows: their numbers, counted from the end if negative, or a mask over all of them."""
Names: TypeAlias = str | Sequence[str]


def is_tensor(value: object) -> TypeGuard["torch.Tensor"]:
    torch = sys.modules.get("torch")  # before torch is imported nothing is a tensor
    return torch is not None and isinstance(value, torch.Tensor)


def is_tensordict(value: object) -> TypeGuard["TensorDict"]:
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and isinstance(value, tensordict.TensorDictBase)


def described(column: Column) -> str:
    """`int64 (4, 10)`."""
    return f"{str(column.dtype).removeprefix('torch.')} {tuple(column.shape)}"


def row_count(columns: Mapping[str, Column]) -> int:
    """How many rows all of them have; 0 if there are none."""
    first: tuple[str, int] | None = None
    for name, column in columns.items():
        if column.ndim == 0:
            raise DataError(f"column {name} is a single value, not one per row; give it a first axis")
        if first is None:
            first = name, len(column)
        if len(column) != first[1]:
            raise DataError(
                f"column {name} has {len(column)} rows but column {first[0]} has {first[1]}; "
                "all columns need the same number"
            )
    return 0 if first is None else first[1]


def listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def check_positive(name: str, number: int) -> None:
    if number < 1:
        raise DataError(f"{name} must be 1 or more, got {number}")


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise DataError(f"the name of a column must be a string that is not empty, got {name!r}")


def check_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Every name is among the known ones."""
    there = list(known)
    for name in names:
        if name not in there:
            raise DataError(f"there is no {what} {name}{did_you_mean(name, there)}")


def check_apart(tensors: Iterable[str], arrays: Iterable[str]) -> None:
    """No name is a tensor's and an array's."""
    both = sorted(set(tensors) & set(arrays))
    if both:
        raise DataError(f"column {both[0]} is in batch and in non_tensor_batch; rename one of them")


def check_batch(batch: object) -> None:
    """A TensorDict of tensors by row."""
    if not is_tensordict(batch):
        raise DataError(f"batch must be a TensorDict or None, got {type(batch).__name__}; use DataProto.from_dict")
    if batch.batch_dims != 1:
        raise DataError(f"the TensorDict's batch_size must be the number of rows, got {tuple(batch.batch_size)}")
    for name, column in batch.items():
        check_name(name)
        if not is_tensor(column):
            raise DataError(f"column {name} of batch must be a tensor, got {type(column).__name__}; nothing is nested")


def check_arrays(arrays: Mapping[str, object]) -> None:
    """Numpy arrays by name."""
    for name, array in arrays.items():
        check_name(name)
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise DataError(f"column {name} of non_tensor_batch must be a numpy array, got {kind}; use from_dict")


def tensors_of(batch: "TensorDict | None") -> dict[str, "torch.Tensor"]:
    return {} if batch is None else cast('dict[str, "torch.Tensor"]', dict(batch.items()))


def taken(batch: "TensorDict", places: NDArray[np.int64]) -> "TensorDict":
    """A copy of some rows."""
    import torch

    index = torch.from_numpy(places)
    return as_tensordict(
        {name: tensor[index.to(tensor.device)] for name, tensor in tensors_of(batch).items()}, len(places)
    )


def as_tensordict(tensors: Mapping[str, "torch.Tensor"], rows: int) -> "TensorDict":
    from tensordict import TensorDict

    return TensorDict(dict(tensors), batch_size=[rows])


def as_array(name: str, values: object) -> Array:
    """An array as it is; a list or tuple as an array of objects, one per row."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, list | tuple):
        raise DataError(f"column {name} must be a numpy array or a list, got {type(values).__name__}")
    return object_array(values)


def object_array(values: Sequence[object]) -> Array:
    """One object per row, also where the objects are sequences themselves."""
    made = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        made[place] = value
    return made


def as_places(index: object, rows: int) -> NDArray[np.int64]:
    """Row numbers from 0 on, from numbers or a mask."""
    wanted = index.detach().cpu().numpy() if is_tensor(index) else np.asarray(index)
    if wanted.ndim != 1:
        raise DataError(f"rows are chosen by a flat list of numbers or a mask, got shape {wanted.shape}")
    if wanted.dtype == np.bool_:
        if len(wanted) != rows:
            raise DataError(f"a mask over {rows} rows must have as many entries, got {len(wanted)}")
        return np.flatnonzero(wanted)
    if wanted.size and wanted.dtype.kind not in "iu":
        raise DataError(f"rows are chosen by whole numbers or a mask, got {wanted.dtype}")
    places = wanted.astype(np.int64)
    outside = places[(places < -rows) | (places >= rows)]
    if outside.size:
        raise DataError(f"there is no row {outside[0]} in a batch of {rows}")
    return np.where(places < 0, places + rows, places)


def joined(name: str, parts: Sequence[Column]) -> Column:
    """All rows, one part after the other."""
    first = parts[0]
    for part in parts[1:]:
        if not _alike(first, part):
            raise DataError(
                f"column {name} is {described(first)} in one part and {described(part)} in another; "
                "they must agree in everything but rows"
            )
    if isinstance(first, np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    import torch

    return torch.cat([part for part in parts if is_tensor(part)])


def _alike(one: Column, other: Column) -> bool:
    text = isinstance(one, np.ndarray) and one.dtype.kind in "US"  # texts differ in width
    same_kind = one.dtype.kind == other.dtype.kind if text else one.dtype == other.dtype  # type: ignore[union-attr]
    return same_kind and one.shape[1:] == other.shape[1:]


def same(one: object, other: object) -> bool:
    """Equal in every value; NaN equals NaN."""
    if one is other:
        return True
    if is_tensor(one) and is_tensor(other):
        return _same_tensors(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if is_tensor(one) or is_tensor(other) or isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124  # only NaN differs from itself


def _same_tensors(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    other = other.to(one.device)
    equal = one == other
    if one.is_floating_point() or one.is_complex():
        equal |= one.isnan() & other.isnan()
    return bool(equal.all())


def _same_arrays(one: Array, other: Array) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return all(map(same, one.flat, other.flat))
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")
