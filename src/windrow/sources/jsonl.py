"""Tasks from files with a JSON object in each line.

Promises: every line is looked at once, before the first task, so that a broken one is found then and not days later;
after that only where each line begins is known, and lines are read when they are asked for. A file that is changed
meanwhile is noticed. Empty lines do not count.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Unpack

import msgspec

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.sources.files import Paths, check_unchanged, find_files, stamp_of
from windrow.sources.rows import Row, RowChoice, RowOptions, RowSource

BOM = b"\xef\xbb\xbf"
"""Some editors write this before the first line."""
BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What is raised over a line that is no JSON."""


class JsonlSource(RowSource):
    """The objects in one or several files of lines, as tasks."""

    def __init__(self, paths: Paths, **options: Unpack[RowOptions]) -> None:
        super().__init__(JsonlRows(paths), RowChoice(**options))


class JsonlRows:
    """The lines of some files, by number."""

    def __init__(self, paths: Paths) -> None:
        self._files = [LineFile(path) for path in find_files(paths)]
        self._firsts: list[int] = []  # the first row of all and only the files that were looked through
        self._mark = 0

    @property
    def what(self) -> str:
        others = len(self._files) - 1
        return f"{self._files[0].path}" + (f" and {others} more" if others else "")

    def scan(self, needed: Sequence[str], values: Sequence[str] | None) -> Generator[Row]:  # noqa: ARG002 -- rows are whole
        self._firsts = []
        digest = blake2b(digest_size=8)
        total = 0
        try:
            for file in self._files:
                self._firsts.append(total)
                for line, row in file.scan(needed):
                    digest.update(line)
                    total += 1
                    yield row
        finally:
            self._mark = int.from_bytes(digest.digest(), "big") >> 1
        if not total:
            raise ConfigError(f"{self.what} has no rows; a task is a JSON object in a line")

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None) -> list[Row]:  # noqa: ARG002 -- rows are whole
        rows: list[Row] = []
        for at, together in groupby(numbers, self._file_of):
            rows.extend(self._files[at].read([number - self._firsts[at] for number in together]))
        return rows

    def where(self, number: int) -> str:
        at = self._file_of(number)
        return self._files[at].where(number - self._firsts[at])

    def mark(self) -> int:
        return self._mark

    def _file_of(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1


class LineFile:
    """One file, and where its lines begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = stamp_of(path)
        self._begins = array("q")  # of all lines that were looked at and are not empty
        self._end = 0  # of the last of them
        self._empty: list[int] = []  # for each empty line, how many rows are before it

    def scan(self, needed: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        """Every line and what it says, from the first to the last."""
        self._stamp = stamp_of(self.path)
        self._begins, self._empty, self._end = array("q"), [], 0
        decode = msgspec.json.Decoder(dict).decode
        with self._blamed(), self.path.open("rb") as file:
            for line in file:
                begin = self._end
                self._end += len(line)
                said = line.removeprefix(BOM) if not begin else line
                if not said.strip():
                    self._empty.append(len(self._begins))
                    continue
                self._begins.append(begin + len(line) - len(said))
                yield line, self._checked(decode, said, needed)

    def read(self, rows: Sequence[int]) -> list[Row]:
        check_unchanged(self.path, self._stamp)
        with self._blamed(), self.path.open("rb", buffering=0) as file:
            return [msgspec.json.decode(self._line(file.fileno(), row), type=dict) for row in rows]

    def where(self, row: int) -> str:
        return f"{self.path.name}:{row + 1 + bisect_right(self._empty, row)}"

    def _line(self, handle: int, row: int) -> bytes:
        begin = self._begins[row]
        end = self._begins[row + 1] if row + 1 < len(self._begins) else self._end
        return os.pread(handle, end - begin, begin).rstrip()  # of the empty lines behind it

    def _checked(self, decode: Callable[[bytes], Row], line: bytes, needed: Sequence[str]) -> Row:
        try:
            row = decode(line)
        except BROKEN as error:
            raise ConfigError(f"{self._here()} is no JSON object: {error}; it begins {line[:40]!r}") from error
        for column in needed:
            if column not in row:
                raise ConfigError(f"{self._here()} has no field {column!r}{did_you_mean(column, row)}")
        return row

    def _here(self) -> str:
        """The line that is being looked at."""
        return f"{self.path}:{len(self._begins) + len(self._empty)}"

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        except BROKEN as error:
            raise ConfigError(f"{self.path} was changed while its tasks are played: {error}") from error
