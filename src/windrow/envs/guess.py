"""A number to guess: the smallest environment with turns in it."""

import random
import re

from windrow.envs.protocol import Observation, Step
from windrow.trajectory import Task

LARGEST = 9


class GuessEnv:
    """The policy names a number from 0 to 9 and is told whether the secret one is lower or higher."""

    def __init__(self, turns: int = 4) -> None:
        self._turns_left = turns
        self._secret = 0

    async def start(self, task: Task) -> Observation:
        self._secret = random.Random(task.seed).randint(0, LARGEST)
        return f"guess a number from 0 to {LARGEST}"

    async def step(self, action: str) -> Step:
        self._turns_left -= 1
        said = re.search(r"\d+", action)
        if said is not None and int(said.group()) == self._secret:
            return Step(observation="right", reward=1.0, terminated=True)
        over = self._turns_left <= 0
        return Step(observation=self._hint(said), terminated=over)

    async def close(self) -> None:
        pass

    def solve(self) -> str:
        """What a perfect player says."""
        return str(self._secret)

    def _hint(self, said: re.Match[str] | None) -> str:
        if said is None:
            return "say a number"
        return "higher" if int(said.group()) < self._secret else "lower"
