"""Worlds whose times have a long tail: what is played while `bench.asynchronous` looks at the clock.

Promises: all times are slept, not computed, and follow from the seed, the task, the seat and the turn, so whoever plays
a task meets the same times, whenever it is played. Both shapes are those of published measurements: most of a step is
generation, the longest response or episode takes several times the mean, and training takes about as long as the mean
episode.
"""

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from random import Random

from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.envs.protocol import Step
from windrow.requests import Request, Sampling
from windrow.rollout.config import EnvManagerConfig
from windrow.rollout.env_config import RewardLimits
from windrow.text import ByteCodec
from windrow.trajectory import Task, Trajectory
from windrow.types import Value

CODEC = ByteCodec()
LETTER = ord("a")
FEWEST_TURNS, MOST_TURNS = 2, 6
ACTION_TOKENS = 6


class Tail(Value, frozen=True, kw_only=True):
    """Lognormal times with a cap."""

    median: float
    sigma: float
    cap: float
    """In medians."""

    def draw(self, *key: object) -> float:
        """The time that belongs to a key."""
        return self.median * min(self.cap, _chance(key).lognormvariate(0.0, self.sigma))


class Shape(Value, frozen=True, kw_only=True, gc=True):
    """One kind of work."""

    name: str
    groups: int
    """In a batch; so many are played at once."""
    group_size: int
    train_s: float
    env: EnvManagerConfig
    make_engine: Callable[[str, tuple[int, ...]], ScriptedEngine]

    @property
    def batch(self) -> int:
        return self.groups * self.group_size


def rlvr() -> Shape:
    """Questions with one answer each, whose length has a long tail, and a verifier that takes its time."""
    tokens = Tail(median=60, sigma=1.0, cap=20.0)

    def answer(request: Request) -> list[int]:
        return [LETTER] * round(tokens.draw("answer", request.seed)) + [CODEC.END]

    def make(name: str, devices: tuple[int, ...]) -> ScriptedEngine:
        settings = ScriptedSettings(vocabulary=257, capacity=1024, token_s=0.002, load_s=0.01, stream_every=512)
        return ScriptedEngine(name, settings, script=answer, devices=devices, codec=CODEC)

    env = EnvManagerConfig(
        env=Question,
        reward=Verifier(Tail(median=0.02, sigma=0.7, cap=10.0)),
        reward_limits=RewardLimits(at_once=256, isolation="inline"),
        num_env_groups=8,
        group_size=8,
        sampling=Sampling(max_tokens=1400),
    )
    return Shape(name="RLVR", groups=8, group_size=8, train_s=0.2, env=env, make_engine=make)


def agentic() -> Shape:
    """Episodes of several turns, in environments of which some steps take very long; 16 groups of 8, as is usual."""
    steps = Tail(median=0.045, sigma=1.3, cap=40.0)

    def make(name: str, devices: tuple[int, ...]) -> ScriptedEngine:
        settings = ScriptedSettings(vocabulary=256, capacity=1024, token_s=0.002, load_s=0.01)
        return ScriptedEngine(name, settings, devices=devices, codec=CODEC)

    env = EnvManagerConfig(
        env=lambda: Workshop(steps),
        num_env_groups=16,
        group_size=8,
        sampling=Sampling(max_tokens=ACTION_TOKENS),
    )
    return Shape(name="agentic", groups=16, group_size=8, train_s=0.4, env=env, make_engine=make)


class Question:
    """One question, one answer; a verifier judges it."""

    async def start(self, task: Task) -> str:
        return f"question {task.ordinal}"

    async def step(self, action: str) -> Step:
        return Step(reward=float(len(action) % 2), terminated=True)

    async def close(self) -> None: ...


class Verifier:
    """Looks at an answer for a while."""

    def __init__(self, times: Tail) -> None:
        self._times = times

    async def score(self, trajectory: Trajectory) -> float:
        await asyncio.sleep(self._times.draw("verifier", trajectory.task.seed, trajectory.seat))
        return float(len(trajectory.answer) % 2)


class Workshop:
    """A job of several steps, each of which takes a time of its own.

    It knows the task and what is said, not the seat; since seats say different things, each has times of its own.
    """

    def __init__(self, times: Tail) -> None:
        self._times = times
        self._key: tuple[object, ...] = ()
        self._left = 0

    async def start(self, task: Task) -> str:
        self._key = (task.seed,)
        return f"job {task.ordinal}"

    async def step(self, action: str) -> Step:
        if len(self._key) == 1:
            self._left = _chance((*self._key, action)).randint(FEWEST_TURNS, MOST_TURNS)
        self._key = (*self._key, action)
        self._left -= 1
        await asyncio.sleep(self._times.draw(*self._key))
        return Step(observation="next", reward=float(self._left == 0), terminated=self._left == 0)

    async def close(self) -> None: ...


def _chance(key: tuple[object, ...]) -> Random:
    return Random(blake2b(repr(key).encode(), digest_size=8).digest())
