"""Episodes of the shipped games, played by their own policies or by a list of actions."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple, Protocol

from windrow.envs.protocol import Observation, Step
from windrow.trajectory import Split, Task

LONGEST = 500


class Game(Protocol):
    """What every shipped game has."""

    async def start(self, task: Task) -> Observation: ...

    async def step(self, action: str) -> Step: ...

    async def close(self) -> None: ...

    def solve(self) -> str: ...

    def wander(self, rng: Random) -> str: ...


Policy = Callable[[Game], str]


class Played(NamedTuple):
    first: Observation
    actions: list[str]
    steps: list[Step]

    @property
    def score(self) -> float:
        return sum(step.reward for step in self.steps)

    @property
    def problem(self) -> str:
        return str(self.steps[-1].info["problem"])

    @property
    def texts(self) -> list[Observation]:
        return [self.first, *(step.observation for step in self.steps)]


def task(seed: int = 0, split: Split = "held_out", payload: Any = None) -> Task:
    return Task(ordinal=0, seed=seed, split=split, payload=payload)


def episode(game: Game, of: Task, policy: Policy) -> Played:
    """The whole of it; fails if it never ends or ends in two ways."""
    return asyncio.run(_episode(game, of, policy))


async def _episode(game: Game, of: Task, policy: Policy) -> Played:
    played = Played(await game.start(of), [], [])
    while not (played.steps and is_over(played.steps[-1])):
        assert len(played.steps) < LONGEST, "it never ends"
        played.actions.append(policy(game))
        played.steps.append(await game.step(played.actions[-1]))
    await game.close()
    return played


def is_over(step: Step) -> bool:
    assert not (step.terminated and step.truncated)
    return step.terminated or step.truncated


def solved(game: Game, of: Task) -> Played:
    return episode(game, of, _policy(of.seed, solve=True))


def wandered(game: Game, of: Task) -> Played:
    return episode(game, of, _policy(of.seed, solve=False))


def told(game: Game, of: Task, actions: Iterable[str]) -> Played:
    """What it says to a list of actions, which need not lead to its end."""

    async def play() -> Played:
        played = Played(await game.start(of), [*actions], [])
        for action in played.actions:
            played.steps.append(await game.step(action))
        await game.close()
        return played

    return asyncio.run(play())


def scores(make: Callable[[], Game], count: int, *, solve: bool) -> list[float]:
    """Those of so many held-out tasks, by one policy or the other."""

    async def play() -> list[float]:
        return [(await _episode(make(), task(seed), _policy(seed, solve=solve))).score for seed in range(count)]

    return asyncio.run(play())


def _policy(seed: int, *, solve: bool) -> Policy:
    rng = Random(seed)
    return lambda game: game.solve() if solve else game.wander(rng)


def problems(make: Callable[[], Game], split: Split, count: int) -> set[str]:
    """Those of so many tasks."""

    async def play() -> set[str]:
        policy = _policy(0, solve=True)
        return {(await _episode(make(), task(seed, split), policy)).problem for seed in range(count)}

    return asyncio.run(play())


def observations_elsewhere(name: str, seed: int) -> str:
    """What a wandering player sees, printed by another process."""
    code = (
        "from tests.envs.playing import task, wandered\n"
        "from windrow.envs.shipped import find\n"
        f"print(wandered(find({name!r})(), task({seed})).texts)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
