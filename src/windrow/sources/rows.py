"""Tasks from the rows of a table: files of lines, columns or datasets, all in the same manner.

Promises: rows are read when they are asked for, in a thread, and not kept; what a table is like is found out once, at
the first task. A row becomes a task whose payload is the row, or the part of it that `fields` names. A row that appears
twice is on the same side of what is held out. Where a row stands is the name of its task.
"""

import asyncio
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol, TypedDict, TypeVar

import msgspec

from windrow.errors import ConfigError
from windrow.sources.places import MARK, PlacedSource, check_passes, check_tag, mark_of
from windrow.sources.shuffles import Laps
from windrow.trajectory import Split, Task
from windrow.types import Value

T = TypeVar("T")
Row = dict[str, Any]
"""A row by column: whatever its format holds."""


class Rows(Protocol):
    """A table of rows by number. Every call may block, and one thread makes them all."""

    @property
    def what(self) -> str:
        """The table in a message."""
        ...

    def scan(self, needed: Sequence[str], values: Sequence[str] | None) -> Generator[Row]:
        """Go through all rows once, the first thing that is asked: each with at least these values (None: all).

        Refuses a table that is broken, empty, or lacks a column that is needed.
        """
        ...

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None) -> list[Row]:
        """Some rows, each with these columns (None: all)."""
        ...

    def where(self, number: int) -> str:
        """In which file and line a row stands, or the like."""
        ...

    def mark(self) -> int:
        """A number that another table hardly has."""
        ...


class RowOptions(TypedDict, total=False):
    """What can be said of any table; the words are explained in `RowChoice`."""

    tag: str
    tag_field: str | None
    fields: Mapping[str, str]
    where: Mapping[str, str | int | float | bool]
    held_out: float
    split: Split
    passes: int | None
    shuffle_seed: int | None
    limit: int | None
    seed: int


class RowChoice(Value, frozen=True, kw_only=True, gc=True):
    """Which rows are played, in which order, and what becomes of them."""

    tag: str = ""
    """Of all tasks."""
    tag_field: str | None = None
    """Instead, the column in which each row says its tag."""
    fields: Mapping[str, str] = {}
    """What the payload holds, and the column that each comes from; nothing: the whole row."""
    where: Mapping[str, str | int | float | bool] = {}
    """Only rows that have these values."""
    held_out: float = 0.0
    """Share of the rows that are kept from training; which they are follows from the rows themselves."""
    split: Split = "train"
    """Which side is played, if anything is held out; tasks say it in any case."""
    passes: int | None = 1
    """How often every row is played; None: without end."""
    shuffle_seed: int | None = None
    """Each pass in an order of its own; None: as they stand."""
    limit: int | None = None
    """Only so many rows, the first that are meant."""
    seed: int = 0
    """Tasks have seeds from here on."""

    def __post_init__(self) -> None:
        check_passes(self.passes, "rows")
        if self.tag and self.tag_field is not None:
            raise ConfigError(f"tag {self.tag!r} and tag_field {self.tag_field!r} contradict each other; give one")
        if not 0.0 <= self.held_out < 1.0:
            raise ConfigError(f"held_out must be a share from 0 to below 1, got {self.held_out}")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be 1 or more, got {self.limit}")
        check_tag(self.tag)

    @property
    def columns(self) -> list[str] | None:
        """What the payload is made of; None: everything."""
        return list(self.fields.values()) or None

    @property
    def needed(self) -> list[str]:
        """Columns that must exist."""
        return [*self.fields.values(), *self.where, *([self.tag_field] if self.tag_field is not None else [])]

    @property
    def decisive(self) -> list[str] | None:
        """Columns that decide which rows are played; None: all of them."""
        if self.held_out and not self.fields:
            return None
        said = [*self.where, *([self.tag_field] if self.tag_field is not None else [])]
        return [*said, *(self.fields.values() if self.held_out else [])]

    def payload(self, row: Row) -> Row:
        return {ours: row[theirs] for ours, theirs in self.fields.items()} or row

    def mark(self) -> int:
        """Of all that decides which task stands at a place."""
        return mark_of(
            self.tag_field, dict(self.fields), dict(self.where), self.held_out, self.split, self.shuffle_seed,
            self.limit, self.seed,
        )  # fmt: skip


class RowSource(PlacedSource):
    """The rows of a table as tasks."""

    def __init__(self, rows: Rows, choice: RowChoice) -> None:
        super().__init__(rows.what)
        self._rows = rows
        self._choice = choice
        self._reader = Reader()
        self._picked: dict[str, Sequence[int]] = {}  # the rows of each tag that are played; empty before the scan
        self._laps: dict[str, Laps] = {}

    @property
    def tags(self) -> list[str]:
        if self._picked or self._choice.tag_field is not None:
            return [*self._picked]
        return [self._choice.tag]

    @property
    def is_endless(self) -> bool:
        return self._choice.passes is None

    def length(self, tag: str) -> int | None:
        return self._laps[tag].length

    def marks(self) -> dict[str, int]:
        if not self._picked:
            return {}
        return {f"{MARK}rows": self._rows.mark(), f"{MARK}order": self._choice.mark()}

    async def open(self) -> None:
        if not self._picked:
            await self._reader.do(self._look_through)

    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        picked, laps = self._picked[tag], self._laps[tag]
        numbers = [picked[laps.row(place)] for place in places]
        rows = await self._reader.do(partial(self._rows.read, numbers, self._choice.columns))
        found = zip(places, numbers, rows, strict=True)
        return [self._task(self.ordinal(tag, place), tag, number, row) for place, number, row in found]

    def _task(self, ordinal: int, tag: str, number: int, row: Row) -> Task:
        choice = self._choice
        return Task(
            ordinal=ordinal,
            seed=choice.seed + ordinal,
            payload=choice.payload(row),
            tag=tag,
            name=self._rows.where(number),
            split=choice.split,
        )

    def _look_through(self) -> None:
        """Find the rows that are meant, unless a call before this one has."""
        if self._picked:
            return
        choice = self._choice
        with closing(self._rows.scan(choice.needed, choice.decisive)) as rows:
            if choice.decisive == []:
                picked: dict[str, Sequence[int]] = {choice.tag: range(sum(1 for _ in islice(rows, choice.limit)))}
            else:
                picked = self._pick(rows)
        self._laps = {
            tag: Laps(len(numbers), passes=choice.passes, shuffle_seed=choice.shuffle_seed, name=tag)
            for tag, numbers in picked.items()
        }
        self._picked = picked

    def _pick(self, rows: Iterator[Row]) -> dict[str, Sequence[int]]:
        picked: dict[str, array[int]] = {}
        meant = ((number, row) for number, row in enumerate(rows) if self._is_meant(row))
        for number, row in islice(meant, self._choice.limit):
            tag = self._tag_of(number, row)
            if tag not in picked:
                picked[tag] = array("q")
            picked[tag].append(number)
        if not picked:
            raise ConfigError(f"no row of {self.what} is {self._meant()}")
        return dict(picked)

    def _is_meant(self, row: Row) -> bool:
        choice = self._choice
        if not all(_is_same(row[column], value) for column, value in choice.where.items()):
            return False
        if not choice.held_out:
            return True
        is_held_out = _share_of(choice.payload(row)) < choice.held_out
        return is_held_out == (choice.split == "held_out")

    def _tag_of(self, number: int, row: Row) -> str:
        field = self._choice.tag_field
        if field is None:
            return self._choice.tag
        tag = row[field]
        if not isinstance(tag, str):
            raise ConfigError(f"{self._rows.where(number)}: tag_field {field!r} must hold text, got {tag!r}")
        return check_tag(tag)

    def _meant(self) -> str:
        choice = self._choice
        words = [f"{column}: {value!r}" for column, value in choice.where.items()]
        if choice.held_out:
            words.append(f"{choice.split} with held_out {choice.held_out:g}")
        return " and ".join(words)


def _is_same(found: object, wanted: str | float) -> bool:
    """Equal, and both of them flags or neither: to Python, true is 1."""
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _share_of(payload: Row) -> float:
    """A number from 0 to 1 that a row has by what it says."""
    said = msgspec.json.encode(payload, order="deterministic")
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "big") / 2**64


class Reader:
    """A thread for what blocks: one thing after the other, so that nothing is found out twice."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> "tuple[type[Reader], tuple[()]]":
        return Reader, ()  # another process has its own thread

    async def do(self, work: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="windrow-tasks")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
