"""Threads in which workers of this process work, as those on Ray do in their processes.

Promises: a thread does one thing after the other, in the order in which it was asked. What it has not begun when it is
ended is refused. Threads are daemons: one that hangs is left behind, and ends with the
program.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from windrow.errors import Refused


class WorkThread:
    """A thread for what blocks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._is_over = False
        threading.Thread(target=self._serve, name=f"windrow-{name}", daemon=True).start()

    def ask(self, work: Callable[[], Any]) -> "Future[Any]":
        """Have it do something; returns at once."""
        future: Future[Any] = Future()
        self._orders.put((future, work))
        return future

    def end(self) -> None:
        """It ends after what it is at."""
        self._is_over = True
        self._orders.put(None)

    def _serve(self) -> None:
        """Carry out one order after the other.

        consumes      orders
        waits for     the next one
        unblocked by  `ask`, `end`
        """
        while (order := self._orders.get()) is not None:
            future, work = order
            if self._is_over:
                future.set_exception(Refused(f"worker {self._name} was ended before it came to this"))
            else:
                _carry_out(future, work)


class LoopThread:
    """A thread with an event loop, for what waits."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=f"windrow-{name}", daemon=True)
        self._thread.start()

    def ask(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Have it wait for something; returns at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        """Whatever it is at is cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


def _carry_out(future: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 -- it belongs to whoever asked
        future.set_exception(error)
