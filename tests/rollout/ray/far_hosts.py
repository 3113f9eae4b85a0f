"""Ray actors on the clock of a test, and what passes between them, counted.

Nothing heavy is imported here: it is loaded by every process.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.rollout.ray.one_clock import ALIVE, DEAD, A, B, Clock, Page

from windrow.cluster.ray import hosts, wires
from windrow.cluster.ray.hosts import AT_ONCE, CONTROL, CONTROL_AT_ONCE, Host, Remote
from windrow.core.machine import Machine
from windrow.errors import HostLost
from windrow.rollout.ray import parcels, players

SPARE = 4
"""Hosts that are started before anybody needs them: a process takes most of a second to be there."""
LOOK_S = 60.0
"""Real seconds that a look at a host may take."""
MANY_GROUPS = 40
"""As in the kit."""

LEAVE_S = 5.0
clock: Clock
"""Of this process."""


def sit_down(page: Page, seat: int) -> Clock:
    """Be on the clock."""
    global clock  # noqa: PLW0603 -- there is one in each process
    clock = Clock(page, seat)
    return clock


# what is sent, counted


class Waiting:
    """A call whose answer is on its way."""

    def __init__(self, seat: int) -> None:
        self.seat = seat
        self.future: asyncio.Future[None] | None = None


calls: dict[Any, Waiting] = {}
"""By reference: all and only those that were not answered."""


class Handle:
    """A Ray actor, on the clock."""

    def __init__(self, actor: Any, seat: int) -> None:
        self.actor = actor
        self.seat = seat

    def __getattr__(self, method: str) -> "Method":
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self, method)

    def __reduce__(self) -> Any:
        return Handle, (self.actor, self.seat)


class Method:
    """A method of it; whoever calls says who it is."""

    def __init__(self, handle: Handle, name: str, **options: Any) -> None:
        self._handle = handle
        self._name = name
        self._options = options

    def options(self, **options: Any) -> "Method":
        return Method(self._handle, self._name, **options)

    def remote(self, *given: Any) -> Any:
        seat = self._handle.seat
        clock.add("sent", (clock.seat, seat))
        method = getattr(self._handle.actor, self._name).options(**self._options)
        found = method.remote(*given, caller=clock.seat)
        first = found[0] if isinstance(found, list) else found
        calls[first] = Waiting(seat)
        first.future().add_done_callback(partial(_answered, first, clock))
        return found


def _answered(ref: Any, mine: Clock, _: Any) -> None:
    """In a thread of Ray: an answer is here; it counts when whoever waits for it is told."""
    call = calls[ref]
    if call.future is None:
        _told(ref, mine)
        return
    try:
        call.future.get_loop().call_soon_threadsafe(_told, ref, mine)
    except RuntimeError:  # the event loop is closed
        _told(ref, mine)


def _told(ref: Any, mine: Clock) -> None:
    call = calls.pop(ref)
    mine.add("heard", (mine.seat, call.seat))
    if call.future is not None and not call.future.done():
        call.future.set_result(None)


async def fetched(ref: Any) -> Any:
    """What a reference stands for; time does not pass while it is on its way."""
    call = calls.get(ref)
    if call is None:
        with clock.working():
            return await ref
    call.future = asyncio.get_running_loop().create_future()
    await call.future
    with clock.working():
        return await ref


class Cable(wires.Cable):
    """One end of a wire, counted."""

    def __init__(self, sock: Any, meet: Any) -> None:
        self.number = -1
        self.end_of = B
        super().__init__(sock, meet)

    def send_bytes(self, data: bytes) -> None:
        if self.number < 0:  # the first word of whoever called
            self.number, self.end_of = clock.wire(), A
            self._pick_up()
            data += self.number.to_bytes(4, "big")
        clock.page.said[self.number, self.end_of] += 1
        super().send_bytes(data)

    def close(self) -> None:
        super().close()
        self._hang_up()

    def _pick_up(self) -> None:
        clock.page.whose[self.number, self.end_of] = clock.seat
        clock.page.up[self.number, self.end_of] = 1

    def _hang_up(self) -> None:
        if self.number >= 0:
            clock.page.up[self.number, self.end_of] = 0

    def _hear(self, data: bytes) -> None:
        if self.number < 0:
            data, number = data[:-4], data[-4:]
            self.number = int.from_bytes(number, "big")
            self._pick_up()
        clock.page.taken[self.number, 1 - self.end_of] += 1
        super()._hear(data)

    def _end(self, why: str) -> None:
        self._hang_up()
        super()._end(why)


class FarHost(Host):
    """A host on the clock."""

    async def enter(self, page: Path, seat: int, given: Sequence[Any]) -> None:
        """Take part in a test."""
        sit_down(Page(page), seat)
        loop: Any = asyncio.get_running_loop()
        self._others = asyncio.all_tasks() - {asyncio.current_task()}
        self._files = {*loop._selector.get_map()}
        self._patch = pytest.MonkeyPatch()
        install(self._patch)
        spares[:] = given
        dismissed.clear()
        pool.spare = 0  # that is for the test itself to do
        clock.govern(loop)

    async def leave(self) -> list[Any] | None:
        """The test is over: forget everything, for the next one; returns hosts that can be used again with it.

        None if something here does not end.
        """
        loop: Any = asyncio.get_running_loop()
        clock.let_go(loop)
        returned = spares.copy()
        for actor, left in dismissed:
            if await left is None:
                ray.kill(actor)
            else:
                returned.append(actor)
        tasks = asyncio.all_tasks() - {asyncio.current_task()} - self._others
        for task in tasks:
            task.cancel()
        if tasks and (await asyncio.wait(tasks, timeout=LEAVE_S))[1]:
            return None
        for key in [*loop._selector.get_map().values()]:
            if key.fd not in self._files:
                loop.remove_reader(key.fd)
                loop.remove_writer(key.fd)
        self._patch.undo()
        self._things.clear()
        calls.clear()
        return returned

    async def see(self, thing: str, look: Callable[[Any], Any], caller: int) -> Any:
        """Look at something as it is."""
        with _counted(caller):
            return look(self._things.get(thing))

    async def call(self, path: str, arguments: Any, options: Any, caller: int | None = None) -> Any:
        with _counted(caller):
            return await super().call(path, arguments, options)

    @ray.method(concurrency_group=CONTROL)
    async def control(self, path: str, arguments: Any, options: Any, caller: int | None = None) -> Any:
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(self.call(path, arguments, options, caller), self._loop)
        return await asyncio.wrap_future(asked)

    async def attach(self, name: str, make: Any, *arguments: object, caller: int | None = None) -> None:
        with _counted(caller):
            await super().attach(name, make, *arguments)

    async def attach_beside(
        self, name: str, other: str, make: Any, *arguments: object, caller: int | None = None
    ) -> None:
        with _counted(caller):
            await super().attach_beside(name, other, make, *arguments)

    async def stay(self, caller: int | None = None) -> None:
        with _counted(caller):
            await super().stay()


@contextmanager
def _counted(caller: int | None) -> Iterator[None]:
    if caller is None:
        yield
        return
    clock.add("begun", (caller, clock.seat))
    try:
        yield
    finally:
        clock.add("answered", (caller, clock.seat))


def _kill(remote: Remote) -> None:
    clock.page.state[remote.handle.seat] = DEAD
    ray.kill(remote.handle.actor)


class Player(Remote):
    """A host of somebody who plays; when that is over it is used again."""

    def kill(self) -> None:
        """Have it leave."""
        clock.page.state[self.handle.seat] = DEAD
        dismissed.append((self.handle.actor, self.handle.actor.leave.remote()))


# hosts that are there before they are needed


def _actor() -> Any:
    made: Any = ray.remote(  # type: ignore[call-overload]  # it knows more options than its types
        concurrency_groups={CONTROL: CONTROL_AT_ONCE}, max_concurrency=AT_ONCE
    )(FarHost)
    return made.options(num_cpus=0, max_restarts=0).remote()


class Pool:
    """Hosts that wait."""

    def __init__(self) -> None:
        self.spare = SPARE
        self._waiting: deque[Any] = deque()

    def take(self) -> Any:
        """One that waits."""
        while len(self._waiting) <= self.spare:
            self._waiting.append(_actor())
        return self._waiting.popleft()

    def give_back(self, remotes: Sequence[Remote]) -> None:
        """The test is over for these."""
        alive = [remote.handle for remote in remotes if clock.page.state[remote.handle.seat] == ALIVE]
        for handle in alive:
            clock.page.state[handle.seat] = DEAD
        left = ray.get([handle.actor.leave.remote() for handle in alive], timeout=LOOK_S)
        for handle, returned in zip(alive, left, strict=True):
            if returned is None:
                ray.kill(handle.actor)
            else:
                self._waiting.extendleft([handle.actor, *returned])


pool = Pool()
spares: list[Any] = []
"""In an office: hosts for those who play, which nobody has taken."""
dismissed: list[tuple[Any, Any]] = []
"""In an office: hosts of those who have played, and what they say when they have left the test."""


def start(name: str, **_: object) -> Remote:
    """A host, in place of `hosts.start`."""
    is_player = bool(spares)
    actor = spares.pop() if spares else pool.take()
    seat = clock.page.seat()
    own = [pool.take(), pool.take()] if name.endswith("-office") else []  # for those who play
    ray.get(actor.enter.remote(clock.page.path, seat, own), timeout=LOOK_S)  # before anything else
    kind = Player if is_player else Remote
    return kind(name, Handle(actor, seat))


def install(patch: pytest.MonkeyPatch) -> None:
    """Have everything in this process go over the clock."""
    patch.setattr(hosts, "start", start)
    patch.setattr(players, "start", start)
    patch.setattr(hosts, "fetched", fetched)
    patch.setattr(parcels, "fetched", fetched)
    patch.setattr(Remote, "kill", _kill)
    patch.setattr(wires, "Cable", Cable)
    patch.setattr(os, "nice", int)  # or they would be nicer than the test
    plain = Machine.step

    def step(machine: Machine, *given: Any) -> Any:
        commands = plain(machine, *given)
        if len(machine._books.groups) <= MANY_GROUPS:
            machine.check()
        return commands

    patch.setattr(Machine, "step", step)


def see(remote: Remote, thing: str, look: Callable[[Any], Any]) -> Any:
    """Look at a thing in a host."""
    if not is_alive(remote):
        raise HostLost(f"host {remote.name} was killed")
    return ray.get(remote.handle.see.remote(thing, look), timeout=LOOK_S)


def is_alive(remote: Remote) -> bool:
    """Nobody has killed it."""
    return bool(clock.page.state[remote.handle.seat] == ALIVE)
