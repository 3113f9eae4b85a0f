"""Those who play and score in hosts, and who stands for them beside the queue.

Promises: the queue deals with a stand-in as it would with a worker of its own. Orders are brought and news fetched in
bulk; both calls go from the queue to the host, so that what a host returns belongs to the queue and outlives the host.
A host that dies is told to the queue at once, and another one is started in its place, after a pause that grows; one
that dies again and again ends the run with the reason.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import ray
from ray.exceptions import RayError

from windrow.cluster.ray.hosts import Remote, start
from windrow.engines.protocol import Engine
from windrow.errors import HostLost
from windrow.requests import Sampling
from windrow.rewards.protocol import AnyReward
from windrow.rollout.env_config import EnvKind, RewardLimits
from windrow.rollout.episodes import EpisodeSettings
from windrow.rollout.orders import Broken, News, Played, PlayedOut, Scored, Unscorable
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.ray.engines import RayEngine, Way
from windrow.rollout.ray.mail import Brought, Mail, Mailbox, addressed
from windrow.rollout.ray.parcels import Parcel
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.supervision import leaves
from windrow.rollout.workers import EnvWorker, Sighting
from windrow.types import Failed, Value, but

log = logging.getLogger(__name__)

GUEST = "guest"
PAUSE_S = 0.5
"""Before a host that died is started again; doubles with each death in a row."""
DEATHS = 5
"""In a row, without any news between them, after which a host is not started again."""
MOVE_IN_S = 600.0
"""How long a host may take to be there and to hold its guest: some load large things."""
END_S = 10.0
"""How long a host may take to close what is in play when everything is broken off."""
SPREAD: Mapping[str, object] = {"scheduling_strategy": "SPREAD"}
Seats = Mapping[int, Mapping[str, object]]
"""Ray's options for a host on a device, for all and only devices that rewards have."""
FETCH_S = 120.0
"""How long tokens may take from one node to another."""
YIELD = 5
"""By how much hosts of players and scorers are nicer than the others: engines, trainers and orders come first."""
FRESH_S = 0.5
"""What was seen so long ago is as good as new."""
LOOK_S = 0.02
"""How long somebody waits for a look at a host; whoever looks wants to know soon rather than exactly."""


class Reach(Value, frozen=True, gc=True):
    """How to reach an engine from another process."""

    name: str
    remote: Remote
    way: Way


class Guest:
    """In the host: a worker, and the mailbox through which it knows its queue."""

    def __init__(self, clock_now: float) -> None:
        os.nice(YIELD)
        self.node = _node()
        self.mail = Mailbox(clock_now)
        self.worker: EnvWorker | RewardWorker
        self._limit: asyncio.Timeout | None = None  # while it works

    async def run(self) -> None:
        """Work until all is over, or it is broken off."""
        try:
            async with asyncio.timeout(None) as self._limit:
                await self.worker.run()
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
        finally:
            self._limit = None
            self.mail.end()

    async def break_off(self) -> None:
        """Give up what is in play; returns when that is closed."""
        if self._limit is not None:
            self._limit.reschedule(_now())
            await self.worker.ended.wait()

    def bring(self, orders: Sequence[Brought], *, is_over: bool = False) -> None:
        """Orders from the queue."""
        self.mail.bring(orders, is_over=is_over)

    def sightings(self) -> list[Sighting]:
        """What is in play."""
        return self.worker.sightings()


class PlayingGuest(Guest):
    """Plays."""

    def __init__(
        self,
        clock_now: float,
        name: str,
        reaches: Sequence[Reach],
        envs: Mapping[str, EnvKind],
        settings: EpisodeSettings,
        slots: int,
        kinds: tuple[str, ...],
    ) -> None:
        super().__init__(clock_now)
        self._engines = {each.name: RayEngine(each.name, each.remote, each.way, client=name) for each in reaches}
        self.player = self.worker = EnvWorker(name, self.mail, self._engines, envs, settings, slots=slots, kinds=kinds)

    def sample_with(self, sampling: Sampling) -> None:
        """Episodes that begin from now on are sampled like this."""
        self.player.sample_with(sampling)

    async def run(self) -> None:
        """Play until all is over."""
        async with asyncio.TaskGroup() as group:
            lines = [engine.line for engine in self._engines.values() if engine.line is not None]
            carrying = [group.create_task(line.run(), name=f"line {place}") for place, line in enumerate(lines)]
            await super().run()
            for task in carrying:
                task.cancel()


class ScoringGuest(Guest):
    """Scores."""

    def __init__(
        self,
        clock_now: float,
        name: str,
        kind: str,
        make: Callable[[], AnyReward],
        limits: RewardLimits,
        closes: bool,  # noqa: FBT001 -- carried by place
    ) -> None:
        super().__init__(clock_now)
        self.worker = RewardWorker(name, kind, self.mail, make, limits, closes=closes)

    async def in_groups(self) -> bool:
        """Whether it scores groups; waits until the reward is made."""
        return await self.mail.opened_tray


class StandIn:
    """Beside the queue: somebody who works in a host."""

    def __init__(self, name: str, queue: GroupQueueManager, options: Mapping[str, object] = SPREAD) -> None:
        """`options` say to Ray where its hosts are placed."""
        self.name = name
        self.ended = asyncio.Event()
        self._options = options
        self._queue = queue
        self._host: Remote | None = None
        self._is_dismissed = False
        self._seen: list[Sighting] = []
        self._seen_at = -inf
        self._wanted = asyncio.Event()  # somebody wants to know what is in play
        self._looked = asyncio.Event()  # since then
        self._deaths = 0  # in a row

    def dismiss(self) -> None:
        """Its scheduler is gone: if it has not begun it need not, and the queue does not know it any more."""
        self._is_dismissed = True

    def sightings(self) -> list[Sighting]:
        """What was in play at the last look."""
        return self._seen

    async def look(self) -> None:
        """Have the host asked, unless it was a moment ago; one that is busy is seen as it was at the last look."""
        if self._host is None or _now() - self._seen_at < FRESH_S:
            return
        self._looked.clear()
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._looked.wait()

    async def run(self) -> None:
        """Have a host work until the queue is over.

        consumes      hosts
        waits for     the one that works to end
        unblocked by  the queue's end, the host's death
        """
        try:
            while not self._is_dismissed and not self._queue.is_closed:
                lost = await self._one_life()
                if lost is None:
                    return
                await self._mourn(lost)
        finally:
            self.ended.set()

    async def _one_life(self) -> HostLost | None:
        """From the start of a host to its end; why it died, if it did."""
        lost: list[HostLost] = []
        host = start(self.name, **self._options)
        is_in = False
        try:
            is_far = await self._moved_in(host)
            is_in = True
            self._host = host
            async with asyncio.TaskGroup() as group:
                group.create_task(host.call(f"{GUEST}.run"), name=f"work of {self.name}")
                await self._begun(host)
                beside = [
                    group.create_task(self._feed(host), name=f"orders for {self.name}"),
                    group.create_task(self._watch(host), name=f"looks at {self.name}"),
                ]
                await self._hear(host, is_far=is_far)
                for task in beside:
                    task.cancel()
        except* HostLost as errors:
            lost += [each for each in leaves(errors) if isinstance(each, HostLost)]
        finally:
            self._host = None
            self._seen, self._seen_at = [], -inf
            await self._end(host, is_in=is_in)
        return lost[0] if lost else None

    async def _moved_in(self, host: Remote) -> bool:
        """Have a host hold the guest, in bounded time; says whether it is on another node."""
        limit = asyncio.timeout(MOVE_IN_S)
        try:
            async with limit:
                await self._move_in(host)
                return bool(await host.call(f"{GUEST}.node") != _node())
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HostLost(f"host {self.name} was not ready within {MOVE_IN_S:g} s") from error

    async def _end(self, host: Remote, *, is_in: bool) -> None:
        """End a host; whatever its guest still holds is closed before, in bounded time."""
        try:
            if is_in:
                with suppress(HostLost, TimeoutError):
                    async with asyncio.timeout(END_S):
                        await host.call(f"{GUEST}.break_off")
        finally:
            host.kill()

    async def _mourn(self, lost: HostLost) -> None:
        self._deaths += 1
        log.error("%s died: %s", self.name, lost, extra={"worker": self.name, "why": str(lost)})
        await self._bereave(str(lost))
        if self._deaths >= DEATHS:
            raise HostLost(f"{self.name} died {self._deaths} times in a row: {lost}")
        await asyncio.sleep(PAUSE_S * 2**self._deaths)

    async def _feed(self, host: Remote) -> None:
        """Bring orders.

        consumes      orders
        waits for     the queue to have some
        unblocked by  the queue, its end
        """
        while True:
            orders = () if self._is_dismissed else await self._orders(host)
            if not orders:
                await host.call(f"{GUEST}.bring", [], is_over=True)
                return
            await host.call(f"{GUEST}.bring", orders)

    async def _hear(self, host: Remote, *, is_far: bool) -> None:
        """Fetch news; what was played on another node counts when its tokens are on this one.

        consumes      news
        waits for     the host to have some
        unblocked by  the host, its end
        """
        while True:
            first, body = host.call_for_two(f"{GUEST}.mail.news")
            mail: Mail = await host.answered(first)
            if mail.news:
                self._deaths = 0
                why = await asyncio.to_thread(_brought_here, body) if is_far else ""
                await self._queue.report([_lost(each, why) if why else addressed(each, body) for each in mail.news])
            if mail.is_last:
                return

    async def _watch(self, host: Remote) -> None:
        """Look what is in play.

        consumes      nothing
        waits for     somebody who wants to know
        unblocked by  `look`, the host's death
        """
        while True:
            await self._wanted.wait()
            self._seen = await host.insist(f"{GUEST}.sightings")
            self._seen_at = _now()
            self._wanted.clear()
            self._looked.set()

    async def _move_in(self, host: Remote) -> None:
        """Have a host hold the guest."""
        raise NotImplementedError

    async def _begun(self, host: Remote) -> None:
        """It works."""

    async def _orders(self, host: Remote, /) -> Sequence[Brought]:
        """What the queue has for it; nothing means that all is over."""
        raise NotImplementedError

    async def _bereave(self, why: str) -> None:
        """Tell those who dealt with it that it is gone."""
        raise NotImplementedError


class RayPlayer(StandIn):
    """Stands for somebody who plays."""

    def __init__(
        self,
        name: str,
        queue: GroupQueueManager,
        engines: Mapping[str, Engine],
        envs: Mapping[str, EnvKind],
        settings: EpisodeSettings,
        *,
        slots: int,
        kinds: tuple[str, ...],
    ) -> None:
        super().__init__(name, queue)
        self._engines = [engine for engine in engines.values() if isinstance(engine, RayEngine)]
        self._envs = envs
        self._settings = settings
        self._slots = slots
        self._kinds = kinds
        self._is_resampled = False  # and nobody has told the host

    def sample_with(self, sampling: Sampling) -> None:
        """Episodes that begin from now on are sampled like this."""
        self._settings = but(self._settings, sampling=sampling)
        self._is_resampled = True

    async def _move_in(self, host: Remote) -> None:
        reaches = [Reach(engine.name, engine.remote, engine.way) for engine in self._engines]
        given = (self.name, reaches, self._envs, self._settings, self._slots, self._kinds)
        await host.attach(GUEST, PlayingGuest, _now(), *given)
        self._is_resampled = False
        if not self._is_dismissed:
            await self._queue.join(self.name, self._slots, self._kinds)

    async def _orders(self, host: Remote) -> Sequence[Brought]:
        orders = await self._queue.lease(self.name, self._slots)
        if self._is_resampled:
            self._is_resampled = False
            await host.call(f"{GUEST}.sample_with", self._settings.sampling)
        return orders

    async def _bereave(self, why: str) -> None:
        await self._queue.leave(self.name, why)
        async with asyncio.TaskGroup() as group:
            for engine in self._engines:
                group.create_task(engine.forget(self.name), name=f"{engine.name} forgets {self.name}")


class RayScorer(StandIn):
    """Stands for somebody who scores."""

    def __init__(
        self,
        name: str,
        kind: str,
        queue: GroupQueueManager,
        make: Callable[[], AnyReward],
        limits: RewardLimits,
        *,
        closes: bool,
        seats: Seats,
    ) -> None:
        super().__init__(name, queue, SPREAD if limits.device is None else seats[limits.device])
        self.kind = kind
        self._make = make
        self._limits = limits
        self._closes = closes

    async def _move_in(self, host: Remote) -> None:
        await host.attach(GUEST, ScoringGuest, _now(), self.name, self.kind, self._make, self._limits, self._closes)

    async def _begun(self, host: Remote) -> None:
        in_groups = await host.call(f"{GUEST}.in_groups")
        if not self._is_dismissed:
            await self._queue.open_tray(self.kind, in_groups=in_groups)

    async def _orders(self, _: Remote) -> Sequence[Brought]:
        return await self._queue.fetch_unscored(self.kind)

    async def _bereave(self, why: str) -> None:
        await self._queue.close_tray(self.kind, why)


class Elsewhere:
    """They live in hosts, spread over the cluster, but for rewards that have a device."""

    player = RayPlayer

    def __init__(self, seats: Seats) -> None:
        self.scorer = partial(RayScorer, seats=seats)


def _node() -> str:
    """Where this process is."""
    return ray.get_runtime_context().get_node_id()


def _brought_here(body: Any) -> str:  # noqa: ANN401 -- Ray's references have no type
    """Have a body copied to this node; why that was not possible, if it was not."""
    try:
        ray.get(body, timeout=FETCH_S)
    except RayError as error:
        return f"its tokens were lost with its node: {type(error).__name__}"
    return ""


def _lost(news: News, why: str) -> News:
    """What is to be said of an episode whose tokens are lost; what was scored may have its tokens elsewhere."""
    if isinstance(news, Played | PlayedOut):
        return Broken(news.trajectory.attempt, Failed("worker", why, news.trajectory.policy_tokens))
    if isinstance(news, Scored) and any(isinstance(each, Parcel) and each.body is None for each in news.trajectories):
        return Unscorable(news.job, why)
    return news


def _now() -> float:
    return asyncio.get_running_loop().time()
