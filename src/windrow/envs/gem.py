"""Environments of GEM (the package `gem-llm`), by their names.

Promises: an episode follows from its seed although GEM draws from Python's and numpy's global chance: every episode has
a stream of its own, which is in force only while GEM computes, and the rest of the program keeps its own. The words
that GEM wants around an observation are put there. That GEM sets up logging when it is imported is undone.
It does not hold across threads: others that use global chance at the same moment disturb it, so choose a process then.
GEM computes without `await`, its import takes seconds, and some of its environments fetch data when they are made.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

from windrow.envs.plain import Closable, Reading, apart
from windrow.envs.protocol import EnvFactory, Observation, Step
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.trajectory import Task
from windrow.types import but

SEEDS = 2**32
"""How many seeds numpy's global chance knows."""


def gem_env(name: str, /, **kwargs: object) -> EnvFactory:
    """Makes environments of GEM, such as `game:GuessTheNumber-v0-easy`; other arguments are the environment's."""
    return GemMaker(name, kwargs)


class GemMaker:
    """Makes them; where it arrives from another process GEM is imported at once, for all that it will make there."""

    def __init__(self, name: str, kwargs: dict[str, Any]) -> None:
        self._name = name
        self._kwargs = kwargs

    def __call__(self) -> "GemEnv":
        return GemEnv(self._name, self._kwargs)

    def __reduce__(self) -> "tuple[Any, ...]":
        return _arrived, (self._name, self._kwargs)


class GemEnv:
    """One environment of GEM, for one episode."""

    def __init__(self, name: str, kwargs: dict[str, Any]) -> None:
        self.inner: Any = None
        """The environment itself, once it has started."""
        self._name = name
        self._kwargs = kwargs
        self._reading = Reading(name)
        self._chance = Chance(0)

    async def start(self, task: Task) -> Observation:
        seed = apart(task) % SEEDS
        self._chance = Chance(seed)
        with self._chance.in_force():
            self.inner = _made(self._name, self._kwargs)
            first, info = self.inner.reset(seed=seed)
        if _wanders(self.inner):
            self.wander = self._wander
        return _around(self._reading.first((first, info)), info)

    async def step(self, action: str) -> Step:
        with self._chance.in_force():
            said = self.inner.step(action)
        step = self._reading.step(said)
        if step.terminated:
            return but(step, truncated=False)  # GEM sets both where an episode has a single turn or its last one
        return step if step.truncated else but(step, observation=_around(step.observation, said[-1]))

    async def close(self) -> None:
        if isinstance(self.inner, Closable):
            self.inner.close()

    def _wander(self, rng: Random) -> str:
        with Chance(rng.randrange(SEEDS)).in_force():
            return str(self.inner.sample_random_action())


class Chance:
    """A stream of global chance, Python's and numpy's, for one owner."""

    def __init__(self, seed: int) -> None:
        outside = _state()
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 -- it is the global one that others use
        self._mine = _state()
        _restore(outside)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Whatever is drawn globally meanwhile comes from this stream."""
        outside = _state()
        _restore(self._mine)
        try:
            yield
        finally:
            self._mine = _state()
            _restore(outside)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002 -- as above


def _restore(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002 -- as above


def _arrived(name: str, kwargs: dict[str, Any]) -> GemMaker:
    _gem()
    return GemMaker(name, kwargs)


def _made(name: str, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- GEM has no types
    gem = _gem()
    from gem.envs.registration import ENV_REGISTRY as known  # noqa: N811 -- a local name

    if name not in known:
        raise ConfigError(f"gem has no environment {name!r}{did_you_mean(name, known)}")
    try:
        return gem.make(name, **kwargs)
    except (ImportError, LookupError, TypeError) as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)
        raise ConfigError(f"gem cannot make {name!r}: {why}") from error


def _gem() -> Any:  # noqa: ANN401 -- GEM has no types
    """The package, without what importing it does to the root logger."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    try:
        import gem
    except ImportError as error:
        raise ConfigError(f"gem cannot be imported: {error}; install windrow[gem]") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return gem


def _wanders(env: object) -> bool:
    """It can make up an action: GEM's own method only raises."""
    import gem

    return not isinstance(env, gem.Env) or type(env).sample_random_action is not gem.Env.sample_random_action


def _around(observation: Observation, info: dict[str, Any]) -> Observation:
    """An observation with what GEM wants before and after it."""
    if not isinstance(observation, str):
        return observation
    before, after = str(info.get("prefix", "")), str(info.get("suffix", ""))
    between = "\n" if after and not observation.endswith("\n") else ""
    return f"{before}{observation}{between}{after}"
