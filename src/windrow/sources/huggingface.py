"""Tasks from Hugging Face datasets, as `save_to_disk` leaves them or as objects of `datasets`.

Promises: nothing is fetched from anywhere. Rows come out of the mapped files when they are asked for; whatever a column
decodes to (an image, bytes) is passed on as it is.
"""

import os
from collections.abc import Generator, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from windrow.errors import ConfigError, blame
from windrow.nearest import did_you_mean
from windrow.sources.places import mark_of
from windrow.sources.rows import Row, RowChoice, RowOptions, RowSource

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

LOOKED_AT = 16
"""Rows by which one dataset is told from another."""


class DatasetSource(RowSource):
    """The rows of a dataset, as tasks; `part` names one of several (`train`, `test`) that were saved together."""

    def __init__(
        self, dataset: "str | os.PathLike[str] | Dataset", part: str | None = None, **options: Unpack[RowOptions]
    ) -> None:
        super().__init__(DatasetRows(dataset, part), RowChoice(**options))


class DatasetRows:
    """The rows of a dataset, by number."""

    def __init__(self, dataset: "str | os.PathLike[str] | Dataset", part: str | None) -> None:
        self._given = dataset
        self._part = part
        self._name = Path(dataset).name if isinstance(dataset, str | os.PathLike) else "dataset"
        self._dataset: Dataset | None = None  # once it was looked at
        self._narrowed: dict[tuple[str, ...], Dataset] = {}  # the same with fewer columns
        self._mark = 0
        if isinstance(dataset, str | os.PathLike) and not Path(dataset).is_dir():
            raise ConfigError(f"there is no folder {dataset} with a dataset; save_to_disk makes one")

    @property
    def what(self) -> str:
        named = isinstance(self._given, str | os.PathLike)
        part = "" if self._part is None else f" part {self._part!r}"
        return f"dataset {self._given}{part}" if named else f"the dataset{part}"

    def scan(self, needed: Sequence[str], values: Sequence[str] | None) -> Generator[Row]:
        dataset = self._dataset = self._open()
        self._narrowed = {}
        for column in needed:
            if column not in dataset.column_names:
                raise ConfigError(f"{self.what} has no column {column!r}{did_you_mean(column, dataset.column_names)}")
        if not dataset.num_rows:
            raise ConfigError(f"{self.what} has no rows")
        self._mark = _mark_of(dataset)
        if values == []:
            yield from repeat({}, dataset.num_rows)
            return
        for table in self._with(values).with_format("arrow").iter(batch_size=1024):
            yield from table.to_pylist()

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None) -> list[Row]:
        dataset = self._with(columns)
        with blame(ConfigError, self.what, "cannot be read"):
            return [dataset[number] for number in numbers]

    def where(self, number: int) -> str:
        part = "" if self._part is None else f" {self._part}"
        return f"{self._name}{part} row {number}"

    def mark(self) -> int:
        return self._mark

    def _open(self) -> "Dataset":
        try:
            import datasets
        except ImportError as error:
            raise ConfigError(
                f"{self.what} needs a package that is not installed; pip install 'windrow[data]'"
            ) from error
        found: Any = self._given
        if isinstance(found, str | os.PathLike):
            with blame(ConfigError, self.what, "cannot be read"):
                found = datasets.load_from_disk(os.fspath(found))
        if isinstance(found, datasets.DatasetDict):
            found = self._choose(dict(found))
        elif self._part is not None:
            raise ConfigError(f"{self.what} is not one of several; leave part out")
        if not isinstance(found, datasets.Dataset):
            raise ConfigError(f"a dataset must know its rows by number, got {type(found).__name__}; save it to disk")
        return found

    def _choose(self, parts: "dict[str, Dataset]") -> "Dataset":
        if self._part is None:
            raise ConfigError(f"{self.what} has several parts; name one in part: {', '.join(parts)}")
        if self._part not in parts:
            raise ConfigError(f"{self.what} does not exist{did_you_mean(self._part, parts)}")
        return parts[self._part]

    def _with(self, columns: Sequence[str] | None) -> "Dataset":
        dataset = self._dataset
        assert dataset is not None, "the rows are scanned before they are read"
        if columns is None:
            return dataset
        names = tuple(dict.fromkeys(columns))
        if names not in self._narrowed:
            self._narrowed[names] = dataset.select_columns([*names])
        return self._narrowed[names]


def _mark_of(dataset: "Dataset") -> int:
    """Its size, its columns and some of its rows, undecoded."""
    size = dataset.num_rows
    numbers = sorted({size * at // LOOKED_AT for at in range(LOOKED_AT)} | {size - 1})
    rows = dataset.with_format("arrow")[numbers]
    return mark_of(size, dataset.features, rows.to_pylist())
