"""All chance of a simulation: a function of the seed, of what is drawn, and of where.

Promises: the same question has the same answer, whenever and in whatever order it is asked, so every
scheduler plays the same workload. Numbers are drawn a block at a time, and a block is drawn again rather than
kept for ever.
"""

from itertools import accumulate
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from windrow.sim.distributions import Distribution, Numbers

TASKS = 256
"""Tasks in a block."""
LANES = 8
"""Attempts of each task in a block; later attempts are in blocks of their own."""
POOL = 1 << 16
"""Numbers that the turns of all episodes are taken from."""

Law = Literal["normal", "uniform"]
Tasks = NDArray[np.int64]


class Draws:
    """The chance of one seed and one stream of tasks."""

    def __init__(self, seed: int, stream: str) -> None:
        self.seed = seed
        self.stream = stream

    def numbers(self, law: Law, what: str, where: tuple[int, ...], size: int) -> Numbers:
        """Independent numbers that belong to one place."""
        name = crc32(f"{self.stream}/{what}".encode())
        generator = np.random.default_rng(np.random.SeedSequence((self.seed, name, *where)))
        return generator.standard_normal(size) if law == "normal" else generator.random(size)

    def of_tasks(self, law: Law, what: str, tasks: Tasks) -> Numbers:
        """One number for each task."""
        blocks = tasks // TASKS
        found = np.empty(len(tasks))
        for block in np.unique(blocks).tolist():
            here = blocks == block
            found[here] = self.numbers(law, what, (block,), TASKS)[tasks[here] % TASKS]
        return found

    def of_attempts(self, law: Law, what: str, block: int, lane: int) -> Numbers:
        """One number for each attempt of a block, task after task."""
        return self.numbers(law, what, (block, lane), TASKS * LANES)


class Pool:
    """Numbers of one shape, from which an episode takes one per turn, from a place of its own on."""

    def __init__(self, draws: Draws, what: str, shape: Distribution) -> None:
        self.values: list[float] = shape.shape(draws.numbers("normal", what, (), POOL)).tolist()
        self.sums: list[float] = [0.0, *accumulate(self.values)]

    def at(self, first: int, turn: int) -> float:
        """The number of one turn of the episode that begins at `first`."""
        return self.values[(first + turn) % POOL]

    def total(self, first: int, turns: int) -> float:
        """The sum over all turns of an episode."""
        rounds, last = divmod(first + turns, POOL)
        return rounds * self.sums[POOL] + self.sums[last] - self.sums[first]
