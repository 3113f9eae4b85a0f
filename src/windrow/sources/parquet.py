"""Tasks from Parquet files.

Promises: a row group is read when one of its rows is asked for, and only the columns that are played; the groups used
last stay at hand, up to a bound. A file that is changed meanwhile is noticed.

A shuffled pass jumps between row groups: a file whose groups are much larger than the bound is read again and again.
Write it with smaller groups, or save it as a dataset.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator, Sequence
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from windrow.errors import ConfigError, blame
from windrow.nearest import did_you_mean
from windrow.sources.files import Paths, check_unchanged, find_files, stamp_of
from windrow.sources.rows import Row, RowChoice, RowOptions, RowSource

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

AT_HAND_BYTES = 64 * 2**20
"""Row groups that are kept after they were used, in memory; the last one is kept in any case."""

NEEDS = "needs a package that is not installed; pip install 'windrow[data]'"


class ParquetSource(RowSource):
    """The rows of one or several Parquet files, as tasks."""

    def __init__(self, paths: Paths, **options: Unpack[RowOptions]) -> None:
        super().__init__(ParquetRows(paths), RowChoice(**options))


class ParquetRows:
    """The rows of some files, by number."""

    def __init__(self, paths: Paths) -> None:
        self._paths = find_files(paths)
        self._stamps = {path: stamp_of(path) for path in self._paths}
        self._groups: list[tuple[Path, int]] = []  # every row group: its file and its number there
        self._firsts: list[int] = []  # the first row of each
        self._at_hand: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()  # those used last, at the end
        self._mark = 0

    @property
    def what(self) -> str:
        others = len(self._paths) - 1
        return f"{self._paths[0]}" + (f" and {others} more" if others else "")

    def scan(self, needed: Sequence[str], values: Sequence[str] | None) -> Generator[Row]:
        total = self._open(needed)
        if values == []:
            yield from repeat({}, total)
            return
        for group in range(len(self._groups)):
            for batch in self._table(group, values).to_batches(max_chunksize=1024):
                yield from batch.to_pylist()

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None) -> list[Row]:
        for path, stamp in self._stamps.items():
            check_unchanged(path, stamp)
        rows: list[Row] = [{} for _ in numbers]
        for at in sorted(range(len(numbers)), key=numbers.__getitem__):  # each row group once
            rows[at] = self._row(numbers[at], columns)
        return rows

    def where(self, number: int) -> str:
        group = bisect_right(self._firsts, number) - 1
        path = self._groups[group][0]
        before = next(first for (file, _), first in zip(self._groups, self._firsts, strict=True) if file == path)
        return f"{path.name} row {number - before}"

    def mark(self) -> int:
        return self._mark

    def _open(self, needed: Sequence[str]) -> int:
        """Learn the row groups of all files; how many rows there are."""
        try:
            import pyarrow.parquet as pq  # type: ignore[import-untyped]
        except ImportError as error:
            raise ConfigError(f"{self.what} {NEEDS}") from error
        self._groups, self._firsts = [], []
        self._at_hand.clear()
        digest = blake2b(digest_size=8)
        total = 0
        for path in self._paths:
            self._stamps[path] = stamp_of(path)
            with blame(ConfigError, path, "cannot be read"):
                about = pq.read_metadata(path)
            digest.update(repr(about.to_dict()).encode())
            _check_columns(path, needed, about.schema.to_arrow_schema().names)
            for group in range(about.num_row_groups):
                self._groups.append((path, group))
                self._firsts.append(total)
                total += about.row_group(group).num_rows
        if not total:
            raise ConfigError(f"{self.what} has no rows")
        self._mark = int.from_bytes(digest.digest(), "big") >> 1
        return total

    def _row(self, number: int, columns: Sequence[str] | None) -> Row:
        group = bisect_right(self._firsts, number) - 1
        rows: list[Row] = self._table(group, columns).slice(number - self._firsts[group], 1).to_pylist()
        return rows[0]

    def _table(self, group: int, columns: Sequence[str] | None) -> "pa.Table":
        """A row group, from what is at hand or from its file."""
        key = (group, tuple(columns or ()))
        if key not in self._at_hand:
            self._at_hand[key] = self._load(group, columns)
            while len(self._at_hand) > 1 and sum(table.nbytes for table in self._at_hand.values()) > AT_HAND_BYTES:
                self._at_hand.popitem(last=False)
        self._at_hand.move_to_end(key)
        return self._at_hand[key]

    def _load(self, group: int, columns: Sequence[str] | None) -> "pa.Table":
        import pyarrow.parquet as pq

        path, number = self._groups[group]
        wanted = None if columns is None else list(dict.fromkeys(columns))
        with blame(ConfigError, path, "row group", number, "cannot be read"), pq.ParquetFile(path) as file:
            table: Any = file.read_row_group(number, columns=wanted, use_threads=False)
            return table


def _check_columns(path: Path, needed: Sequence[str], known: Sequence[str]) -> None:
    for column in needed:
        if column not in known:
            raise ConfigError(f"{path} has no column {column!r}{did_you_mean(column, known)}")
