"""Folders that several processes share for a while, in memory where there is room for it.

Promises: nobody but this user can look into one. It is removed when its owner closes it; if the owner is killed, by
whoever makes the next one. Whether an owner lives is told by a lock that the kernel opens when it ends, so neither
process ids that are used again nor owners in another container are mistaken.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

MEMORY = Path("/dev/shm")  # noqa: S108 -- what is in it is memory, in a folder that nobody else can read
LOCK = "owner"


class Room:
    """A folder that lives as long as its owner wants."""

    def __init__(self, kind: str, base: Path | None = None, needs_bytes: int = 0) -> None:
        """`needs_bytes` decides whether memory is large enough; otherwise it is among the temporary files."""
        base = base or _roomy(needs_bytes)
        sweep(kind, base)
        draft = Path(tempfile.mkdtemp(prefix=f".windrow-{kind}-", dir=base))
        self._lock = _locked(draft / LOCK)
        self.path = base / f"windrow-{kind}-{os.getpid()}-{draft.name.rpartition('-')[2]}"
        draft.rename(self.path)  # from here on others see it, and that it has an owner

    def close(self) -> None:
        """Remove it with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep(kind: str, base: Path) -> list[Path]:
    """Remove folders of this kind whose owner has ended without closing them; says which."""
    gone = [folder for folder in sorted(base.glob(f"windrow-{kind}-*")) if _is_left(folder)]
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
    return gone


def _roomy(needs_bytes: int) -> Path:
    """Memory that has a path, or else the folder for temporary files."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > needs_bytes:
        return MEMORY
    return Path(tempfile.gettempdir())


def _locked(file: Path) -> IO[str]:
    lock = file.open("w", encoding="ascii")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _is_left(folder: Path) -> bool:
    with suppress(OSError), (folder / LOCK).open("r", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False
