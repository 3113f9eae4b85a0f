"""Episodes that environments play themselves, with their own solvers: what a policy can begin to learn from.

Promises: a demonstration is made by the same code as an episode of a policy, so its tokens are those that a rollout
would have. What was drawn at random counts as the environment's words unless it is to be learnt as well. Nothing is
generated, and nobody's reward but the environment's own is asked.
"""

import asyncio
from collections.abc import Mapping
from math import inf
from random import Random

import numpy as np

from windrow.envs.protocol import Env, EnvFactory, Solvable, Wanderable
from windrow.errors import ConfigError
from windrow.requests import Sampling
from windrow.rollout.env_config import EnvConfig, EnvTimes
from windrow.rollout.episodes import Episode, EpisodeSettings
from windrow.rollout.orders import Lease
from windrow.rollout.router import Answer, Ask, Route
from windrow.text import Codec
from windrow.trajectory import Segment, Task, Trajectory
from windrow.types import AttemptId, Value

AT_ONCE = 64
"""Demonstrations between which the event loop takes a breath."""


class Manner(Value, frozen=True, kw_only=True):
    """How demonstrations are played."""

    seed: int = 0
    noise: float = 0.0
    """Share of actions that are drawn at random."""
    learn_noise: bool = False
    limit_tokens: int = 1 << 20
    max_turns: int | None = None


class _Demonstrator(Route):
    """Answers for a policy with what the environment's solver says."""

    def __init__(self, attempt: AttemptId, codec: Codec, manner: Manner, rng: Random) -> None:
        super().__init__(attempt, "solver", {}, lambda *_: None)
        self.env: Env | None = None
        self._codec = codec
        self._manner = manner
        self._rng = rng

    def make(self, factory: EnvFactory) -> Env:
        self.env = factory()
        if not isinstance(self.env, Solvable):
            raise ConfigError(f"{type(self.env).__name__} has no solve(), so it cannot demonstrate; write one")
        return self.env

    async def generate(self, ask: Ask) -> Answer:
        drawn = self._rng.random() < self._manner.noise
        tokens = np.append(self._codec.encode(self._action(drawn=drawn)), np.int32(self._codec.stop_token_ids[0]))
        tokens = tokens[: ask.sampling.max_tokens].astype(np.int32)
        learnt = not drawn or self._manner.learn_noise
        segment = Segment("policy", len(tokens), 0) if learnt else Segment("environment", len(tokens))
        return Answer(
            token_ids=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            segments=(segment,),
            finish="stop",
            requests=0,
        )

    def _action(self, *, drawn: bool) -> str:
        env: object = self.env
        if drawn and isinstance(env, Wanderable):
            return env.wander(self._rng)
        if drawn or not isinstance(env, Solvable):
            raise ConfigError(f"{type(env).__name__} has no wander(rng), so it knows no noise; write one")
        return env.solve()


class _Here:
    """A place for one environment, kept in sight of who solves it."""

    def __init__(self, demonstrator: _Demonstrator, factory: EnvFactory) -> None:
        self._demonstrator = demonstrator
        self._factory = factory

    def make(self) -> Env:
        return self._demonstrator.make(self._factory)

    async def close(self) -> None: ...


async def demonstrate(
    envs: Mapping[str, EnvConfig], count: int, codec: Codec, manner: Manner | None = None
) -> list[Trajectory]:
    """So many episodes, of each kind in turn, on tasks of the training part."""
    manner = manner or Manner()
    settings = EpisodeSettings(
        codec=codec,
        sampling=Sampling(max_tokens=manner.limit_tokens),
        max_turns=manner.max_turns,
        limit_tokens=manner.limit_tokens,
        limit_is="max_tokens",
        seed=manner.seed,
    )
    factories = {tag: env.factory() for tag, env in envs.items()}
    tags = [*envs]
    played = []
    for number in range(count):
        tag = tags[number % len(tags)]
        env = envs[tag]
        times = EnvTimes(start_s=env.start_timeout_s, step_s=env.step_timeout_s, close_s=env.close_timeout_s)
        played.append(await _played(number, tag, settings, times, factories[tag], manner))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return played


async def _played(
    number: int, tag: str, settings: EpisodeSettings, times: EnvTimes, factory: EnvFactory, manner: Manner
) -> Trajectory:
    rng = Random(f"demonstration {manner.seed} {number}")
    attempt = AttemptId(number, 0)
    task = Task(ordinal=number, seed=rng.getrandbits(62), tag=tag)
    demonstrator = _Demonstrator(attempt, settings.codec, manner, rng)
    lease = Lease(attempt=attempt, seat=0, task=task, mode="train", engine="solver", version=0, deadline=inf)
    episode = Episode(lease, settings, times, demonstrator)
    try:
        return await episode.play(_Here(demonstrator, factory), lambda _: None)
    finally:
        await episode.close()


def texts_of(trajectories: list[Trajectory]) -> list[str]:
    """Everything that was shown and said, for a tokenizer to learn from."""
    return [
        text
        for trajectory in trajectories
        for turn in trajectory.turns
        for text in (*(message.content for message in turn.seen), turn.action)
    ]
