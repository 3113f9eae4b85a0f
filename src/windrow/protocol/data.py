"""The class and its verbs.

Promises: a verb either does all it says or raises a `DataError` and changes nothing. `union`, `rename`, `reorder`,
`pop` and `to` change the object that they are called on, never a TensorDict or a dict that it was made from; all others
return a new one. Slices share memory with where they came from, what is chosen by number or mask is a copy. Each object
has its own `meta_info`; the entries are shared.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from windrow.errors import DataError
from windrow.protocol import storage
from windrow.protocol.columns import (
    Array,
    Column,
    Names,
    Places,
    as_array,
    as_places,
    as_tensordict,
    check_apart,
    check_arrays,
    check_batch,
    check_known,
    check_name,
    check_positive,
    described,
    is_tensor,
    joined,
    listed,
    row_count,
    taken,
    tensors_of,
)
from windrow.protocol.meta import joined_meta, united, united_meta

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

Slice: TypeAlias = slice  # DataProto has a verb of that name

DATALOADER_OPTIONS = ("shuffle", "drop_last")
"""What `make_iterator` understands of a data loader's options; it needs none of the others."""


@dataclass(frozen=True, slots=True)
class DataProtoItem:
    """One row; its tensors are views."""

    batch: "TensorDict | None"
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


class Padded(NamedTuple):
    """A batch whose length is a multiple, and how many of its last rows are there for that alone."""

    data: "DataProto"
    pad_size: int


class DataProto:
    """A batch: tensors, arrays beside them, and what is known about the whole."""

    __slots__ = ("batch", "meta_info", "non_tensor_batch")

    def __init__(
        self,
        batch: "TensorDict | None" = None,
        non_tensor_batch: Mapping[str, Array] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> None:
        self.batch = batch
        self.non_tensor_batch = dict(non_tensor_batch or {})
        self.meta_info = dict(meta_info or {})
        self.check_consistency()

    @staticmethod
    def from_dict(
        tensors: "Mapping[str, torch.Tensor] | None" = None,
        non_tensors: Mapping[str, Array | Sequence[object]] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> "DataProto":
        """From columns by kind; a list becomes an array of objects, one per row."""
        if not tensors and not non_tensors:
            raise DataError("from_dict got no columns; for meta information alone use DataProto(meta_info=...)")
        for name, tensor in (tensors or {}).items():
            check_name(name)
            if not is_tensor(tensor):
                raise DataError(f"column {name} must be a tensor, got {type(tensor).__name__}; put it into non_tensors")
        arrays = {name: as_array(name, values) for name, values in (non_tensors or {}).items()}
        batch = as_tensordict(tensors, row_count(tensors)) if tensors else None
        return DataProto(batch, arrays, meta_info)

    @staticmethod
    def from_single_dict(data: Mapping[str, Column], meta_info: Mapping[str, Any] | None = None) -> "DataProto":
        """From columns of both kinds, told apart by their type."""
        if not data:
            raise DataError("from_single_dict got no columns; for meta information alone use DataProto(meta_info=...)")
        for name, column in data.items():
            if not is_tensor(column) and not isinstance(column, np.ndarray):
                kind = type(column).__name__
                raise DataError(f"column {name} must be a tensor or a numpy array, got {kind}; convert it first")
        tensors = {name: column for name, column in data.items() if is_tensor(column)}
        arrays = {name: column for name, column in data.items() if isinstance(column, np.ndarray)}
        return DataProto.from_dict(tensors, arrays, meta_info)

    def check_consistency(self) -> None:
        """Raise a DataError if the columns do not fit together."""
        if self.batch is not None:
            check_batch(self.batch)
        check_arrays(self.non_tensor_batch)
        check_apart(tensors_of(self.batch), self.non_tensor_batch)
        rows = row_count({**tensors_of(self.batch), **self.non_tensor_batch})
        if self.batch is not None and self.keys() and rows != len(self):
            raise DataError(f"batch says it has {len(self)} rows but its columns have {rows}; set its batch_size")

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return row_count(self.non_tensor_batch)

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name} {described(tensor)}" for name, tensor in tensors_of(self.batch).items())
        arrays = ", ".join(f"{name} {described(array)}" for name, array in self.non_tensor_batch.items())
        meta = ", ".join(map(str, self.meta_info))
        parts = [("batch", tensors), ("non_tensor_batch", arrays), ("meta_info", meta)]
        return "; ".join([f"DataProto({len(self)} rows", *(f"{name}: {what}" for name, what in parts if what)]) + ")"

    def __iter__(self) -> Iterator[DataProtoItem]:
        return (self[place] for place in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def keys(self) -> list[str]:
        """All columns, tensors first."""
        return [*tensors_of(self.batch), *self.non_tensor_batch]

    @overload
    def __getitem__(self, index: str) -> Any: ...  # noqa: ANN401  # tensor or array, as the caller knows
    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> DataProtoItem: ...
    @overload
    def __getitem__(self, index: "slice | Places") -> "DataProto": ...
    def __getitem__(
        self, index: "str | int | np.integer[Any] | slice | Places"
    ) -> "Column | DataProtoItem | DataProto":
        """A column by name, a row by number, rows by slice, numbers or mask."""
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, slice):
            return self._sliced(index)
        if isinstance(index, int | np.integer):
            return self._item(index)
        return self.select_idxs(index)

    def select(
        self,
        batch_keys: Names | None = None,
        non_tensor_batch_keys: Names | None = None,
        meta_info_keys: Names | None = None,
        *,
        deepcopy: bool = False,
    ) -> "DataProto":
        """Some columns and entries; None means all of that kind."""
        tensors, arrays, meta = self._chosen(
            [*tensors_of(self.batch)] if batch_keys is None else listed(batch_keys),
            [*self.non_tensor_batch] if non_tensor_batch_keys is None else listed(non_tensor_batch_keys),
            [*self.meta_info] if meta_info_keys is None else listed(meta_info_keys),
        )
        chosen = DataProto(None if self.batch is None else as_tensordict(tensors, len(self)), arrays, meta)
        return chosen.clone() if deepcopy else chosen

    def pop(
        self,
        batch_keys: Names | None = None,
        non_tensor_batch_keys: Names | None = None,
        meta_info_keys: Names | None = None,
    ) -> "DataProto":
        """Take some columns and entries out and return them; None means none of that kind."""
        tensors, arrays, meta = self._chosen(
            listed(batch_keys or ()), listed(non_tensor_batch_keys or ()), listed(meta_info_keys or ())
        )
        popped = DataProto(as_tensordict(tensors, len(self)) if tensors else None, arrays, meta)
        rest = {name: tensor for name, tensor in tensors_of(self.batch).items() if name not in tensors}
        self.batch = None if self.batch is None else as_tensordict(rest, len(self))
        for name in arrays:
            del self.non_tensor_batch[name]
        for name in meta:
            del self.meta_info[name]
        return popped

    def rename(self, old: Names, new: Names) -> "DataProto":
        """Give columns other names, in place."""
        before, after = listed(old), listed(new)
        if len(before) != len(after):
            raise DataError(f"{len(before)} columns cannot take {len(after)} names; give one name for each")
        check_known(before, self.keys(), "column")
        for name in after:
            check_name(name)
        names = dict(zip(before, after, strict=True))
        wanted = [names.get(name, name) for name in self.keys()]
        for name in wanted:
            if wanted.count(name) > 1:
                raise DataError(f"two columns would be called {name}; choose another name or pop one of them")
        if self.batch is not None:
            self.batch = as_tensordict(
                {names.get(k, k): tensor for k, tensor in tensors_of(self.batch).items()}, len(self)
            )
        self.non_tensor_batch = {names.get(name, name): array for name, array in self.non_tensor_batch.items()}
        return self

    def union(self, other: "DataProto") -> "DataProto":
        """Add the other's columns and entries, in place; what both have must be equal, NaN equals NaN."""
        if _has_columns(self) and _has_columns(other) and len(self) != len(other):
            raise DataError(f"a union needs equally many rows, got {len(self)} and {len(other)}")
        tensors = united(tensors_of(self.batch), tensors_of(other.batch), "column")
        arrays = united(self.non_tensor_batch, other.non_tensor_batch, "column")
        meta = united_meta(self.meta_info, other.meta_info)
        check_apart(tensors, arrays)
        rows = max(len(self), len(other))
        has_batch = self.batch is not None or other.batch is not None
        self.batch = as_tensordict(tensors, rows) if has_batch else None
        self.non_tensor_batch, self.meta_info = arrays, meta
        return self

    def select_idxs(self, idxs: Places) -> "DataProto":
        """Rows by number, in that order and as often as they are named, or by mask."""
        return self._taken(as_places(idxs, len(self)))

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """Rows as Python slices them."""
        return self[start:end:step]

    def chunk(self, chunks: int) -> "list[DataProto]":
        """Equally long parts, in order."""
        check_positive("chunks", chunks)
        rows, rest = divmod(len(self), chunks)
        if rest:
            raise DataError(
                f"{len(self)} rows cannot be cut into {chunks} equal parts; use pad_to_divisor({chunks}) first"
            )
        return [self._sliced(slice(part * rows, (part + 1) * rows)) for part in range(chunks)]

    @staticmethod
    def concat(data: "Sequence[DataProto]") -> "DataProto":
        """Batches with the same columns, one after the other; what becomes of `meta_info` is said in `meta`."""
        if not data:
            raise DataError("there is nothing to concatenate; give at least one batch")
        for part in data[1:]:
            _check_same_columns(data[0], part)
        rows = [len(part) for part in data]
        meta = joined_meta([part.meta_info for part in data], rows)
        tables = [tensors_of(part.batch) for part in data]
        tensors = {name: joined(name, [table[name] for table in tables]) for name in tables[0]}
        arrays = {
            name: joined(name, [part.non_tensor_batch[name] for part in data]) for name in data[0].non_tensor_batch
        }
        batch = None if data[0].batch is None else as_tensordict(cast("dict[str, torch.Tensor]", tensors), sum(rows))
        return DataProto(batch, cast("dict[str, Array]", arrays), meta)

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":  # noqa: FBT001, FBT002  # as in verl
        """Every row several times: each beside its copies, or the whole batch again and again."""
        check_positive("repeat_times", repeat_times)
        places = np.arange(len(self))
        return self._taken(np.repeat(places, repeat_times) if interleave else np.tile(places, repeat_times))

    def reorder(self, indices: Places) -> "DataProto":
        """The same rows in another order, in place."""
        places = as_places(indices, len(self))
        if not np.array_equal(np.sort(places), np.arange(len(self))):
            raise DataError(f"an order must name each of {len(self)} rows once; to choose rows use select_idxs")
        ordered = self._taken(places)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch
        return self

    def group_by(self, keys: Names) -> "dict[Any, DataProto]":
        """Rows by the value of a column, or by the values of several as a tuple, in order of first appearance."""
        columns = [self._labels(name) for name in listed(keys)]
        if not columns:
            raise DataError("group_by needs at least one column; name one")
        places: dict[Any, list[int]] = {}
        try:
            for place, label in enumerate(columns[0] if len(columns) == 1 else zip(*columns, strict=True)):
                places.setdefault(label, []).append(place)
        except TypeError as error:
            raise DataError(f"rows cannot be grouped by {keys}: {error}; use a column of numbers or text") from error
        return {label: self.select_idxs(rows) for label, rows in places.items()}

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> "Iterator[DataProto]":
        """Mini-batches, epoch after epoch; in order, or with `{"shuffle": True}` in a new order every epoch."""
        check_positive("mini_batch_size", mini_batch_size)
        check_positive("epochs", epochs)
        options = dict(dataloader_kwargs or {})
        check_known(options, DATALOADER_OPTIONS, "option")
        rows = len(self)
        if rows % mini_batch_size and not options.get("drop_last"):
            raise DataError(
                f"{rows} rows are no multiple of mini_batch_size {mini_batch_size}; "
                f"use pad_to_divisor({mini_batch_size}) first, or drop_last"
            )
        draw = np.random.default_rng(seed)
        order: Callable[[], Array] = (
            (lambda: draw.permutation(rows)) if options.get("shuffle") else lambda: np.arange(rows)
        )
        return (
            self._taken(places[begin : begin + mini_batch_size])
            for places in (order() for _ in range(epochs))
            for begin in range(0, rows - mini_batch_size + 1, mini_batch_size)
        )

    def pad_to_divisor(self, divisor: int) -> Padded:
        """Rows from the beginning repeated at the end until the length is a multiple."""
        check_positive("divisor", divisor)
        pad_size = -len(self) % divisor
        if pad_size == 0:
            return Padded(self._sliced(slice(None)), 0)
        return Padded(self._taken(np.arange(len(self) + pad_size) % len(self)), pad_size)

    def unpad(self, pad_size: int) -> "DataProto":
        """Without the last rows that `pad_to_divisor` added."""
        if not 0 <= pad_size <= len(self):
            raise DataError(f"pad_size must be between 0 and the {len(self)} rows, got {pad_size}")
        return self._sliced(slice(0, len(self) - pad_size))

    def to(self, device: "torch.device | str") -> "DataProto":
        """Move the tensors, in place."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def clone(self) -> "DataProto":
        """A copy that shares nothing."""
        batch = None if self.batch is None else self.batch.clone()
        return DataProto(batch, copy.deepcopy(self.non_tensor_batch), copy.deepcopy(self.meta_info))

    def save(self, folder: str | Path) -> None:
        """Write a new folder, whole or not at all; how is said in `storage`."""
        storage.save(Path(folder), storage.Parts(self.batch, self.non_tensor_batch, self.meta_info))

    @staticmethod
    def load(folder: str | Path) -> "DataProto":
        """What `save` wrote."""
        return DataProto(*storage.load(Path(folder)))

    def _column(self, name: str) -> Column:
        check_known([name], self.keys(), "column")
        tensors = tensors_of(self.batch)
        return tensors[name] if name in tensors else self.non_tensor_batch[name]

    def _labels(self, name: str) -> list[Any]:
        column = self._column(name)
        if column.ndim != 1:
            raise DataError(f"column {name} has shape {tuple(column.shape)}; rows are grouped by one value each")
        return cast("list[Any]", column.tolist())

    def _item(self, index: int | np.integer[Any]) -> DataProtoItem:
        place = int(as_places([int(index)], len(self))[0])
        batch = None if self.batch is None else self.batch[place]
        arrays = {name: array[place] for name, array in self.non_tensor_batch.items()}
        return DataProtoItem(batch, arrays, dict(self.meta_info))

    def _sliced(self, rows: Slice) -> "DataProto":
        if rows.step == 0:
            raise DataError("rows cannot be sliced with step 0; use 1 or more, or a negative step to go backwards")
        if rows.step is not None and rows.step < 0:
            return self._taken(np.arange(len(self))[rows].copy())  # a tensor cannot be read backwards in place
        batch = None if self.batch is None else self.batch[rows]
        return DataProto(batch, {name: array[rows] for name, array in self.non_tensor_batch.items()}, self.meta_info)

    def _taken(self, places: NDArray[np.int64]) -> "DataProto":
        batch = None if self.batch is None else taken(self.batch, places)
        return DataProto(batch, {name: array[places] for name, array in self.non_tensor_batch.items()}, self.meta_info)

    def _chosen(
        self, tensors: Sequence[str], arrays: Sequence[str], meta: Sequence[str]
    ) -> "tuple[dict[str, torch.Tensor], dict[str, Array], dict[str, Any]]":
        """The named ones of each kind, checked before anything is taken."""
        there = tensors_of(self.batch)
        check_known(tensors, there, "column of batch")
        check_known(arrays, self.non_tensor_batch, "column of non_tensor_batch")
        check_known(meta, self.meta_info, "entry of meta_info")
        return (
            {name: there[name] for name in tensors},
            {name: self.non_tensor_batch[name] for name in arrays},
            {name: self.meta_info[name] for name in meta},
        )


def _has_columns(data: DataProto) -> bool:
    """Meta information alone goes with any number of rows."""
    return data.batch is not None or bool(data.non_tensor_batch)


def _check_same_columns(one: DataProto, other: DataProto) -> None:
    for kind, ours, theirs in (
        ("batch", tensors_of(one.batch).keys(), tensors_of(other.batch).keys()),
        ("non_tensor_batch", one.non_tensor_batch.keys(), other.non_tensor_batch.keys()),
    ):
        odd = sorted(ours ^ theirs)
        if odd:
            raise DataError(f"column {odd[0]} of {kind} is only in some of the batches; select the same columns of all")
    if (one.batch is None) != (other.batch is None):
        raise DataError("some of the batches have tensors and some have none; select the same columns of all")
