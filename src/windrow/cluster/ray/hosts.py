"""Hosts: Ray actors that hold whatever is put into them.

```
caller                             host, a process somewhere
  Remote ── call(path) ──────────── its event loop   ── things["queue"].status()
         ── control(path) ───────── a way of its own, then the same event loop
         ── work(path) ──────────── its thread, one after the other
```

Promises
- `call` runs on the host's one event loop, together with everything else there; `work` on one thread beside it, one
  call after the other, so that what blocks does not make the host deaf; `control` does not wait behind calls that came
  before it.
- What a thing raises is raised here as what it is. A host that is gone is a `HostLost`, at once. One that cannot be
  reached for a moment is asked again by `insist`, for whatever may be done twice; to everybody else it is lost.
- A `Remote` can be sent to other processes, and means the same host there.
- A host ends with whoever started it.

What it does not do: it knows nothing of what it holds.
"""

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from windrow.errors import HostLost, HostOutOfReach, InternalError

CONTROL = "control"
AT_ONCE = 10_000
"""Calls that may wait in a host at the same time; most of them wait for something to happen."""
CONTROL_AT_ONCE = 64
PAUSES_S = (0.5, 2.0, 5.0)
"""Before a host that could not be reached is asked again."""
SWITCH_S = 0.001
"""How long a thread of a host may compute while another one wants to; what a control call waits for, several times."""

Given = tuple[tuple[object, ...], Mapping[str, object]]
"""Arguments and options of a call."""


class Host:
    """Holds things, in a process of its own."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._things: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windrow-work")

    async def attach(self, name: str, make: Callable[..., Any], *arguments: object) -> None:
        """Put something in, unless something of this name is there."""
        self._loop = asyncio.get_running_loop()
        if name not in self._things:
            self._things[name] = make(*arguments)
            gc.freeze()  # what was loaded for it is no garbage; to look through it takes a tenth of a second

    async def attach_beside(self, name: str, other: str, make: Callable[..., Any], *arguments: object) -> None:
        """Put in something that is made of what is there already."""
        await self.attach(name, make, self._things[other], *arguments)

    async def call(self, path: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Any:  # noqa: ANN401 -- whatever it is
        """Call, or look at, what the path leads to."""
        found = self._found(path)
        result = found(*arguments, **options) if callable(found) else found
        return await result if inspect.isawaitable(result) else result

    @ray.method(concurrency_group=CONTROL)
    async def control(self, path: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Any:  # noqa: ANN401 -- as above
        """The same, not behind other calls: Ray gives it an event loop of its own, from which it goes to ours."""
        if self._loop is None:
            raise InternalError("nothing was put into this host yet")
        asked = asyncio.run_coroutine_threadsafe(self.call(path, arguments, options), self._loop)
        return await asyncio.wrap_future(asked)

    async def work(self, path: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Any:  # noqa: ANN401 -- as above
        """The same, on the host's thread."""
        found = self._found(path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(found, *arguments, **options))

    async def dispatch(self, path: str, given: "Given", wanted: bool) -> Any:  # noqa: ANN401, FBT001 -- as above; Ray's calls
        """`call` for what awaits, `work` for what blocks; an answer that nobody wants does not travel."""
        do = self.call if inspect.iscoroutinefunction(self._found(path)) else self.work
        answer = await do(path, *given)
        return answer if wanted else None

    async def stay(self) -> None:
        """Never answers: whoever waits for it waits for the end of this host."""
        await asyncio.get_running_loop().create_future()

    def _found(self, path: str) -> Any:  # noqa: ANN401 -- as above
        name, _, rest = path.partition(".")
        if name not in self._things:
            raise InternalError(f"this host holds no {name!r}; it has {[*self._things]}")
        return attrgetter(rest)(self._things[name])


class Remote:
    """A host, as others see it."""

    def __init__(self, name: str, handle: Any) -> None:  # noqa: ANN401 -- Ray's handles have no type
        self.name = name
        self.handle = handle

    async def attach(self, thing: str, make: Callable[..., object], *arguments: object) -> None:
        """Have it hold something; the second time does nothing."""
        await self.answered(self.handle.attach.remote(thing, make, *arguments))

    async def attach_beside(self, thing: str, other: str, make: Callable[..., object], *arguments: object) -> None:
        """Have it hold something that is made of another thing there; the second time does nothing."""
        await self.answered(self.handle.attach_beside.remote(thing, other, make, *arguments))

    async def call(self, path: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever it is
        """Call something there, on its event loop."""
        return await self.answered(self.handle.call.remote(path, arguments, options))

    async def control(self, path: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """The same, not behind other calls."""
        return await self.answered(self.handle.control.remote(path, arguments, options))

    async def insist(self, path: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """`control` for what may be done twice: asks again when the host could not be reached for a moment."""
        for pause_s in PAUSES_S:
            try:
                return await self.control(path, *arguments, **options)
            except HostOutOfReach:
                await asyncio.sleep(pause_s)
        return await self.control(path, *arguments, **options)

    def call_for_two(self, path: str, *arguments: object) -> tuple[Any, Any]:
        """References to both parts of what a call will return: the second one need not be fetched to have the first."""
        first, second = self.handle.call.options(num_returns=2).remote(path, arguments, {})
        return first, second

    def look(self, path: str, *arguments: object, within_s: float) -> Any:  # noqa: ANN401 -- as above
        """The same for whoever cannot await."""
        try:
            return ray.get(self.handle.control.remote(path, arguments, {}), timeout=within_s)
        except RayError as error:
            raise self.meant(error) from error

    def ask(self, path: str, *arguments: object, **options: object) -> "Asked":
        """Have its thread do something; returns at once."""
        return Asked(self, self.handle.work.remote(path, arguments, options))

    def put(self, thing: str, make: Callable[..., object], *arguments: object) -> "Asked":
        """`attach` for whoever cannot await; returns at once."""
        return Asked(self, self.handle.attach.remote(thing, make, *arguments))

    def dispatch(self, path: str, given: Any, *, wanted: bool) -> "Asked":  # noqa: ANN401 -- `Given`, or a reference to it
        """Have it do something on its thread, or on its event loop if that is what it is for; returns at once."""
        return Asked(self, self.handle.dispatch.remote(path, given, wanted))

    def kill(self) -> None:
        """End its process at once."""
        ray.kill(self.handle)

    def staying(self) -> "Asked":
        """Has no answer but its end: a `HostLost`."""
        return Asked(self, self.handle.stay.remote())

    async def answered(self, ref: Any) -> Any:  # noqa: ANN401 -- as above
        """What a reference of Ray stands for."""
        try:
            return await fetched(ref)
        except RayError as error:
            raise self.meant(error) from error

    def meant(self, error: RayError) -> BaseException:
        """What an error of Ray means to us."""
        if isinstance(error, RayTaskError):
            return error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, ActorUnavailableError):
            return HostOutOfReach(f"host {self.name} cannot be reached: {_in_short(error)}")
        if isinstance(error, RayActorError):
            return HostLost(f"host {self.name} is gone: {_in_short(error)}")
        if isinstance(error, GetTimeoutError):
            return TimeoutError(f"host {self.name} did not answer in time")
        return error


class Asked:
    """Something that a host's thread does."""

    def __init__(self, remote: Remote, ref: Any) -> None:  # noqa: ANN401 -- Ray's references have no type
        self.ref = ref
        self._remote = remote

    def answer(self, within_s: float) -> Any:  # noqa: ANN401 -- whatever it is
        """Wait for it."""
        try:
            return ray.get(self.ref, timeout=within_s)
        except RayError as error:
            raise self._remote.meant(error) from error

    def future(self) -> "Future[Any]":
        """The same, for whoever waits for several at once."""
        made: Future[Any] = Future()
        self.ref.future().add_done_callback(partial(self._tell, made))
        return made

    def _tell(self, made: "Future[Any]", told: "Future[Any]") -> None:
        error = told.exception()
        if error is None:
            made.set_result(told.result())
        else:
            made.set_exception(self._said(error))

    def _said(self, error: BaseException) -> BaseException:
        if not isinstance(error, RayError):
            return error
        meant = self._remote.meant(error)
        if meant is not error:
            meant.__cause__ = error  # it has the traceback of the other process
        return meant

    def __await__(self) -> Any:  # noqa: ANN401 -- as above
        return self._remote.answered(self.ref).__await__()


async def fetched(ref: Any) -> Any:  # noqa: ANN401 -- Ray's references have no type
    """What lies in the object store, or will: everything that we wait for comes this way."""
    return await ref


def start(name: str, **options: object) -> Remote:
    """A new host; `options` are Ray's: where it is placed, what it takes."""
    taken = {"num_cpus": 0, "max_restarts": 0, **options}
    actor: Any = ray.remote(  # type: ignore[call-overload]  # it knows more options than its types
        concurrency_groups={CONTROL: CONTROL_AT_ONCE}, max_concurrency=AT_ONCE
    )(Host)
    return Remote(name, actor.options(**taken).remote())


def _in_short(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
