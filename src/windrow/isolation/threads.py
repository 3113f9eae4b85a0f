"""Objects that each live in a thread of their own, so that one that blocks holds up nobody else.

Promises: the object is made and called in its own thread, all calls in one task on one event loop that goes on in
between, as in a process of its own (`hosts`). What it raises is raised here as it is. A call that is given up (its
deadline came) is cancelled there.

A thread cannot be killed. One that never comes back is left behind: it is counted, told in the log, and ends with the
program, because it is a daemon. What may hang belongs into a process.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from windrow.errors import Refused, WindrowError, blame
from windrow.isolation.clock import on_the_real_clock
from windrow.types import Value

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 5.0
"""How long threads may take to end when all of them have to; then they are left behind."""


class ThreadSettings(Value, frozen=True, kw_only=True):
    """Of one kind of object."""

    name: str
    """For messages and names of threads."""
    error: type[WindrowError]
    """For what an object does that cannot be raised as it is."""


class Threads:
    """Threads with objects of one kind."""

    def __init__(self, make: Callable[[], object], settings: ThreadSettings) -> None:
        self.settings = settings
        self._make = make
        self._living: set[ThreadHost] = set()  # all and only those whose thread has not ended
        self._left_behind: set[ThreadHost] = set()  # all and only those of them that were given up
        self._is_closed = False

    @property
    def left_behind(self) -> int:
        """Threads that were given up and have not come back."""
        return len(self._left_behind)

    @property
    def living(self) -> int:
        return len(self._living)

    def take(self) -> "ThreadHost":
        """A thread of one's own; to be given back whatever happens."""
        if self._is_closed:
            raise Refused(f"{self.settings.name} is closed; nothing can be started in it any more")
        on_the_real_clock(self.settings.name)
        host = ThreadHost(self._make, self.settings, self._ended)
        with blame(self.settings.error, self.settings.name, "no thread could be started"):
            host.start()
        self._living.add(host)
        return host

    def give_back(self, host: "ThreadHost") -> None:
        """Done with it: its thread ends, unless it is stuck."""
        host.end()
        if host.is_stuck and host in self._living and host not in self._left_behind:
            self._left_behind.add(host)
            log.warning("%s: a thread does not come back and is left behind", self.settings.name)

    async def close(self) -> None:
        """End all of them and wait for those that can end."""
        self._is_closed = True
        living = [*self._living]
        for host in living:
            host.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_S):
                for host in living:
                    await host.gone()
        if self._living:
            log.warning("%s: %d threads do not end and are left behind", self.settings.name, len(self._living))
            self._left_behind |= self._living

    def _ended(self, host: "ThreadHost") -> None:
        self._living.discard(host)
        self._left_behind.discard(host)


class ThreadHost:
    """A thread with an object in it."""

    def __init__(
        self, make: Callable[[], object], settings: ThreadSettings, on_end: Callable[["ThreadHost"], None]
    ) -> None:
        self.is_stuck = False  # a call was given up and has not come back
        self._make = make
        self._settings = settings
        self._on_end = on_end
        self._home = asyncio.get_running_loop()  # where calls come from
        self._loop = asyncio.new_event_loop()  # where they are carried out
        self._orders: asyncio.Queue[_Order | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._current: _Order | None = None
        self._is_ending = False
        self._gone = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=settings.name, daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise

    async def call(self, method: str, *args: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        """Call a method of the object and wait for what it returns."""
        return await self._call(_Order(method, args, self._home.create_future()))

    async def call_last(self, method: str, *args: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        """The same, for a call that is made even if nobody waits for it any more: when a stuck thread comes back."""
        return await self._call(_Order(method, args, self._home.create_future(), is_last=True))

    async def _call(self, order: "_Order") -> Any:  # noqa: ANN401 -- whatever the method returns
        if self._is_ending:
            raise self._settings.error(f"{self._settings.name} {order.method}: it was ended")
        self._there(self._orders.put_nowait, order)
        try:
            return await order.answer
        except asyncio.CancelledError:
            self.is_stuck = not order.came_back
            self._there(self._abandon, order)
            raise

    def end(self) -> None:
        """Let the thread end when it has nothing more to do."""
        if not self._is_ending:
            self._is_ending = True
            self._there(self._orders.put_nowait, None)

    async def gone(self) -> None:
        """Wait until its thread has ended."""
        await self._gone.wait()

    def _there(self, do: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # its loop is closed: it has ended
            self._loop.call_soon_threadsafe(do, *args)

    def _here(self, do: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # our loop is closed: nobody waits any more
            self._home.call_soon_threadsafe(do, *args)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._here(self._end_here)

    def _end_here(self) -> None:
        self._thread.join()  # it has said its last word
        self._gone.set()
        self._on_end(self)

    async def _serve(self) -> None:
        """Carry out one call after the other, until the end."""
        self._task = asyncio.current_task()
        made = self._made()
        while (order := await self._orders.get()) is not None:
            self._current = order
            if order.is_last or not order.is_abandoned:
                await self._carry_out(order, made)
            self._current = None
            self._here(self._came_back, order)

    def _made(self) -> Callable[[], object]:
        """What gives the object, or raises what making it raised: that belongs to whoever calls."""
        try:
            made = self._make()
        except BaseException as error:  # noqa: BLE001 -- as above
            return partial(_raise, error)
        return lambda: made

    async def _carry_out(self, order: "_Order", made: Callable[[], object]) -> None:
        try:
            result = getattr(made(), order.method)(*order.args)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:  # noqa: BLE001 -- it belongs to whoever called
            self._not_cancelled()
            self._here(order.fail, self._raisable(error, order))
        else:
            self._here(order.succeed, result)

    def _abandon(self, order: "_Order") -> None:
        """In the thread: nobody waits for a call any more."""
        order.is_abandoned = True
        if self._current is order and self._task is not None:
            self._task.cancel()

    def _came_back(self, order: "_Order") -> None:
        order.came_back = True
        self.is_stuck = False

    def _not_cancelled(self) -> None:
        """What cancels a call does not end the thread."""
        while self._task is not None and self._task.cancelling():
            self._task.uncancel()

    def _raisable(self, error: BaseException, order: "_Order") -> BaseException:
        """An exception that a future can hold."""
        if isinstance(error, (StopIteration, GeneratorExit, asyncio.CancelledError)):
            wrapped = self._settings.error(f"{self._settings.name} {order.method}: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            return wrapped
        return error


class _Order:
    """One call."""

    __slots__ = ("answer", "args", "came_back", "is_abandoned", "is_last", "method")

    def __init__(
        self, method: str, args: tuple[object, ...], answer: "asyncio.Future[Any]", *, is_last: bool = False
    ) -> None:
        self.method = method
        self.args = args
        self.answer = answer
        self.came_back = False
        self.is_abandoned = False
        self.is_last = is_last

    def succeed(self, result: object) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _raise(error: BaseException) -> object:
    raise error
