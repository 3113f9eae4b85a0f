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
from pathlib import Path
from typing import Any

from windrow.types import Value

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


def shared_chance() -> tuple[Any, ...]:
    """The state of the generators that everybody in this process shares."""
    numpy = sys.modules.get("numpy")
    theirs = () if numpy is None else numpy.random.get_state(legacy=False)["state"]
    key = (theirs["key"].tobytes(), theirs["pos"]) if theirs else ()
    return (hash(random.getstate()), *key)


def _files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0  # noqa: PTH208 -- names are enough


def _children() -> int:
    count = 0
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            count += len(task.read_text(encoding="ascii").split())
    return count
