"""A number to guess: the smallest environment with turns in it.

Two of the ten numbers are held out; hints lead to them as to the others. It is played once, from its start to its end.
"""

import random
import re
from typing import Annotated

from windrow.envs.drawing import draw
from windrow.envs.games import Course, settled
from windrow.envs.protocol import Observation, Step
from windrow.trajectory import Task
from windrow.types import Meta, Value

LARGEST = 9


class GuessSettings(Value, frozen=True):
    """How long it may take."""

    turns: Annotated[int, Meta(ge=1)] = 4


class GuessEnv:
    """The policy names a number from 0 to 9 and is told whether the secret one is lower or higher."""

    def __init__(self, turns: int = 4) -> None:
        self._turns = settled(GuessSettings, "guess", {"turns": turns}).turns
        self._course = Course("guess")
        self._secret = 0

    async def start(self, task: Task) -> Observation:
        self._course.begin(self._turns)
        self._secret = draw(task, lambda rng: rng.randint(0, LARGEST), _key)
        return f"guess a number from 0 to {LARGEST}"

    async def step(self, action: str) -> Step:
        self._course.take()
        said = re.search(r"\d{1,9}", action)
        if said is not None and int(said.group()) == self._secret:
            return self._course.step("right", self._info, reward=1.0, ended=True)
        return self._course.step(self._hint(said), self._info, ended=not self._course.left)

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
