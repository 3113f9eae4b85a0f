"""One virtual clock for several processes: time stands still while any of them computes or anything is on its way.

```
driver   idle, next deadline 3.0 ─┐                      ┌─ all idle, nothing on its way: time jumps to 2.5,
office   idle, next deadline 9.0 ─┼─ a page of memory ───┤  and whoever has a deadline then is woken
engine   idle, next deadline 2.5 ─┘  that all of them map └─ anything else: wait
```

Promises
- Time passes only while every event loop that is on the clock waits and nothing that one of them sent has not been
  taken by the other, and then exactly up to the next deadline of any. So what a test measures is exact, however busy
  the machine is.
- Calls, their answers, messages on wires, the ends of wires, work in threads and what is fetched from the object store
  count as on their way. Of a process that was killed, whoever waits for it must hear of that before time passes.
- If nothing can ever happen again, it says so, and also if for long nothing moves that should.

Every number on the page is written by one process, so nothing needs a lock but the threads of a process.
"""

import asyncio
import fcntl
import mmap
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from windrow.errors import InternalError

SEATS = 48
"""Processes of one test, the dead included."""
WIRES = 24
"""That a process may open."""
STUCK_S = 60.0
"""Real seconds in which something that is on its way has to arrive."""
PAUSES_S = (0.0, 0.0001, 0.0002, 0.0005, 0.001)
"""Between looks of whoever moves the clock."""

UNUSED, ALIVE, DEAD = range(3)
A, B = 0, 1
"""The end of a wire that called, and the one that was called."""


class Page:
    """What all processes see."""

    def __init__(self, path: Path) -> None:
        self.path = path
        wires = SEATS * WIRES
        kinds: list[tuple[str, Any, tuple[int, ...]]] = [
            ("now", np.float64, (1,)),
            ("deadline", np.float64, (SEATS,)),  # when it has to be woken
            ("state", np.int64, (SEATS,)),
            ("idle", np.int64, (SEATS,)),  # its event loop waits
            ("wakes", np.int64, (SEATS,)),  # how often it has woken up
            ("busy", np.int64, (SEATS,)),  # threads that work for it
            ("port", np.int64, (SEATS,)),  # where it is woken
            ("sent", np.int64, (SEATS, SEATS)),  # calls, by caller and host
            ("begun", np.int64, (SEATS, SEATS)),
            ("answered", np.int64, (SEATS, SEATS)),
            ("heard", np.int64, (SEATS, SEATS)),
            ("said", np.int64, (wires, 2)),  # messages, by the end that said them
            ("taken", np.int64, (wires, 2)),  # messages, by the end that said them
            ("up", np.int64, (wires, 2)),  # by end: it has not hung up, nor heard that the other one has
            ("whose", np.int64, (wires, 2)),
        ]
        size = sum(8 * int(np.prod(shape)) for _, _, shape in kinds)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) < size:
                file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
        start = 0
        for name, kind, shape in kinds:
            setattr(self, name, np.frombuffer(memory, kind, int(np.prod(shape)), start).reshape(shape))
            start += 8 * int(np.prod(shape))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # so that others know that there are more

    def seat(self) -> int:
        """A place for one more process; time stands still until it is there and waits."""
        with self.path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            place = int(np.flatnonzero(self.state == UNUSED)[0])
            self.deadline[place] = inf
            self.state[place] = ALIVE
        return place

    def on_its_way(self) -> str:
        """Something that was sent and has not arrived; nothing if there is nothing."""
        alive, dead = self.state == ALIVE, self.state == DEAD
        if (self.busy[alive] != 0).any():
            return f"threads of {np.flatnonzero(alive & (self.busy != 0))}"
        between = alive[:, None] & alive[None, :]
        calls = between & ((self.sent != self.begun) | (self.answered != self.heard))
        if calls.any():
            return f"calls {np.argwhere(calls).tolist()}"
        untold = alive[:, None] & dead[None, :] & (self.sent != self.heard)
        if untold.any():
            return f"deaths of which nobody has heard {np.argwhere(untold).tolist()}"
        up = (self.up != 0) & alive[self.whose]
        wires = (up[:, A] != up[:, B]) | (up.all(axis=1) & (self.said != self.taken).any(axis=1))
        return f"on wires {np.flatnonzero(wires).tolist()}" if wires.any() else ""

    def is_quiet(self) -> bool:
        """Nobody computes, and nothing is on its way."""
        alive = self.state == ALIVE
        wakes = self.wakes.copy()
        if not self.idle[alive].all() or self.on_its_way():
            return False
        return bool((self.state == ALIVE).tolist() == alive.tolist() and self.idle[alive].all()) and bool(
            (self.wakes == wakes).all()
        )

    def why_not(self) -> str:
        """What keeps time from passing."""
        working = np.flatnonzero((self.state == ALIVE) & (self.idle == 0))
        return f"seats {working.tolist()} compute; on its way: {self.on_its_way() or 'nothing'}"


class Clock:
    """The clock, as one process sees it."""

    def __init__(self, page: Page, seat: int) -> None:
        self.page = page
        self.seat = seat
        self._lock = threading.Lock()
        self._wires = 0
        self._bell = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._bell.bind(("127.0.0.1", 0))
        self._bell.setblocking(False)
        page.port[seat] = self._bell.getsockname()[1]
        self._selector: Any = None
        self._plain: Callable[[float | None], list[Any]]

    def time(self) -> float:
        return float(self.page.now[0])

    def govern(self, loop: Any, *, moves: bool = False) -> None:
        """Put an event loop on this clock; one of them moves it."""
        self._selector = loop._selector
        self._plain = self._selector.select
        self._selector.select = self._moving if moves else self._waiting
        work = loop.run_in_executor

        def counted(executor: Any, func: Callable[..., Any], *args: Any) -> Any:
            self.add("busy", (self.seat,))
            future = work(executor, func, *args)
            future.add_done_callback(lambda _: self.add("busy", (self.seat,), -1))
            return future

        loop.time = self.time
        loop.run_in_executor = counted
        loop.add_reader(self._bell, self._woken)

    def add(self, what: str, place: tuple[int, ...], count: int = 1) -> None:
        """Count something."""
        with self._lock:
            getattr(self.page, what)[place] += count

    def wire(self) -> int:
        """A number for a wire that begins here."""
        self._wires += 1
        return self.seat * WIRES + self._wires - 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, time stands still though the event loop may wait."""
        self.add("busy", (self.seat,))
        try:
            yield
        finally:
            self.add("busy", (self.seat,), -1)

    def let_go(self, loop: Any) -> None:
        """The end of that."""
        loop.remove_reader(self._bell)
        del loop.time, loop.run_in_executor, self._selector.select
        self.close()

    def close(self) -> None:
        self._bell.close()

    def _woken(self) -> None:
        try:
            self._bell.recv(64)
        except BlockingIOError:
            return

    @contextmanager
    def _idle(self, timeout: float | None) -> Iterator[None]:
        page, seat = self.page, self.seat
        page.deadline[seat] = inf if timeout is None else self.time() + timeout
        page.idle[seat] = 1
        try:
            yield
        finally:
            page.wakes[seat] += 1
            page.idle[seat] = 0

    def _waiting(self, timeout: float | None = None) -> list[Any]:
        """Of an event loop that does not move the clock: wait until something comes, or it is woken."""
        events = self._plain(0)
        if events or timeout == 0:
            return events
        with self._idle(timeout):
            return self._plain(None)

    def _moving(self, timeout: float | None = None) -> list[Any]:
        """Of the one that does: wait until something comes, or nothing can come any more, and then move it."""
        events = self._plain(0)
        if events or timeout == 0:
            return events
        with self._idle(timeout):
            since, looks = time.monotonic(), 0
            while True:
                if self.page.is_quiet():
                    if self._jump():
                        return []
                    since, looks = time.monotonic(), 0
                events = self._plain(PAUSES_S[min(looks, len(PAUSES_S) - 1)])
                if events:
                    return events
                looks += 1
                if time.monotonic() - since > STUCK_S:
                    raise InternalError(f"nothing has moved for {STUCK_S:g} s: {self.page.why_not()}")

    def _jump(self) -> bool:
        """Move the clock and wake whoever waits for that; whether we do."""
        page = self.page
        alive = page.state == ALIVE
        moment = float(page.deadline[alive].min())
        if moment == inf:
            raise InternalError("every task in every process waits and no deadline is set: nothing can happen any more")
        page.now[0] = max(moment, page.now[0])
        for seat in np.flatnonzero(alive & (page.deadline <= moment)):
            if seat != self.seat:
                page.idle[seat] = 0
                self._bell.sendto(b".", ("127.0.0.1", int(page.port[seat])))
        return bool(page.deadline[self.seat] <= moment)


class ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop that moves the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(selectors.DefaultSelector())
        clock.govern(self, moves=True)
