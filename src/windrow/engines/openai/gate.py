"""The gate and who is on which side of it.

Promises: requests pass in order of arrival, no more than `capacity` at once, and none while the gate is held. Whoever
waits for quiet is woken when nothing runs any more. Nothing here waits for a server.
"""

import asyncio
from math import inf

from windrow.engines.openai.flight import Flight
from windrow.engines.protocol import LoadReport


class Gate:
    """Holds requests back, lets them through, and knows where each is."""

    def __init__(self, capacity: int, *, version: int, timeout_s: float = inf) -> None:
        self.version = version  # of what is sampled now
        self.waiting: dict[str, Flight] = {}  # all and only requests that wait here, in order of arrival
        self.running: dict[str, Flight] = {}  # all and only requests that the server may be sampling, or keeps frozen
        self.suspended = False  # somebody closed it
        self.loading = False  # weights are being changed
        self.frozen = False  # what runs is open, but not sampled
        self.quiet = asyncio.Event()  # nothing is sampled
        self._capacity = capacity
        self._timeout_s = timeout_s
        self._note()

    def knows(self, request: str) -> bool:
        return request in self.waiting or request in self.running

    def enter(self, flight: Flight) -> None:
        self.waiting[flight.request.id] = flight
        self.seat()

    def seat(self) -> None:
        """Let those through who may pass."""
        if self.suspended or self.loading:
            return
        while self.waiting and len(self.running) < self._capacity:
            name, flight = next(iter(self.waiting.items()))
            del self.waiting[name]
            self.running[name] = flight
            flight.seat(self.version, self._now + self._timeout_s)
        self._note()

    def leave(self, flight: Flight) -> None:
        """A request is over, or nobody listens to it any more."""
        for side in (self.waiting, self.running):
            if side.get(flight.request.id) is flight:
                del side[flight.request.id]
        self.seat()
        self._note()

    def cut(self, *flights: Flight) -> None:
        """End requests here and now with what they have."""
        for flight in flights:
            flight.cut()
            self.leave(flight)

    def cut_all(self) -> None:
        self.cut(*self.waiting.values(), *self.running.values())

    def freeze(self) -> None:
        """What runs stays open and is not sampled; its deadlines stand still."""
        self.frozen = True
        for flight in self.running.values():
            flight.freeze(self._now)
        self._note()

    def thaw(self) -> None:
        """What was frozen is sampled again."""
        self.frozen = False
        for flight in self.running.values():
            flight.thaw(self._now)
        self._note()

    def open(self) -> None:
        """Let waiting requests pass."""
        self.suspended = False
        self.seat()

    def label(self, version: int) -> None:
        """What arrives from now on was sampled by these weights."""
        for flight in self.running.values():
            flight.relabel(version)
        self.version = version

    def report(self) -> LoadReport:
        flights = [*self.running.values(), *self.waiting.values()]
        return LoadReport(
            running=len(self.running),
            waiting=len(self.waiting),
            tokens_outstanding=sum(flight.limit - flight.tokens for flight in flights),
        )

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _note(self) -> None:
        if self.running and not self.frozen:
            self.quiet.clear()
        else:
            self.quiet.set()
