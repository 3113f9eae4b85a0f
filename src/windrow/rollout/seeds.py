"""Seeds that follow from what is sampled, not from when: the same run, task, seat and turn give the same draw."""

import hashlib

from windrow.trajectory import Task
from windrow.types import Mode


def turn_seed(run: int, mode: Mode, task: Task, seat: int, turn: int) -> int:
    """A number below 2**63."""
    words = f"{run}/{mode}/{task.tag}/{task.ordinal}/{seat}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1
