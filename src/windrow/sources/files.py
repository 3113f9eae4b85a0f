"""Files of tasks: finding them, and noticing that one was changed while it is read."""

import os
from collections.abc import Iterable
from pathlib import Path

from windrow.errors import ConfigError
from windrow.nearest import nearest
from windrow.types import Value

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A file, a pattern such as `train-*.parquet`, or several of these."""

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of files in which no row can be found without reading all before it."""


class Stamp(Value, frozen=True):
    """What tells a file from the same file after a change."""

    size: int
    changed_ns: int


def find_files(paths: Paths) -> list[Path]:
    """The files that are meant, patterns in the order of their names."""
    given = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    if not given:
        raise ConfigError("a list of files must not be empty")
    return [file for path in given for file in _meant_by(Path(path))]


def _meant_by(path: Path) -> list[Path]:
    if "*" in path.name or "?" in path.name:
        found = sorted(path.parent.glob(path.name))
        if not found:
            raise ConfigError(f"no file is called {path}; patterns are taken from the working directory")
        return [file for match in found for file in _meant_by(match)]
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it, or all with {path}/*")
    if not path.exists():
        near = nearest(path.name, (other.name for other in _beside(path)))
        raise ConfigError(f"there is no file {path}" + (f"; did you mean {path.with_name(near)}?" if near else ""))
    if path.suffix in PACKED:
        raise ConfigError(f"{path} is packed, no row in it can be found at once; unpack it first")
    return [path]


def _beside(path: Path) -> Iterable[Path]:
    return path.parent.iterdir() if path.parent.is_dir() else ()


def stamp_of(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read any more: {error.strerror}") from error
    return Stamp(stat.st_size, stat.st_mtime_ns)


def check_unchanged(path: Path, stamp: Stamp) -> None:
    """Refuse a file that is not what it was when its rows were counted."""
    now = stamp_of(path)
    if now != stamp:
        told = f"{stamp.size} bytes then, {now.size} now" if now.size != stamp.size else "it was written to"
        raise ConfigError(f"{path} was changed while its tasks are played: {told}; begin again with the new file")
