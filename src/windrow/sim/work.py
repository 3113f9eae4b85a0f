"""How long an attempt is expected to occupy a slot, before anything is played.

Promises: the same for every seed, so the trainer's time is too; taken from a large sample of the very shapes
that the workload is drawn from. Engines count as busy as the slots can make them.
"""

from functools import lru_cache
from pathlib import Path
from typing import assert_never

import numpy as np

from windrow.sim.config import DurationEpisodes, Engines, SimConfig, Surroundings, TraceEpisodes, TurnEpisodes
from windrow.sim.distributions import Distribution, Numbers
from windrow.sim.engines import Pace
from windrow.sim.trace import read_trace

SAMPLE = 1 << 20
"""Large enough for an error of about 0.2 % with the tails that episodes have."""


def batch_work_s(config: SimConfig) -> float:
    """Slot-seconds that a training batch is expected to take."""
    return config.policy.batch_size * attempt_s(config)


def attempt_s(config: SimConfig) -> float:
    """Seconds that one attempt is expected to take."""
    crowd = max(1.0, config.slots / max(1, config.engines.count))
    return _episode_s(config, crowd) + _mean(config.reward.time_s)


def _episode_s(config: SimConfig, crowd: float) -> float:
    episode = config.episode
    match episode:
        case DurationEpisodes():
            return _duration_s(episode)
        case TurnEpisodes():
            turns = float(np.clip(np.rint(_sample(episode.turns)), 1, episode.max_turns).mean())
            return _turns_s(config.engines, episode, turns, turns * _mean(episode.tokens_per_turn), crowd)
        case TraceEpisodes():
            rows = [row for task in read_trace(Path(episode.path)) for row in task]
            turns = sum(row.turns for row in rows) / len(rows)
            tokens = sum(row.tokens for row in rows) / len(rows)
            seconds = sum(row.seconds for row in rows) / len(rows)
            return seconds + (_turns_s(config.engines, episode, turns, tokens, crowd) if turns else 0.0)
        case _:
            assert_never(episode)


@lru_cache(maxsize=16)
def _duration_s(episode: DurationEpisodes) -> float:
    seconds = episode.task.shape(_normals(0)) * episode.own.shape(_normals(1))
    return float(np.minimum(seconds, np.inf if episode.cap_s is None else episode.cap_s).mean())


def _turns_s(engines: Engines, around: Surroundings, turns: float, tokens: float, crowd: float) -> float:
    """Environment and engine in turn; what an engine knows is not counted as read again."""
    waiting = _mean(around.start_s) + turns * _mean(around.step_s)
    if not engines.count:
        return waiting
    pace = Pace.of(engines)
    read = _mean(around.prompt_tokens) + turns * _mean(around.observation_tokens)
    return waiting + (tokens + pace.read_cost * read) * pace.token_s(crowd)


def _mean(shape: Distribution) -> float:
    return float(_sample(shape).mean())


@lru_cache(maxsize=16)
def _sample(shape: Distribution) -> Numbers:
    return shape.shape(_normals(0)[: SAMPLE >> 3])


@lru_cache(maxsize=2)
def _normals(stream: int) -> Numbers:
    return np.random.default_rng(stream).standard_normal(SAMPLE)
