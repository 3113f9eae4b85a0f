"""What was measured, one line of JSON for each time something was, which names its step.

Promises: a line is in the file when `append` returns, and survives the death of the process. A last line that a crash
cut off is left out by readers and removed by the next writer; damage anywhere else is an error with its number, never a
shorter file. A number that JSON does not have (NaN, infinity) is written as null and read as NaN.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow.errors import DataError, Refused
from windrow.store.durable import write_whole
from windrow.types import Value, from_json, to_json

STEP = "step"
AT = "at"
"""The two names that are taken: the step, and the seconds since 1970 when its line was written."""
TAIL = 1 << 16
"""Bytes at the end of a file in which a last line is looked for first."""


class Line(Value, frozen=True, gc=True):
    """One line."""

    step: int
    at: float
    values: dict[str, float]


class MetricsFile:
    """A file that only grows, except when a run goes on from an earlier step."""

    def __init__(self, path: Path, *, is_ours: bool) -> None:
        self.path = path
        self._is_ours = is_ours
        if is_ours:
            self._mend()

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add a line; numbers of any kind become plain ones."""
        if not self._is_ours:
            raise Refused(f"{self.path} is open for reading alone; take the run with RunFolder.open")
        taken = {STEP, AT} & values.keys()
        if taken:
            raise DataError(f"a metric must not be called {taken.pop()!r}; every line has one already")
        told = {STEP: step, AT: round(time.time(), 3), **{name: float(value) for name, value in values.items()}}
        with self.path.open("ab", buffering=0) as file:
            file.write(to_json(told) + b"\n")

    def __iter__(self) -> Iterator[Line]:
        """Every line from the first on."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    return  # cut off by a crash, or still being written
                yield self._line(text, str(number))

    def last(self) -> Line | None:
        """The last line; None if there is none. Only the end of the file is read."""
        size = self.path.stat().st_size if self.path.exists() else 0
        read = 0
        while read < size:
            read = min(size, 2 * read or TAIL)
            with self.path.open("rb") as file:
                file.seek(size - read)
                lines = file.read(read).split(b"\n")[:-1]  # what follows the last end of a line was cut off
            if len(lines) > 1 or (lines and read == size):
                return self._line(lines[-1], "last")
        return None

    def cut_after(self, step: int) -> int:
        """Remove the lines of later steps, whole or not at all; how many there were."""
        lines = [*self]
        kept = [line for line in lines if line.step <= step]
        if len(kept) < len(lines):
            write_whole(self.path, b"".join(_encoded(line) for line in kept))
        return len(lines) - len(kept)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _mend(self) -> None:
        """Remove what a crash left of a last line."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            end = _end_of_lines(file.read())
            file.truncate(end)

    def _line(self, text: bytes, number: str) -> Line:
        try:
            told: dict[str, Any] = from_json(text, dict[str, float | None])
            step, at = told.pop(STEP), told.pop(AT)
        except (ValueError, KeyError) as error:
            raise DataError(f"{self.path}, line {number}, is no line of metrics: {error}") from error
        values = {name: math.nan if value is None else value for name, value in told.items()}
        return Line(int(step), at, values)


def _encoded(line: Line) -> bytes:
    return to_json({STEP: line.step, AT: line.at, **line.values}) + b"\n"


def _end_of_lines(data: bytes) -> int:
    """Where the last whole line ends."""
    return data.rfind(b"\n") + 1
