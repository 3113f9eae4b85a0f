"""Problems from seeds, in two parts that never overlap.

Promises: the same task draws the same problem in any process; which part a problem belongs to follows from the problem
alone, not from the seed, so nothing that is held out is ever trained on, whatever the seeds are.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import TypeVar

from windrow.errors import EnvError
from windrow.trajectory import Split, Task

P = TypeVar("P")

ONE_IN = 4
"""One problem in so many is held out."""
DRAWS = 10_000
"""A part that is met less often than this is empty."""


def draw(task: Task, make: Callable[[Random], P], key: Callable[[P], str]) -> P:
    """The problem of a task; `key` is what makes two problems the same."""
    rng = Random(task.seed)
    for _ in range(DRAWS):
        problem = make(rng)
        if split_of(key(problem)) == task.split:
            return problem
    raise EnvError(f"no {task.split} problem in {DRAWS} draws from seed {task.seed}; there are too few different ones")


def split_of(key: str) -> Split:
    """The part that a problem belongs to."""
    return "held_out" if blake2b(key.encode(), digest_size=8).digest()[0] % ONE_IN == 0 else "train"
