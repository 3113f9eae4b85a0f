"""The thread that runs the model.

Promises: everything that belongs to the batcher happens on this one thread; orders are carried out between two
forwards, in the order in which they were given. When the thread ends, for whatever reason, every order and every
request has been answered; it ends within one forward of being told to.

consumes      orders
waits for     an order, if there is nothing to sample
unblocked by  `give`, `end`
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable

import torch

from windrow.engines.torch.batcher import Batcher
from windrow.engines.torch.letters import Outbox
from windrow.errors import EngineLost

log = logging.getLogger(__name__)

EXIT_GRACE_S = 10.0
"""Longest wait for the forward that is running when Python exits and nobody closed the engine."""


class Order:
    """Something to be done by the thread; `give_up` if it can no longer be done."""

    __slots__ = ("do", "give_up")

    def __init__(self, do: Callable[[], None], give_up: Callable[[EngineLost], None]) -> None:
        self.do = do
        self.give_up = give_up


class Worker:
    """One thread; before it starts orders are carried out where they are given, after it ended they are given up."""

    def __init__(self, name: str, batcher: Batcher, threads: int) -> None:
        self.outbox = Outbox()
        self.lost: EngineLost | None = None  # why it no longer works
        self._name = name
        self._batcher = batcher
        self._threads = threads
        self._bell = threading.Condition()
        self._orders: deque[Order] = deque()  # all and only orders that were not begun
        self._ending = False
        self._farewells: list[Callable[[], None]] = []  # whoever waits for the end
        self._thread = threading.Thread(target=self._run, name=f"torch engine {name}", daemon=True)

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        atexit.register(self._end_with_python)
        self._thread.start()

    def give(self, order: Order) -> None:
        """Have something done between two forwards."""
        with self._bell:
            if self.started and self.lost is None:
                self._orders.append(order)
                self._bell.notify()
                return
        if self.lost is None:
            order.do()
        else:
            order.give_up(self.lost)
        self.outbox.send()

    def end(self, when_gone: Callable[[], None] | None = None) -> None:
        """Let the thread end after the forward that it is in; requests end as interrupted."""
        with self._bell:
            self._ending = True
            if when_gone is not None:
                self._farewells.append(when_gone)
            self._bell.notify()
        if not self.started or self.lost is not None:
            self._leave(EngineLost(f"engine {self._name!r} is closed"))

    def join(self) -> None:
        """Wait for a thread that has said farewell; it has nothing left to do."""
        if self.started:
            self._thread.join()

    def _end_with_python(self) -> None:
        """Nobody closed the engine and Python exits: leave the model in peace, if it does not take too long."""
        self.end()
        self._thread.join(EXIT_GRACE_S)

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # of this thread; others keep theirs
        lost = EngineLost(f"engine {self._name!r} is closed")
        try:
            self._work()
        except Exception as error:
            log.exception("engine died", extra={"engine": self._name})
            lost = EngineLost(f"engine {self._name!r} died: {type(error).__name__}: {error}")
            lost.__cause__ = error
        finally:
            self._leave(lost)

    def _work(self) -> None:
        batcher, outbox = self._batcher, self.outbox
        while not self._ending:
            self._obey(wait=not batcher.has_work)
            if batcher.has_work:
                batcher.step()
            outbox.send()
        self._obey(wait=False)  # what was ordered before the end

    def _obey(self, *, wait: bool) -> None:
        """Carry out all orders there are; if `wait`, there is at least one, or the end."""
        if wait:
            with self._bell:
                self._bell.wait_for(lambda: self._orders or self._ending)
        while self._orders:
            self._orders[0].do()  # one that breaks is still there to be given up
            self._orders.popleft()

    def _leave(self, lost: EngineLost) -> None:
        """Answer everybody; a request that was not lost by accident ends as interrupted."""
        with self._bell:
            first = self.lost is None
            self.lost = self.lost or lost
        try:
            if first and lost.__cause__ is None:
                self._batcher.interrupt()
            elif first:
                self._batcher.fail(lost)
        finally:
            while self._orders:
                self._orders.popleft().give_up(self.lost)
            while self._farewells:
                self._farewells.pop()()
            self.outbox.send()
            atexit.unregister(self._end_with_python)
