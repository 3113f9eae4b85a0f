"""One episode of an environment with words that are known beforehand."""

from collections.abc import Awaitable, Callable, Sequence

from windrow.envs.protocol import Env, EnvFactory, Observation, Step
from windrow.trajectory import Task
from windrow.types import Value


class Played(Value, frozen=True, gc=True):
    """What an environment showed."""

    first: Observation
    steps: tuple[Step, ...]

    @property
    def score(self) -> float:
        return sum(step.reward for step in self.steps)

    @property
    def shown(self) -> list[Observation]:
        return [step.observation for step in self.steps]


async def play(make: EnvFactory, actions: Sequence[str], task: Task | None = None) -> Played:
    """Say these words one after the other, until they or the episode end."""
    env = make()
    try:
        first = await env.start(task or Task(ordinal=0, seed=3))
        steps: list[Step] = []
        for action in actions:
            steps.append(await env.step(action))
            if steps[-1].terminated or steps[-1].truncated:
                break
        return Played(first, tuple(steps))
    finally:
        await env.close()


async def play_with(make: EnvFactory, say: Callable[[Env], str], task: Task, most: int = 100) -> Played:
    """Ask a player for every word."""
    env = make()
    try:
        first = await env.start(task)
        steps: list[Step] = []
        while len(steps) < most and not (steps and (steps[-1].terminated or steps[-1].truncated)):
            steps.append(await env.step(say(env)))
        return Played(first, tuple(steps))
    finally:
        await env.close()


async def error_of(work: Awaitable[object]) -> str:
    """What something complains about; empty if it does not."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 -- tests look at whatever it is
        return f"{type(error).__name__}: {error}"
    return ""
