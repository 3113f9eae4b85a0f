"""A number to guess: the smallest environment with turns in it.

Two of the ten numbers are held out; hints lead to them as to the others.
"""

import random
import re

from windrow.envs.drawing import draw
from windrow.envs.protocol import Observation, Step
from windrow.trajectory import Task

LARGEST = 9


class GuessEnv:
    """The policy names a number from 0 to 9 and is told whether the secret one is lower or higher."""

    def __init__(self, turns: int = 4) -> None:
        self._turns_left = turns
        self._secret = 0

    async def start(self, task: Task) -> Observation:
        self._secret = draw(task, lambda rng: rng.randint(0, LARGEST), _key)
        return f"guess a number from 0 to {LARGEST}"

    async def step(self, action: str) -> Step:
        self._turns_left -= 1
        said = re.search(r"\d{1,9}", action)
        if said is not None and int(said.group()) == self._secret:
            return Step(observation="right", reward=1.0, terminated=True, info=self._info)
        over = self._turns_left <= 0
        return Step(observation=self._hint(said), terminated=over, info=self._info if over else {})

    async def close(self) -> None:
        pass

    def solve(self) -> str:
        """What a perfect player says."""
        return str(self._secret)

    def wander(self, rng: random.Random) -> str:
        """Any of the numbers."""
        return str(rng.randint(0, LARGEST))

    @property
    def _info(self) -> dict[str, str]:
        return {"problem": _key(self._secret)}

    def _hint(self, said: re.Match[str] | None) -> str:
        if said is None:
            return "say a number"
        return "higher" if int(said.group()) < self._secret else "lower"


def _key(secret: int) -> str:
    return f"number {secret}"
