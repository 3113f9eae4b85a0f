"""Recorded episodes, read from a CSV or JSONL file.

Promises: a row that cannot be used is refused with its file, line, column and value; nothing is guessed.
Tasks keep the order in which the file first names them.
"""

import csv
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

import msgspec

from windrow.errors import ConfigError
from windrow.types import Value

COLUMNS = ("task", "seconds", "turns", "tokens")

Row = dict[str, str | float | None]


class RecordedEpisode(Value, frozen=True):
    """One row: a length in seconds, or turns and tokens."""

    seconds: float = 0.0
    turns: int = 0
    tokens: float = 0.0


Trace = list[list[RecordedEpisode]]
"""The episodes of each task."""


def read_trace(path: Path) -> Trace:
    """All episodes of a file, by task."""
    tasks: dict[str, list[RecordedEpisode]] = {}
    for line, row in _rows(path):
        where = f"{path}:{line}"
        name = row.get("task")
        if name is None or name == "":
            raise ConfigError(f"{where}: task is missing; every row names the task it belongs to")
        tasks.setdefault(str(name), []).append(_episode(row, where))
    if not tasks:
        raise ConfigError(f"{path}: no episodes; a trace needs a row per episode with {', '.join(COLUMNS)}")
    return list(tasks.values())


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    if path.suffix not in {".csv", ".jsonl"}:
        raise ConfigError(f"episode.path must end in .csv or .jsonl, got {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"episode.path names a file that does not exist: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"episode.path cannot be read: {path}: {error}") from error
    return _csv_rows(path, text) if path.suffix == ".csv" else _jsonl_rows(path, text)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(text.splitlines())
    for name in reader.fieldnames or ():
        if name not in COLUMNS:
            raise ConfigError(f"{path}:1: unknown column {name!r}; a trace has {', '.join(COLUMNS)}")
    for row in reader:
        if None in row:
            raise ConfigError(f"{path}:{reader.line_num}: more values than columns")
        yield reader.line_num, dict(row)


def _jsonl_rows(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    for line, data in enumerate(text.splitlines(), start=1):
        if not data.strip():
            continue
        try:
            row = msgspec.json.decode(data, type=Row)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}:{line}: not an object of names and numbers: {error}") from error
        for name in row:
            if name not in COLUMNS:
                raise ConfigError(f"{path}:{line}: unknown key {name!r}; a trace has {', '.join(COLUMNS)}")
        yield line, row


def _episode(row: Row, where: str) -> RecordedEpisode:
    seconds, turns, tokens = (_number(row, name, where) for name in COLUMNS[1:])
    if seconds is not None:
        return RecordedEpisode(seconds=seconds)
    if turns is None or tokens is None:
        raise ConfigError(f"{where}: needs seconds, or turns and tokens")
    if turns < 1 or turns != int(turns):
        raise ConfigError(f"{where}: turns must be a whole number of 1 or more, got {row['turns']}")
    return RecordedEpisode(turns=int(turns), tokens=tokens)


def _number(row: Row, name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{where}: {name} must be a number, got {value!r}") from None
    if not isfinite(number) or number < 0:
        raise ConfigError(f"{where}: {name} must be 0 or more, got {value}")
    return number
