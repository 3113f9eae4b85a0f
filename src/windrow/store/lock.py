"""The right to write a run: one process has it at a time.

Promises: it is free again when its owner closes it or dies, however it dies; a forked child never keeps it alive.
Whoever is refused learns which process has it. Looking whether it is taken takes nothing away from anybody.
"""

import fcntl
import os
import socket
import time
import weakref
from pathlib import Path

from windrow.errors import Refused
from windrow.types import Value, from_json, to_json

TRIES = 10
"""A look at the lock holds it for a moment; so often is it tried before it counts as taken."""
PAUSE_S = 0.02
CLOSED = -1
LONGEST = 4096
"""Bytes that are read of who has it."""

_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()  # all and only the locks that this process has


class Owner(Value, frozen=True):
    """Who has it."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid}" if self.host == socket.gethostname() else f"process {self.pid} on {self.host}"


class Lock:
    """Held from when it is made until it is closed."""

    def __init__(self, path: Path, what: str) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _is_claimed(self._handle, fcntl.LOCK_EX, TRIES):
            owner = _read(self._handle)
            self.forget()
            raise Refused(f"{what} is being written by {owner or 'another process'}; wait until it ends, or end it")
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, to_json(Owner(os.getpid(), socket.gethostname())), 0)
        _held.add(self)

    def close(self) -> None:
        """Give it back; a second time does nothing."""
        if self._handle != CLOSED:
            os.ftruncate(self._handle, 0)
            self.forget()

    def forget(self) -> None:
        """Let go of the file; if a parent has it too, it keeps the lock."""
        os.close(self._handle)
        self._handle = CLOSED
        _held.discard(self)


def owner_of(path: Path) -> Owner | None:
    """Who has the lock; None if nobody has."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _is_claimed(handle, fcntl.LOCK_SH, 1) else _read(handle) or Owner(0, "an unknown host")
    finally:
        os.close(handle)


def _is_claimed(handle: int, how: int, tries: int) -> bool:
    for left in reversed(range(tries)):
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(PAUSE_S)
        else:
            return True
    return False


def _read(handle: int) -> Owner | None:
    try:
        return from_json(os.pread(handle, LONGEST, 0), Owner)
    except ValueError:
        return None  # it has just been taken, or given back


def _forget_all() -> None:
    for lock in [*_held]:
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
