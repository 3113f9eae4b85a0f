"""The processes below one: finding them, and ending them for good.

Promises: what is found is found from `/proc`, at one moment; ending repeats until nothing is found, because what is
being ended may still be multiplying. Where there is no `/proc` nothing is found.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
ROUNDS = 100
"""Searches before we give up on something that multiplies faster than it can be ended."""


def children() -> set[int]:
    """Direct children of this process, adopted ones too, and dead ones until somebody waits for them."""
    found: set[int] = set()
    for task in _entries(PROC / "self/task"):
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def threads() -> int:
    """How many threads this process has, those that Python knows nothing of among them."""
    return len(list(_entries(PROC / "self/task"))) or 1


def kill(pid: int) -> None:
    """Kill a process and its process group, if there still are such."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0))  # dying takes the processor's time too
    kill_group(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_child_of(parent: int, pid: int) -> None:
    """Kill a process if it is, at this moment, a child of another; what is known of it may be out of date."""
    with suppress(OSError, ValueError):
        stat = (PROC / str(pid) / "stat").read_bytes()
        if int(stat.rpartition(b")")[2].split()[1]) == parent:
            kill(pid)


def kill_group(pid: int) -> None:
    """Kill a process group, if there still is such."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def sweep(mark: str) -> int:
    """Kill every process that has `mark` in the environment it was started with; says how many there were."""
    swept = 0
    for _ in range(ROUNDS):
        found = list(_marked(mark.encode()))
        if not found:
            break
        swept += len(found)
        _end(found)
    return swept


def _marked(mark: bytes) -> Iterator[int]:
    for entry in _entries(PROC):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it ended, or is not ours
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _end(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _entries(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.iterdir()
