"""Processes that each hold one object, kept ready and lent one at a time.

Promises
- A process is started before it is needed, as many as `ahead`; whoever takes one has it alone until it is given back.
- A call is one message there and one back. If the wait for it is cancelled (that is how a deadline comes) the process
  is killed at once, with everything below it.
- Whatever a process does to itself (raises, crashes, exhausts its memory, writes nonsense, hangs) is an error of the
  kind `HostSettings.error` for whoever called it, with its traceback or its last output as the cause, and disturbs no
  other. A process that raised is never lent again.
- Whoever gives up waiting for a process takes the one that has been in the making longest along: what hangs while it is
  made holds up as many as wait for it, and nobody after them.
- If the nest that hatches them dies, what it hatched is lost (whoever waited for one in the making hears of it), and
  the next process comes from a new nest.
- When `close` has returned, no process that was started here is left.

What must be sendable: the factory, arguments and results; see `pickles`. The factory is called in the process.
It needs an event loop on the real clock, because a point in time must mean the same in every process.
"""

import asyncio
import logging
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import assert_never

from windrow.errors import ConfigError, Refused, WindrowError, blame
from windrow.isolation.below import kill_child_of
from windrow.isolation.clock import on_the_real_clock
from windrow.isolation.host import Elsewhere, Host
from windrow.isolation.keeper import Keeper
from windrow.isolation.messages import Born, Broken, End, Gone, Hatch, Loaded, News, Plan, Unborn
from windrow.isolation.pickles import Unsendable, dump
from windrow.isolation.settings import HostSettings

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Processes that are ordered before one of them is there, so that an order can still be thought better of."""


class Hosts:
    """Processes with objects of one kind."""

    def __init__(self, make: Callable[[], object], settings: HostSettings) -> None:
        """Raises ConfigError if the factory cannot be sent to another process."""
        self.settings = settings
        self._make = make
        self._by_value: tuple[ModuleType, ...] = ()  # modules that a nest cannot import
        self._plan = self._planned()
        self._keeper: Keeper | None = None
        self._broken: ConfigError | None = None  # why the nest that is ending could not load the plan
        self._has_loaded = False  # the nest has, and can be told to hatch
        self._numbers = 0
        self._ordered: set[int] = set()  # all and only numbers of processes that are not born
        self._living: dict[int, Host] = {}  # by number: all and only those whose death was not told
        self._making: dict[Host, None] = {}  # all and only those whose object is not made yet, the oldest first
        self._ready: deque[Host] = deque()  # all and only those with an object that nobody has taken
        self._waiting: deque[asyncio.Future[Host]] = deque()  # all and only those who wait, the oldest first
        self._closed: asyncio.Future[None] | None = None

    @property
    def ready(self) -> int:
        """Processes that could be taken at once."""
        return len(self._ready)

    @property
    def living(self) -> int:
        """Processes that are not known to be dead."""
        return len(self._living)

    @property
    def nest_pid(self) -> int | None:
        """The process that all of them come from."""
        return self._keeper.pid if self._keeper is not None else None

    def open(self) -> None:
        """Begin to start what is kept ahead of need; needs a running event loop."""
        if self._closed is not None:
            raise Refused(f"{self.settings.name} is closed; nothing can be started in it any more")
        if self._keeper is None:
            on_the_real_clock(self.settings.name)
            with blame(self.settings.error, self.settings.name, "no process could be started"):
                self._keeper = Keeper(self._hear, self._lost)
            self._keeper.tell(self._plan)
        self._order()

    async def take(self) -> Host:
        """A process of one's own, as soon as there is one; to be given back whatever happens."""
        host = self._next_ready()
        if host is not None:
            self._order()
            return host
        future: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            self.open()
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._offer(future.result())  # it came in the same moment
            else:
                self._give_one_up()
            raise
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _give_one_up(self) -> None:
        """One that was ordered for somebody is not wanted any more: the one that may be hanging."""
        oldest = next(iter(self._making), None)
        if oldest is not None:
            del self._making[oldest]
            oldest.end(now=True)

    def _next_ready(self) -> Host | None:
        while self._ready:
            host = self._ready.popleft()
            if host.is_sound:  # another is dying, and will be buried
                return host
        return None

    def give_back(self, host: Host) -> None:
        """Done with it: it is lent again if it may be, or killed."""
        reuse = self.settings.reuse
        if reuse == "never" or not host.is_sound or self._closed is not None:
            host.end()
        elif reuse == "process":
            self._making[host] = None
            host.renew()
        elif reuse == "object":
            self._offer(host)
        else:
            assert_never(reuse)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Host]:
        """A process for the time of a `with`."""
        host = await self.take()
        try:
            yield host
        finally:
            self.give_back(host)

    async def close(self) -> None:
        """Kill all of them; what is pending fails. When it returns nothing is left."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            self._refuse(Refused(f"{self.settings.name} was closed"))
            self._ready.clear()
            for host in [*self._living.values()]:
                host.end()
            if self._keeper is None:
                self._closed.set_result(None)
            elif self._has_loaded:
                self._keeper.close()
            else:
                self._keeper.kill()  # it may be loading something that takes for ever
        await asyncio.wait([self._closed])

    def _planned(self) -> Plan:
        settings = self.settings
        try:
            factory = dump(self._make, self._by_value)
        except Unsendable as error:
            raise ConfigError(
                f"{settings.name} cannot be sent to a process of its own: {error}; "
                f"let its factory hold plain values and make the rest when it is called, or use isolation inline"
            ) from error
        return Plan(factory=factory, preload=settings.preload, memory_mb=settings.memory_mb)

    def _order(self, *, ahead: bool = True) -> None:
        """Have as many hatched as are wanted and neither there nor coming; or only as many as are waited for."""
        if self._keeper is None or not self._has_loaded or self._closed is not None:
            return
        wanted = len(self._waiting) + (self.settings.ahead if ahead else 0)
        while len(self._ready) + len(self._making) + len(self._ordered) < wanted and len(self._ordered) < AT_ONCE:
            self._numbers += 1
            self._ordered.add(self._numbers)
            self._keeper.tell(Hatch(self._numbers))

    def _hear(self, news: News, file: int | None) -> None:
        match news:
            case Loaded(forks):
                self._has_loaded = True
                if not forks:
                    log.warning(
                        "%s: loading it left threads running, so its processes start slowly", self.settings.name
                    )
                self._order()
            case Broken():
                self._try_by_value(news)
            case Born(number, pid):
                self._welcome(number, pid, file)
                self._order()
            case Unborn(number, why):
                self._ordered.discard(number)
                self._disappoint(self._error(f"no process could be started: {why}"))
                self._order(ahead=False)  # what fails now is not tried again for nobody
            case Gone(number):
                self._forget(number, news)
            case _:
                assert_never(news)

    def _welcome(self, number: int, pid: int, file: int | None) -> None:
        keeper = self._keeper
        assert keeper is not None
        self._ordered.discard(number)
        if file is None:
            keeper.tell(End(number, now=True))
            self._disappoint(self._error("there are too many open files here; raise ulimit -n"))
            return

        def kill(now: bool) -> None:  # noqa: FBT001 -- as `End` has it
            keeper.tell(End(number, now))
            if now:
                kill_child_of(keeper.pid, pid)  # the nest may be busy; it sees to what is below

        connection = socket.socket(fileno=file)
        host = Host(
            connection,
            self.settings,
            pid=pid,
            dump=self._dump,
            kill=kill,
            on_made=self._made,
        )
        self._living[number] = host
        self._making[host] = None
        if self._closed is not None:
            host.end()

    def _made(self, host: Host, error: WindrowError | None) -> None:
        if host not in self._making:
            return  # it was given up, and nobody is disappointed
        del self._making[host]
        if error is None:
            self._offer(host)
            return
        host.end()
        self._disappoint(error)

    def _offer(self, host: Host) -> None:
        """Give it to whoever waits longest, or keep it, or end it."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(host)
                return
        if self._closed is None and (len(self._ready) < self.settings.ahead or self.settings.reuse != "never"):
            self._ready.append(host)
        else:
            host.end()

    def _disappoint(self, error: WindrowError) -> None:
        """One that was to come does not: whoever waits longest hears why; if nobody waits it is tried again later."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
                return
        if self._closed is None:
            log.warning("not ready ahead of need: %s", error)

    def _refuse(self, error: WindrowError) -> None:
        """Nobody who waits gets anything."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    def _forget(self, number: int, gone: Gone | None) -> None:
        host = self._living.pop(number, None)
        if host is None:
            return  # there was no file for it
        host.bury(gone)
        self._making.pop(host, None)
        if host in self._ready:
            self._ready.remove(host)
            log.warning("%s: a process died before it was needed", self.settings.name)

    def _try_by_value(self, broken: Broken) -> None:
        """A module that only we have loaded (a script, a file outside the path) can still go along as it is."""
        keeper = self._keeper
        assert keeper is not None
        try:
            self._plan = self._planned_without(broken)
        except ConfigError as error:
            self._broken = error
            self._refuse(error)
            keeper.close()
        else:
            keeper.tell(self._plan)

    def _planned_without(self, broken: Broken) -> Plan:
        module = sys.modules.get(broken.missing)
        if module is None or module in self._by_value:
            seen = Elsewhere(broken.trace)
            raise ConfigError(f"{self.settings.name} cannot be loaded in a process of its own: {broken.why}") from seen
        self._by_value = (*self._by_value, module)
        return self._planned()

    def _lost(self) -> None:
        """The nest is dead, and everything that it hatched."""
        keeper, self._keeper = self._keeper, None
        assert keeper is not None
        had_loaded, self._has_loaded = self._has_loaded, False
        self._ordered.clear()
        for number in [*self._living]:
            self._forget(number, None)
        if self._closed is not None:
            self._closed.set_result(None)
        elif not had_loaded:
            said = keeper.said.decode("utf-8", "replace").strip()
            died = self._error("its process died while it was loaded" + (f": {said[-300:]}" if said else ""))
            self._refuse(self._broken or died)
            self._broken = None
        elif self._waiting:
            log.warning("%s: the process that its processes come from died; starting another", self.settings.name)
            self.open()

    def _dump(self, thing: object) -> bytes:
        return dump(thing, self._by_value)

    def _error(self, words: str) -> WindrowError:
        return self.settings.error(f"{self.settings.name}: {words}")
