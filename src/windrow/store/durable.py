"""Files that are there whole or not at all, also after a crash.

Promises: `write_whole` leaves the old content or the new one, never a mixture; what was synced survives a loss of
power, as far as the disk keeps its word. Nothing here knows what it writes.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put this content in a file's place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(beside, data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the list of what is in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """The same for a folder and everything in it, the innermost first."""
    for below in entries(folder):
        if not below.is_symlink():
            sync(below)
    sync(folder)


def entries(folder: Path) -> Iterator[Path]:
    """Everything in a folder, at any depth, in the order of names; what is in a folder comes before the folder."""
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.is_symlink():
            yield from entries(below)
        yield below


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` writes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
