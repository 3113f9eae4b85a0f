"""Where those live who play and score episodes: beside the queue, or elsewhere.

Promises: a queue cannot tell the difference. Whoever plays fetches leases and reports in bulk; `run` ends when the
queue does.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from windrow.engines.protocol import Engine
from windrow.requests import Sampling
from windrow.rewards.protocol import AnyReward
from windrow.rollout.env_config import EnvKind, RewardLimits
from windrow.rollout.episodes import EpisodeSettings
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.workers import EnvWorker, Sighting


class Playmate(Protocol):
    """Somebody who plays or scores episodes of a mode, here or elsewhere."""

    name: str
    ended: asyncio.Event
    """It is over, and whatever it held is given back."""

    async def run(self) -> None: ...

    def dismiss(self) -> None: ...

    def sightings(self) -> list[Sighting]:
        """What is in play, as far as it is known here."""
        ...

    async def look(self) -> None:
        """Get to know what is in play now."""
        ...


class Player(Playmate, Protocol):
    """Somebody who plays."""

    def sample_with(self, sampling: Sampling) -> None: ...


class Scorer(Playmate, Protocol):
    """Somebody who scores."""

    kind: str


class Quarters(Protocol):
    """Where those live who play and score."""

    def player(
        self,
        name: str,
        queue: GroupQueueManager,
        engines: Mapping[str, Engine],
        envs: Mapping[str, EnvKind],
        settings: EpisodeSettings,
        *,
        slots: int,
        kinds: tuple[str, ...],
    ) -> Player: ...

    def scorer(
        self,
        name: str,
        kind: str,
        queue: GroupQueueManager,
        make: Callable[[], AnyReward],
        limits: RewardLimits,
        *,
        closes: bool,
    ) -> Scorer: ...


class Here:
    """They live in this process, on this event loop."""

    player = EnvWorker
    scorer = RewardWorker
