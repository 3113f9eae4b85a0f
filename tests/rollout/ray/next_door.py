"""Hosts next door: the whole Ray path on virtual time, in one process.

```
Remote ── handle.call.remote(…) ── Sealed ── a task of the host's own ── Host.call(…) ── Sealed ── await ref
  real         Handle, Method       copied        on this event loop        real          copied      Ref

Line ── wire.send(…) ── Sealed ── Cord ── Client.take(…)
real                    copied               real
```

Real are `start`, `Remote`, `Host`, `RayStaff` and everything above them: offices, players, mail, parcels, engines. What
stands for Ray are handles and references, and the few functions of `ray` that those call; for wires, cords.

Promises
- A call begins at a later turn of the event loop than the one that sent it, and so does its answer; it costs no virtual
  time. Whoever stops waiting for an answer does not end the call. What is said on a cord is heard in a later turn, in
  order.
- What travels is copied when it is sent and again whenever it is fetched, and arrays come out read-only, as from Ray's
  object store. Not copied are functions, classes, and objects whose classes are tests' own, because a test looks at
  them afterwards: environments' logs, scripts, rewards, sources, rigs.
- What a host raises comes as Ray's `RayTaskError`, with a copy of the error. When a host is killed, all calls that it
  has not answered and all that come later end with Ray's `ActorDiedError`, all its tasks are cancelled, and its cords
  are cut.

What it does not do: a killed host's tasks still run to their end, as cancelled ones do; they can call nobody. `ray.get`
does not wait: a call that has not begun is made in place, and must not wait for anything (see `_at_once`).
"""

import asyncio
import gc
import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import cache
from itertools import count
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import cloudpickle
import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError
from tests.rollout.kit import Here
from tests.rollout.toys import Watched

from windrow.cluster.local import Cluster, ResourceManager
from windrow.cluster.ray.hosts import Host, Remote
from windrow.cluster.ray.staff import RayStaff
from windrow.cluster.ray.wires import Address, Meet, Party
from windrow.cluster.worker import Runtime, Seat
from windrow.engines.buckets import Shipment, ship
from windrow.errors import InternalError
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.ray import engines, offices
from windrow.rollout.ray.engines import ENGINE
from windrow.rollout.ray.offices import OFFICE, Office, RemoteTenancy
from windrow.rollout.ray.players import GUEST, StandIn
from windrow.rollout.scheduler import RolloutScheduler
from windrow.rollout.virtual_time import run

W = TypeVar("W")

gc.freeze()  # what was imported is no garbage, as in the kit

NODE = "ab" * 28
AFTERWARDS_S = 15.0
"""In which what was told of an end comes to its own; virtual time costs nothing."""

IN: ContextVar["Handle | None"] = ContextVar("host", default=None)
"""The host whose code runs."""
OWNERS: WeakKeyDictionary["asyncio.Task[Any]", "Handle"] = WeakKeyDictionary()
"""All and only the tasks that were begun in a host."""


class Sealed:
    """Something on its way to another process."""

    def __init__(self, thing: object) -> None:
        self._shared: list[object] = []
        self._arrays: list[bytes] = []
        into = io.BytesIO()
        _Pickler(into, self._shared, self._arrays).dump(thing)
        self._data = into.getvalue()

    def opened(self) -> Any:
        """A copy."""
        return _Unpickler(io.BytesIO(self._data), self._shared, self._arrays).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, into: io.BytesIO, shared: list[object], arrays: list[bytes]) -> None:
        super().__init__(into, protocol=5, buffer_callback=lambda buffer: arrays.append(buffer.raw().tobytes()))
        self._shared = shared

    def persistent_id(self, thing: object) -> int | None:
        kind = type(thing)
        if not _are_shared(kind):  # type: ignore[arg-type]  # classes can be hashed
            return None
        self._shared.append(thing)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):  # noqa: S301 -- of what was pickled here
    def __init__(self, data: io.BytesIO, shared: Sequence[object], arrays: Sequence[bytes]) -> None:
        super().__init__(data, buffers=arrays)
        self._shared = shared

    def persistent_load(self, place: int) -> object:
        return self._shared[place]


@cache
def _are_shared(kind: type[Any]) -> bool:
    """Things of this kind mean the same in all processes, or a test looks at them afterwards."""
    if issubclass(kind, type | FunctionType | Handle | Ref):
        return True
    return kind.__module__.startswith("tests.") and not issubclass(kind, BaseException)


class Ref:
    """What a call returns, or will return: a copy for everybody who asks."""

    def __init__(self, call: "Call | None" = None, said: "Sealed | RayError | None" = None) -> None:
        self._call = call
        self._said = said
        self._waiting: list[asyncio.Future[None]] = []

    def settle(self, said: Sealed | RayError) -> None:
        self._said = said
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def value(self) -> Any:
        """What `ray.get` gives."""
        if self._said is None and self._call is not None:
            self._call.make_at_once()
        if self._said is None:
            raise GetTimeoutError("it takes longer than anybody next door waits")
        if isinstance(self._said, RayTaskError):
            raise self._said.as_instanceof_cause()
        if isinstance(self._said, RayError):
            raise self._said
        return self._said.opened()

    def future(self) -> "Future[Any]":
        made: Future[Any] = Future()
        try:
            made.set_result(self.value())
        except RayError as error:
            made.set_exception(error)
        return made

    def __await__(self) -> Any:
        if _is_at_once:
            return self.value()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if self._said is None:
            self._waiting.append(turn)
        else:
            loop.call_soon(_wake, turn)
        yield from turn
        return self.value()


def _wake(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


class Call:
    """A call of a host."""

    def __init__(self, handle: "Handle", method: str, given: tuple[object, ...], returns: int) -> None:
        self.refs = [Ref(self) for _ in range(returns)]
        self._handle = handle
        self._method = method
        self._given: Sealed | None = Sealed(given)  # until it has begun
        self._task: asyncio.Task[Any] | None = None  # once it has; an event loop holds its tasks loosely
        handle.calls.add(self)
        if _has_loop():
            asyncio.get_running_loop().call_soon(self._begin, context=Context())

    def make_at_once(self) -> None:
        """Make it in place, if it has not begun."""
        if self._given is not None:
            given, self._given = self._given.opened(), None
            self._settle_from(lambda: _at_once(self._handle, self._method, given))

    def lose(self) -> None:
        """Its host is gone."""
        self._given = None
        self._say([ActorDiedError()] * len(self.refs))

    def _begin(self) -> None:
        if self._given is None:
            return
        given, self._given = self._given.opened(), None
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_born)
        IN.set(self._handle)
        work = getattr(self._handle.host, self._method)(*given)
        self._task = loop.create_task(work, name=" ".join(map(str, (self._method, *given[:1])))[:80])
        self._task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            self._settle_from(_raise_cancelled)
        else:
            self._settle_from(task.result)

    def _settle_from(self, result: Callable[[], Any]) -> None:
        try:
            found = result()
            self._say([Sealed(found)] if len(self.refs) == 1 else [Sealed(each) for each in found])
        except BaseException as error:  # noqa: BLE001 -- whoever waits is told
            said = "".join(traceback.format_exception(error))
            cause = Sealed(error).opened()
            self._say([RayTaskError(self._method, said, cause, "next door", 1, "next door")] * len(self.refs))

    def _say(self, said: "Sequence[Sealed | RayError]") -> None:
        if self in self._handle.calls:
            self._handle.calls.remove(self)
            for ref, each in zip(self.refs, said, strict=True):
                ref.settle(each)


def _raise_cancelled() -> None:
    raise asyncio.CancelledError


def _born(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: Context | None = None,
) -> "asyncio.Task[Any]":
    """A task that belongs to the host whose code begins it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    handle = IN.get()
    if handle is not None:
        OWNERS[task] = handle
    return task


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_is_at_once = False  # a call is made in place


def _at_once(handle: "Handle", method: str, given: tuple[Any, ...]) -> Any:
    """Make a call without giving up control, for whoever cannot await."""
    global _is_at_once  # noqa: PLW0603 -- there is one event loop
    if method == "control":
        method = "call"  # its way leads through other turns of the event loop
    if given[0] == f"{OFFICE}.ask" and given[1][1] == "survey":
        given = _looked_at_everybody(handle.host, *given)
    work = getattr(handle.host, method)(*given)
    if not _has_loop():
        return run(work)
    context = Context()
    context.run(IN.set, handle)
    _is_at_once = True
    try:
        context.run(work.send, None)
    except StopIteration as end:
        return end.value
    finally:
        _is_at_once = False
        work.close()
    raise InternalError(f"a host cannot do this without waiting: {method} {given!r:.100}")


def _looked_at_everybody(host: Host, path: str, asked: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """A survey without its waiting: look at all players now, then ask for the status."""
    mode = asked[0]
    for one in host._things[OFFICE]._places[mode]._everybody():
        if isinstance(one, StandIn) and one._host is not None:
            one._seen = Sealed(_thing(one._host, GUEST).sightings()).opened()
    return path, (mode, "status"), options


class Handle:
    """What Ray gives for an actor."""

    def __init__(self) -> None:
        self.host = Host()
        self.calls: set[Call] = set()  # all and only those that have no answer
        self.cords: list[Cord] = []
        self.is_dead = False

    def __getattr__(self, method: str) -> "Method":
        return Method(self, method)

    def kill(self) -> None:
        self.is_dead = True
        for call in [*self.calls]:
            call.lose()
        for cord in self.cords:
            cord.close()
        for task in asyncio.all_tasks() if _has_loop() else ():
            if OWNERS.get(task) is self:
                task.cancel()


class Method:
    """A method of an actor."""

    def __init__(self, handle: Handle, name: str, num_returns: int = 1) -> None:
        self._handle = handle
        self._name = name
        self._returns = num_returns

    def options(self, *, num_returns: int) -> "Method":
        return Method(self._handle, self._name, num_returns)

    def remote(self, *given: object) -> Any:
        caller = IN.get()
        if self._handle.is_dead or (caller is not None and caller.is_dead):
            refs = [Ref(said=ActorDiedError()) for _ in range(self._returns)]
        else:
            refs = Call(self._handle, self._name, given, self._returns).refs
        return refs[0] if self._returns == 1 else refs


class Cord:
    """One end of what stands for a wire."""

    def __init__(self, owner: "Handle | None") -> None:
        self.party: Party
        self.other: Cord
        self._is_open = True
        self._context = Context()  # what is begun at this end is begun by its host
        self._context.run(IN.set, owner)
        if owner is not None:
            owner.cords.append(self)

    def send(self, message: object) -> None:
        if self._is_open:
            _soon(self.other.hear, Sealed(message))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _soon(self.other.cut)

    def snap(self) -> bool:
        """Break in the middle: both ends hear of it."""
        was_open = self._is_open
        if was_open:
            _soon(self.cut)
            _soon(self.other.cut)
        return was_open

    def hear(self, message: Sealed) -> None:
        if self._is_open:
            self._context.run(self.party.take, message.opened())

    def cut(self) -> None:
        if self._is_open:
            self._is_open = False
            self._context.run(self.party.end, "it was cut")


def _soon(what: Callable[..., None], *given: object) -> None:
    if _has_loop():  # or nobody is there to hear it
        asyncio.get_running_loop().call_soon(what, *given)


class Bell:
    """Where cords begin, in a host."""

    def __init__(self, meet: Meet, host: str) -> None:
        self.owner = IN.get()
        self.meet = meet
        number = next(NUMBERS)
        self.address = Address(host, number, str(number).encode())
        BELLS[self.address.key] = self

    def close(self) -> None:
        BELLS.pop(self.address.key, None)
        for cord in [] if self.owner is None else self.owner.cords:
            cord.close()


NUMBERS = count()
BELLS: dict[bytes, Bell] = {}
"""All and only those that may be rung."""


async def _ring(address: Address, party: Party) -> Cord:
    bell = BELLS.get(address.key)
    if bell is None or bell.owner is None or bell.owner.is_dead:
        raise ConnectionRefusedError("nobody is at home")
    here, there = Cord(IN.get()), Cord(bell.owner)
    here.other, there.other = there, here
    here.party = party
    there.party = there._context.run(bell.meet, there)
    return here


class Actor:
    """What Ray makes of a class."""

    def __init__(self, made_from: type) -> None:
        assert made_from is Host

    def options(self, **_: object) -> "Actor":
        return self

    def remote(self) -> Handle:
        return Handle()


def _remote(**_: object) -> Callable[[type], Actor]:
    return Actor


def _get(ref: Ref | list[Ref], timeout: float | None = None) -> Any:
    return [each.value() for each in ref] if isinstance(ref, list) else ref.value()


def _ship(version: int, weights: Mapping[str, Any]) -> Shipment:
    """Tests give numbers where trainers give tensors."""
    return ship(version, {name: torch.as_tensor(each) for name, each in weights.items()})


class Rooms(ResourceManager):
    """Devices whose workers are next door."""

    runtime: Runtime = "ray"

    def options(self, devices: Sequence[int], worker: str = "a worker") -> dict[str, Any]:
        return {}

    def staff(self, make: Callable[..., W], seats: Sequence[Seat[Any]]) -> RayStaff[W]:
        return RayStaff(make, seats, self)  # type: ignore[arg-type]  # all that it needs


class NextDoor(Here):
    """Engines, queue and players are in hosts."""

    devices = Rooms
    turns = 2
    buries = True

    def engines(self, cluster: Cluster[Any, Any]) -> list[Watched]:
        workers = [_thing(host, ENGINE) for host in cluster.hosts.values()]
        return [worker for worker in workers if isinstance(worker, Watched)]

    def queue(self, scheduler: RolloutScheduler) -> GroupQueueManager | None:
        place = scheduler._place
        assert isinstance(place, RemoteTenancy)
        office: Office = _thing(place._office, OFFICE)
        return office._places[scheduler.mode].queue

    def players(self, scheduler: RolloutScheduler) -> list[Remote]:
        """The hosts of those who play for a scheduler."""
        place = scheduler._place
        assert isinstance(place, RemoteTenancy)
        players = _thing(place._office, OFFICE)._places[scheduler.mode].players
        return [player._host for player in players if player._host is not None]

    def cut(self, host: Remote, *, for_good: bool = False) -> int:
        """Cut the cords that come in at a host, as if both ends had done it; how many there were."""
        bell: Bell = next(each for each in BELLS.values() if each.owner is host.handle)
        if for_good:
            del BELLS[bell.address.key]
        return sum(cord.snap() for cord in [*host.handle.cords])

    def tasks(self) -> "set[asyncio.Task[Any]]":
        return {task for task in super().tasks() if task not in OWNERS}

    async def end(self, cluster: Cluster[Any, Any]) -> None:
        await asyncio.sleep(AFTERWARDS_S)
        cluster.shutdown()
        orphaned = [task for task in asyncio.all_tasks() if task in OWNERS and OWNERS[task].is_dead]
        if orphaned:
            await asyncio.wait(orphaned)


def _thing(remote: Remote, name: str) -> Any:
    return remote.handle.host._things[name]


@contextmanager
def next_door() -> Iterator[NextDoor]:
    """Inside, hosts that are started are next door."""
    switch_s = sys.getswitchinterval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "remote", _remote)
        patch.setattr(ray, "get", _get)
        patch.setattr(ray, "put", lambda thing: Ref(said=Sealed(thing)))
        patch.setattr(ray, "kill", Handle.kill)
        patch.setattr(ray, "nodes", lambda: [NODE])
        patch.setattr(ray, "is_initialized", lambda: True)
        patch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: NODE))
        patch.setattr(offices, "ship", _ship)
        patch.setattr(engines, "listen", Bell)
        patch.setattr(engines, "connect", _ring)
        patch.setattr(engines, "own_address", lambda _: "next door")
        patch.setattr(os, "nice", int)  # there is one process, and it is ours
        patch.setattr(gc, "freeze", lambda: None)  # what earlier tests left behind is to be collected
        BELLS.clear()
        yield NextDoor()
    sys.setswitchinterval(switch_s)
