"""Where environments are played: on the event loop, in a thread of their own, or in a process of their own.

Promises: the same environment does the same in all three, as far as whoever plays it can see; what differs is what it
can do to others.

| isolation | while it blocks | if it never comes back | if it crashes or exhausts its memory |
| --- | --- | --- | --- |
| `inline` | everything stands still | everything stands still, for ever | so does everything |
| `thread` | nothing else is held up | the thread is left behind, and counted | so does everything |
| `process` | nothing else is held up | it is killed, with everything below it | one episode fails, with its traceback |

A call is given up by cancelling it, which is how deadlines come; a process is killed in that moment, however the
environment feels about it. `deadline()` says the same inside as outside.

A process keeps accidents apart, not attacks: what an environment returns is unpickled here, so its classes are trusted
with code that runs here. Programs that nobody can vouch for belong into the sandbox (`windrow.sandbox`).

For a process the factory, the tasks and everything that the environment returns must be picklable (`isolation.pickles`:
lambdas and classes of a script are); threads and processes need an event loop on the real clock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Generic, Protocol, TypeVar, assert_never

from windrow.envs.protocol import DEADLINE, Env, EnvFactory, Isolation, Observation, Step
from windrow.errors import ConfigError, EnvError, blame
from windrow.isolation.clock import on_the_real_clock
from windrow.isolation.host import Host
from windrow.isolation.hosts import Hosts
from windrow.isolation.settings import HostSettings
from windrow.isolation.threads import ThreadHost, Threads, ThreadSettings
from windrow.trajectory import Task
from windrow.types import Meta, Value, checked

DYING_S = 0.5
"""How long closing an environment waits for a process that was killed; on a busy machine it may take longer to die."""


class PlaceSettings(Value, frozen=True, kw_only=True):
    """How the environments of one kind are kept apart from the rest."""

    name: str
    """For messages."""
    isolation: Isolation = "inline"
    reusable: bool = False
    """Its process may be used for another episode, with another object in it."""
    ahead: Annotated[int, Meta(ge=0)] = 2
    """Processes kept ready before they are needed."""
    memory_mb: Annotated[int, Meta(ge=1)] | None = None
    """What one process may have beyond what it began with; shared memory does not count, and stays if it is killed."""
    preload: tuple[str, ...] = ()
    """Modules that the environment imports late: imported once for all processes instead of once in each."""


class Place(Protocol):
    """Where the environments of one kind are played."""

    def make(self) -> Env:
        """An environment for one episode; whatever takes time happens when it is started."""
        ...

    async def close(self) -> None:
        """When it returns nothing that was started here is left, except threads that never end."""
        ...


def open_place(make: EnvFactory, settings: PlaceSettings) -> Place:
    """A place for the environments that `make` makes; inside a running event loop it gets ready at once."""
    name = f"environment {settings.name!r}"
    with blame(ConfigError, name):
        checked(settings)
    guest = partial(_Guest, make)
    match settings.isolation:
        case "inline":
            return _Inline(make)
        case "thread":
            return _InThreads(Threads(guest, ThreadSettings(name=name, error=EnvError)))
        case "process":
            hosts = HostSettings(
                name=name,
                error=EnvError,
                reuse="process" if settings.reusable else "never",
                ahead=settings.ahead,
                memory_mb=settings.memory_mb,
                preload=("windrow.trajectory", *settings.preload),
            )
            return _InProcesses(Hosts(guest, hosts))
        case _:
            assert_never(settings.isolation)


class _Guest:
    """An environment where it lives: each call comes with its deadline."""

    def __init__(self, make: EnvFactory) -> None:
        self._env = make()

    async def start(self, deadline: float | None, task: Task) -> Observation:
        DEADLINE.set(deadline)
        return await self._env.start(task)

    async def step(self, deadline: float | None, action: str) -> Step:
        DEADLINE.set(deadline)
        return await self._env.step(action)

    async def close(self, deadline: float | None) -> None:
        DEADLINE.set(deadline)
        await self._env.close()


class _Inline:
    def __init__(self, make: EnvFactory) -> None:
        self._make = make

    def make(self) -> Env:
        return self._make()

    async def close(self) -> None:
        pass


class _InThreads:
    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        if _in_a_loop():
            on_the_real_clock(threads.settings.name)

    def make(self) -> Env:
        return _Away(self._take, self._leave)

    async def close(self) -> None:
        await self.threads.close()

    async def _take(self) -> ThreadHost:
        return self.threads.take()

    async def _leave(self, host: ThreadHost) -> None:
        try:
            await host.call_last("close", DEADLINE.get())
        finally:
            self.threads.give_back(host)


class _InProcesses:
    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        if _in_a_loop():
            hosts.open()

    def make(self) -> Env:
        return _Away(self.hosts.take, self._leave)

    async def close(self) -> None:
        await self.hosts.close()

    async def _leave(self, host: Host) -> None:
        try:
            if host.is_alive:
                await host.call("close", DEADLINE.get())
            else:
                await _died(host)
        finally:
            self.hosts.give_back(host)


class _Called(Protocol):
    """A thread or a process with a guest in it."""

    async def call(self, method: str, *args: object) -> Any: ...  # noqa: ANN401 -- whatever the method returns


H = TypeVar("H", bound=_Called)


class _Away(Generic[H]):
    """An environment as seen from outside the thread or the process that it lives in."""

    def __init__(self, take: Callable[[], Awaitable[H]], leave: Callable[[H], Awaitable[None]]) -> None:
        self._take = take
        self._leave = leave
        self._host: H | None = None  # between the start and the end

    async def start(self, task: Task) -> Observation:
        self._host = await self._take()
        observation: Observation = await self._host.call("start", DEADLINE.get(), task)
        return observation

    async def step(self, action: str) -> Step:
        if self._host is None:
            raise EnvError("an environment is played that was not started, or closed already; start it first")
        step: Step = await self._host.call("step", DEADLINE.get(), action)
        return step

    async def close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await self._leave(host)


async def _died(host: Host) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DYING_S):
            await host.gone()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
