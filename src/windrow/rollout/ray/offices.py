"""The office of a cluster: where its queue lives, and how schedulers elsewhere ask it.

Promises: all schedulers of a cluster come to the same office, whichever process they are in, and it holds one queue for
all of them. What a call raises there is raised here. A call that is cancelled here is cancelled there, before it ends
here, if the office answers within seconds. Whatever an office is asked for ends in bounded time, however it fares,
but for batches, which take as long as they take: an office that does not do an order in the time that the order has
counts as lost, and so does one that is deaf for `office_timeout_s` while somebody waits for a batch. One that does not
let a scheduler leave is ended, and those who play with it.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ray

from windrow.cluster.local import EngineConfig, ResourceManager
from windrow.cluster.ray.hosts import Remote
from windrow.cluster.ray.resources import RayResourceManager
from windrow.core.ledger import Ledger
from windrow.core.status import Status
from windrow.engines.buckets import Shipment, ship
from windrow.engines.protocol import Engine
from windrow.errors import HostLost, Refused
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.fleet import INTERRUPT_S, Patience
from windrow.rollout.passes import Asked
from windrow.rollout.queue import STOP_S
from windrow.rollout.ray.engines import RayEngine
from windrow.rollout.ray.parcels import opened
from windrow.rollout.ray.players import Elsewhere, Seats
from windrow.rollout.sharing import Commons
from windrow.rollout.snapshots import save
from windrow.rollout.supervision import leaves
from windrow.rollout.tenancy import Handover, RolloutStatus, Tenancy
from windrow.types import Mode, Value, but

if TYPE_CHECKING:
    from windrow.engines.protocol import Weights

log = logging.getLogger(__name__)

Send = Callable[..., Coroutine[Any, Any, Any]]
"""How a call goes to a host."""
OFFICE = "office"
EARLY = 64
"""Calls that may be given up before they come."""
LOOK_S = 30.0
"""How long a look may take."""
SNAPSHOT_S = 600.0
"""How long it may take to write everything down, or to read it."""
OPEN_S = 120.0
"""How long an office may take to be there."""
GIVE_UP_S = 5.0
"""How long an office may take to break something off."""
BEAT_S = 5.0
"""How often an office is asked whether it hears, while somebody waits for a batch."""
MARGIN_S = 30.0
"""By how much an order may take longer than all that it waits for."""


class Limits(Value, frozen=True, kw_only=True):
    """How long orders may take; an office that is well keeps them by itself."""

    start_s: float
    quiet_s: float
    """To be quiet."""
    hands_s: float
    """Until an engine has carried out everything that it may have been told, and that was undone."""
    leave_s: float
    deaf_s: float = 60.0
    """Until an office that hears nothing counts as lost."""


def limits(config: RolloutConfig) -> Limits:
    """What follows from the settings of a scheduler."""
    patience = Patience(suspend_s=config.suspend_timeout_s, load_s=config.load_timeout_s)
    quiet_s = patience.suspend_s + INTERRUPT_S
    return Limits(
        start_s=patience.start_s,
        quiet_s=quiet_s + MARGIN_S,
        hands_s=2 * (quiet_s + patience.load_s + patience.devices_s) + MARGIN_S,
        leave_s=2 * STOP_S + patience.suspend_s + MARGIN_S,
        deaf_s=config.office_timeout_s,
    )


class Engines:
    """The engines of a cluster, as its office sees them."""

    def __init__(self, name: str, hosts: Mapping[str, Remote], config: EngineConfig) -> None:
        self.name = name
        self.worker_config = config
        self.workers: dict[str, Engine] = {each: RayEngine(each, host) for each, host in hosts.items()}
        self._hosts = hosts

    def bury(self, engine: str) -> None:
        """End the host of an engine that is lost, because it may only hang."""
        self._hosts[engine].kill()


class Wait(Value, frozen=True, gc=True):
    """Something that is done for somebody who waits for it."""

    limit: asyncio.Timeout
    over: asyncio.Event


class Office:
    """In its host: one queue, and a place at it for each mode."""

    def __init__(self, engines: Engines) -> None:
        self._commons = Commons(engines, opened, engines.bury)
        self._places: dict[Mode, Tenancy] = {}
        self._waits: dict[str, Wait] = {}  # by ticket; all and only those that are under way
        self._given_up: deque[str] = deque(maxlen=EARLY)  # tickets of which nothing was known

    def move_in(self, mode: Mode, config: RolloutConfig, env: EnvManagerConfig, seats: Seats) -> None:
        """A scheduler of a mode comes; `seats` are for its rewards."""
        if self._commons.is_over:
            raise Refused("the schedulers of this cluster were shut down, its engines with them; make a new cluster")
        self._places[mode] = Tenancy(self._commons, Elsewhere(seats), mode, config, env)

    async def ask(self, mode: Mode, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever it is
        """Do something for the scheduler of a mode."""
        result = methodcaller(method, *arguments, **options)(self._places[mode])
        return await result if inspect.isawaitable(result) else result

    async def wait(self, ticket: str, mode: Mode, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """The same, until somebody gives it up."""
        if ticket in self._given_up:  # Ray does not promise an order
            return None
        limit, over = asyncio.timeout(None), asyncio.Event()
        self._waits[ticket] = Wait(limit, over)
        try:
            async with limit:
                return await self.ask(mode, method, *arguments, **options)
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self._waits.pop(ticket, None)
            over.set()

    async def give_up(self, ticket: str) -> None:
        """Nobody waits for it any more; returns when it has ended."""
        wait = self._waits.pop(ticket, None)
        if wait is None:
            self._given_up.append(ticket)
        else:
            wait.limit.reschedule(asyncio.get_running_loop().time())
            await wait.over.wait()

    def beat(self) -> None:
        """It hears."""

    async def ready(self, mode: Mode) -> None:
        """Engines and workers of a mode are started."""
        await self._places[mode].ready()

    async def snapshot(self, mode: Mode) -> bytes:
        """Everything that the schedulers of its cluster have and know, tokens included."""
        state = self._places[mode].state()
        queue = state.queue
        for folder in queue.shelf.folders.values():
            whole = await opened(folder.trajectories.values())
            folder.trajectories = {each.attempt: each for each in whole}
        unscored = {kind: tuple(await opened(waiting)) for kind, waiting in queue.unscored.items()}
        return save(but(state, queue=but(queue, unscored=unscored)))


class RemoteTenancy:
    """A place at the queue of an office elsewhere; what each call means stands in `Tenancy`."""

    def __init__(
        self, office: Remote, engines: Engines, mode: Mode, config: RolloutConfig, env: EnvManagerConfig, seats: Seats
    ) -> None:
        self._office = office
        self._mode: Mode = mode
        self._limits = limits(config)
        self._start_s = self._limits.start_s  # what has to be started may take so long; 0 once it has
        self._has_left = False
        self._last_ledger: dict[Mode, Ledger] = {}  # what it was when we left
        office.put(OFFICE, Office, engines).answer(within_s=OPEN_S)
        office.look(f"{OFFICE}.move_in", mode, config, env, seats, within_s=OPEN_S)

    async def ready(self) -> None:
        async with self._within(self._start_s + MARGIN_S, "become ready"):
            await self._office.call(f"{OFFICE}.ready", self._mode)
        self._start_s = 0.0

    async def take(self, asked: Asked, n: int) -> Handover | None:
        handed = await self._ask("take", asked, n)
        self._start_s = 0.0
        return await _opened(handed)

    async def take_group(self) -> Handover | None:
        return await _opened(await self._ask("take_group"))

    async def mark_trained(self, batch_id: int) -> None:
        async with self._within(self._start_s + self._limits.hands_s, "mark_trained"):
            await self._ask("mark_trained", batch_id)

    async def suspend(self) -> None:
        await self._order("suspend", within_s=self._start_s + self._limits.quiet_s)

    async def resume(self) -> None:
        await self._order("resume")

    async def update_weights(self, version: int, weights: "Weights | None" = None) -> dict[str, object]:
        sent = await asyncio.to_thread(_sent, version, weights)
        said: dict[str, object] = await self._order("update_weights", version, sent)
        return said

    async def set_aside(self, engines: int | Sequence[str]) -> tuple[str, ...]:
        said: tuple[str, ...] = await self._order("set_aside", engines)
        return said

    async def bring_back(self) -> None:
        await self._order("bring_back")

    async def shrink(self, devices: Sequence[int]) -> dict[str, object]:
        said: dict[str, object] = await self._order("shrink", devices)
        return said

    async def expand(self, devices: Sequence[int], *, skip_load: bool) -> dict[str, object]:
        said: dict[str, object] = await self._order("expand", devices, skip_load=skip_load)
        return said

    async def leave(self) -> None:
        if not self._has_left:
            try:
                await self._order("leave", within_s=self._limits.leave_s)
                self._last_ledger = await self._order("ledger", within_s=LOOK_S)
            except HostLost as error:  # what is gone has left, and so has what is ended
                log.warning("the %s scheduler leaves an office that is lost: %s", self._mode, error)
                self._office.kill()
            self._has_left = True

    def snapshot(self) -> bytes:
        said: bytes = self._office.look(f"{OFFICE}.snapshot", self._mode, within_s=SNAPSHOT_S)
        return said

    def restore(self, snapshot: bytes) -> None:
        self._look("restore", snapshot, within_s=SNAPSHOT_S)

    def metrics(self) -> dict[str, float]:
        said: dict[str, float] = self._look("metrics")
        return said

    def scheduling(self) -> Status | None:
        said: Status | None = self._look("scheduling")
        return said

    def status(self) -> RolloutStatus:
        said: RolloutStatus = self._look("survey")
        return said

    async def survey(self) -> RolloutStatus:
        said: RolloutStatus = await self._order("survey", within_s=LOOK_S)
        return said

    def ledger(self) -> dict[Mode, Ledger]:
        if self._has_left:
            return self._last_ledger
        said: dict[Mode, Ledger] = self._look("ledger")
        return said

    async def _ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 -- whatever it is
        """Something that may take long, but not for longer than the office hears."""
        limit = asyncio.timeout(None)
        try:
            async with limit, asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(limit), name=f"beat of {self._office.name}")
                answer = await self._waited(self._office.call, method, *arguments)
                listening.cancel()
        except BaseExceptionGroup as errors:  # what was raised is raised as what it is
            first = leaves(errors)[0]
            raise first from first.__cause__
        except TimeoutError as error:
            if not limit.expired():
                raise
            deaf = f"host {self._office.name} has heard nothing for {self._limits.deaf_s:g} s, so it counts as lost"
            raise HostLost(deaf) from error
        return answer

    async def _listen(self, limit: asyncio.Timeout) -> None:
        """Put a limit off as long as the office answers.

        consumes      beats
        waits for     the next one
        unblocked by  the office
        """
        while True:
            limit.reschedule(asyncio.get_running_loop().time() + self._limits.deaf_s)
            await self._office.insist(f"{OFFICE}.beat")
            limit.reschedule(None)
            await asyncio.sleep(BEAT_S)

    async def _order(self, method: str, *arguments: object, within_s: float | None = None, **options: object) -> Any:  # noqa: ANN401 -- as above
        """Something that does not wait behind anything."""
        async with self._within(self._start_s + self._limits.hands_s if within_s is None else within_s, method):
            return await self._waited(self._office.control, method, *arguments, **options)

    @asynccontextmanager
    async def _within(self, limit_s: float, what: str) -> AsyncIterator[None]:
        """An office that takes longer counts as lost."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            lost = f"host {self._office.name} did not {what} within {limit_s:g} s, so it counts as lost"
            raise HostLost(lost) from error

    async def _waited(self, send: Send, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """Whoever stops waiting has it given up there."""
        ticket = uuid4().hex
        try:
            return await send(f"{OFFICE}.wait", ticket, self._mode, method, *arguments, **options)
        except asyncio.CancelledError:
            with suppress(HostLost, TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await send(f"{OFFICE}.give_up", ticket)
            raise

    def _look(self, method: str, *arguments: object, within_s: float = LOOK_S) -> Any:  # noqa: ANN401 -- as above
        return self._office.look(f"{OFFICE}.ask", self._mode, method, *arguments, within_s=within_s)


def seats_of(env: EnvManagerConfig, devices: ResourceManager) -> Seats:
    """Of all and only devices that rewards of a mode have."""
    taken = {each.reward_limits.device for each in env.by_tag().values()} - {None}
    if not taken:
        return {}
    assert isinstance(devices, RayResourceManager), "an office is on Ray"
    return {device: devices.options([device], "a reward") for device in taken if device is not None}


def _sent(version: int, weights: "Weights | None") -> "Path | Shipment | None":
    """Weights as every node can get them: into the object store once, unless all nodes see the same folder."""
    if isinstance(weights, Mapping) or (isinstance(weights, Path) and _is_spread()):
        return ship(version, weights)
    return weights


def _is_spread() -> bool:
    """The cluster has more than this machine."""
    nodes: list[object] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has not typed it
    return len(nodes) > 1


async def _opened(handed: Handover | None) -> Handover | None:
    """A batch with its tokens, fetched from where they lie."""
    if handed is None:
        return None
    whole = tuple(await opened(handed.delivery.trajectories))
    return but(handed, delivery=but(handed.delivery, trajectories=whole))
