"""What an episode leaves behind, and what it does to things that all episodes share.

Promises: only what grows with every episode counts as left behind; a pool that is made once and kept does not.
"""

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from windrow.isolation.below import PROC, children
from windrow.types import Value

MARK = "WINDROW_CHECK"
"""A variable that whatever a check starts inherits; its value is another for each check."""
TURNS = 5
"""Turns of the loop in which a cancelled task comes to its end."""


class Holding(Value, frozen=True, kw_only=True):
    """How much of each this process has."""

    threads: int
    files: int
    children: int
    tasks: int

    def grown_by(self, before: "Holding", episodes: int) -> dict[str, int]:
        """All and only what there is more of, by at least one per episode."""
        grown = {
            "threads": self.threads - before.threads,
            "open files": self.files - before.files,
            "child processes": self.children - before.children,
            "tasks of the event loop": self.tasks - before.tasks,
        }
        return {what: more for what, more in grown.items() if more >= episodes}


async def holding() -> Holding:
    """What this process has now, after whatever is about to end has ended."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
    gc.collect()
    return Holding(
        threads=threading.active_count(), files=_files(), children=_children(), tasks=len(asyncio.all_tasks())
    )


def shared_chance() -> dict[str, object]:
    """The state of the generators that everybody in this process shares, of each package that is loaded."""
    states: dict[str, object] = {"random": hash(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        theirs = numpy.random.get_state(legacy=False)["state"]
        states["numpy"] = theirs["key"].tobytes(), theirs["pos"]
    if (torch := sys.modules.get("torch")) and "get_rng_state" in vars(torch):  # it may be half loaded
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def drawn_from(before: dict[str, object]) -> list[str]:
    """Whose shared generators were used since; one that has just been loaded does not count."""
    now = shared_chance()
    return [package for package, state in before.items() if now[package] != state]


def surroundings() -> dict[str, object]:
    """What all of this process stands in: its folder and its variables."""
    try:
        folder = os.getcwd()  # noqa: PTH109 -- the same, but quicker
    except FileNotFoundError:
        folder = "one that is gone"
    return {"folder": folder, "variables": dict(os.environ)}


def _files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0  # noqa: PTH208 -- names are enough


def _children() -> int:
    """Of this process, the dead that nobody waited for too; and those of its check that went astray."""
    astray = set(_marked(os.environ[MARK])) if MARK in os.environ else set()
    return len(children() | astray)


def _marked(value: str) -> Iterator[int]:
    mark = f"{MARK}={value}".encode()
    for entry in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if mark in entry.read_bytes().split(b"\0") and entry.parent.name != str(os.getpid()):
                yield int(entry.parent.name)
