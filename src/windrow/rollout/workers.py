"""A worker in this process: it fetches leases, plays them all at once, and reports what became of them.

Promises: every episode is a task of the worker; one that breaks is news about that attempt and disturbs no other; a
cancelled one closes its environment and says nothing. News leave in bulk, in order. A bug of ours is not filed as
anybody's fault: it ends the worker, and with it the queue.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol, assert_never

from windrow.engines.protocol import Engine
from windrow.envs.places import Place, open_place
from windrow.errors import ConfigError, EngineError, EnvError, PromptTooLong, RewardError, WindrowError, blame, trace_of
from windrow.requests import Sampling
from windrow.rollout.config import kind_name
from windrow.rollout.env_config import EnvKind
from windrow.rollout.episodes import Episode, EpisodeSettings
from windrow.rollout.orders import (
    Broken,
    Cancel,
    EngineGone,
    Lease,
    Move,
    News,
    Order,
    PlayedOut,
    Progressed,
    played,
)
from windrow.rollout.router import MOVE_GRACE_S, Route
from windrow.trajectory import Trajectory
from windrow.types import AttemptId, Blame, Failed, Value, but


class Queue(Protocol):
    """What a worker needs of the queue."""

    async def join(self, worker: str, slots: int, kinds: tuple[str, ...]) -> None: ...

    async def lease(self, worker: str, k: int) -> list[Order]: ...

    async def report(self, news: Sequence[News]) -> None: ...


class Sighting(Value, frozen=True, kw_only=True):
    """One episode in play, as seen from outside."""

    attempt: str
    worker: str
    engine: str
    stage: str
    since: float
    turn: int
    tokens: int


class EnvWorker:
    """Plays many episodes at once."""

    def __init__(
        self,
        name: str,
        queue: Queue,
        engines: Mapping[str, Engine],
        envs: Mapping[str, EnvKind],
        settings: EpisodeSettings,
        *,
        slots: int,
        kinds: tuple[str, ...],
    ) -> None:
        self.name = name
        self._queue = queue
        self._engines = engines
        self._envs = envs
        self._places: dict[str, Place] = {}  # by tag, while it runs
        self._settings = settings
        self._slots = slots
        self._kinds = kinds
        self._episodes: dict[AttemptId, Episode] = {}  # all and only those in play
        self._tasks: dict[AttemptId, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()  # all and only the environments that are being closed
        self._called_off: set[AttemptId] = set()  # all and only those in play that nobody waits for
        self._is_dismissed = False
        self.ended = asyncio.Event()
        """It is over, and its environments are closed."""
        self._outbox: list[News] = []
        self._news = asyncio.Event()

    def sightings(self) -> list[Sighting]:
        """What is in play."""
        return [self._sighting(episode) for episode in self._episodes.values()]

    async def look(self) -> None:
        """What is in play is always known here."""

    async def run(self) -> None:
        """Play until the queue is over.

        consumes      orders
        waits for     the queue to have some
        unblocked by  GrantLease, CancelAttempt, MoveAttempt, the queue's end
        """
        try:
            if not self._is_dismissed:
                await self._work()
        finally:
            self.ended.set()

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            for tag, kind in self._envs.items():
                self._places[tag] = place = open_place(kind.make, kind.place)
                stack.push_async_callback(place.close)
            await self._queue.join(self.name, self._slots, self._kinds)
            async with asyncio.TaskGroup() as closings:
                try:
                    await self._serve(closings)
                finally:
                    if self._closing:
                        await asyncio.wait([*self._closing])  # whatever happened; each has a short limit of its own

    def dismiss(self) -> None:
        """Its scheduler is gone: if it has not begun it need not."""
        self._is_dismissed = True

    def sample_with(self, sampling: Sampling) -> None:
        """Episodes that begin from now on are sampled like this."""
        self._settings = but(self._settings, sampling=sampling)

    async def _serve(self, closings: asyncio.TaskGroup) -> None:
        async with asyncio.TaskGroup() as group:
            mail = group.create_task(self._mail(), name=f"mail of {self.name}")
            while self._obey(await self._queue.lease(self.name, self._slots), group, closings):
                pass
            mail.cancel()
            for attempt in self._tasks:
                self._cancel(attempt)

    def _obey(self, orders: Sequence[Order], group: asyncio.TaskGroup, closings: asyncio.TaskGroup) -> bool:
        """Do what the queue wants; false if that is nothing more."""
        left: dict[str, list[str]] = {}
        for order in orders:
            match order:
                case Lease():
                    self._begin(order, group, closings)
                case Cancel(attempt=attempt):
                    self._cancel(attempt)
                case Move(attempt=attempt, engine=engine):
                    episode = self._episodes.get(attempt)
                    leaving = None if episode is None else episode.route.move(engine)
                    if leaving is not None:
                        left.setdefault(leaving[0], []).append(leaving[1])
                case _:
                    assert_never(order)
        for engine, requests in left.items():
            group.create_task(self._interrupt(engine, requests), name=f"{len(requests)} requests leave {engine}")
        return bool(orders)

    def _begin(self, lease: Lease, group: asyncio.TaskGroup, closings: asyncio.TaskGroup) -> None:
        route = Route(lease.attempt, lease.engine, self._engines, self._lost)
        episode = Episode(lease, self._settings, self._envs[lease.task.tag].times, route)
        self._episodes[lease.attempt] = episode
        task = group.create_task(self._play(episode, closings), name=f"episode {lease.attempt}")
        self._tasks[lease.attempt] = task
        task.add_done_callback(partial(self._forget, lease.attempt))

    def _cancel(self, attempt: AttemptId) -> None:
        """Stop an episode, once: a second time would break off the closing of its environment."""
        task = self._tasks.get(attempt)
        if task is not None and attempt not in self._called_off:
            self._called_off.add(attempt)
            task.cancel()

    def _forget(self, attempt: AttemptId, task: "asyncio.Task[None]") -> None:
        episode = self._episodes.pop(attempt)
        del self._tasks[attempt]
        if task.cancelled() and attempt not in self._called_off:  # if everything ends, nobody reads this news
            why = f"{attempt} environment {episode.lease.task.tag!r} cancelled its own task"
            self._post(Broken(attempt, Failed("env", why, episode.tokens)))
        self._called_off.discard(attempt)

    async def _play(self, episode: Episode, closings: asyncio.TaskGroup) -> None:
        attempt = episode.lease.attempt
        try:
            trajectory = await episode.play(self._places[episode.lease.task.tag], self._progressed)
        except WindrowError as error:
            outcome = Failed(_blamed(error), str(error), episode.tokens, trace_of(error))
            self._post(Broken(attempt, outcome))
        else:
            self._post(self._ended(but(trajectory, worker=self.name)))
        finally:
            # in a task of its own: neither news wait for it nor does the end of the attempt break it off
            closing = closings.create_task(episode.close(), name=f"close of {attempt}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _interrupt(self, engine: str, requests: list[str]) -> None:
        """Have an engine hand over what requests that go elsewhere have got; the router waits for it, not for us."""
        try:
            with blame(EngineError, f"engine {engine}"):
                async with asyncio.timeout(MOVE_GRACE_S):
                    await self._engines[engine].interrupt(requests)
        except EngineError:
            return  # the router's own limit ends the requests

    def _progressed(self, episode: Episode) -> None:
        self._post(Progressed(episode.lease.attempt, episode.tokens, episode.oldest_version))

    def _ended(self, trajectory: Trajectory) -> News:
        """News of an episode that came to its end: its score, or that a reward has to give it."""
        tag = trajectory.task.tag
        if self._envs[tag].is_scored:
            return PlayedOut(kind_name(trajectory.mode, tag), trajectory)
        return played(trajectory)

    def _lost(self, engine: str, why: str) -> None:
        self._post(EngineGone(engine, why))

    def _post(self, news: News) -> None:
        self._outbox.append(news)
        self._news.set()

    async def _mail(self) -> None:
        """Send news.

        consumes      what episodes say
        waits for     the next of it
        unblocked by  the end of a turn or of an episode
        """
        while True:
            await self._news.wait()
            self._news.clear()
            news, self._outbox = self._outbox, []
            await self._queue.report(news)
            del news  # nothing is kept of it while there is nothing to say

    def _sighting(self, episode: Episode) -> Sighting:
        stage = episode.stage
        return Sighting(
            attempt=str(episode.lease.attempt),
            worker=self.name,
            engine=episode.route.engine,
            stage=episode.route.stage if stage.name == "generating" else stage.name,
            since=stage.since,
            turn=len(episode.turns),
            tokens=episode.tokens,
        )


def _blamed(error: WindrowError) -> Blame:
    """Whose fault it is; ours is nobody's and goes on up."""
    match error:
        case PromptTooLong():
            return "task"
        case EnvError():
            return "env"
        case EngineError():
            return "engine"
        case RewardError():
            return "reward"
        case ConfigError():
            return "task"
        case _:
            raise error
