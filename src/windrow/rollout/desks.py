"""Where orders wait until their worker fetches them, in bulk.

Promises: orders for one worker are given out in the order in which they were made, each once; an order about a lease
that was not fetched yet changes the lease instead. A worker that waits is woken by the first order.
"""

import asyncio
from collections.abc import Iterator

from windrow.errors import ConfigError, Refused
from windrow.nearest import did_you_mean
from windrow.rollout.orders import Cancel, Lease, Move, Order
from windrow.types import AttemptId, Record, but


class Desk(Record, gc=True):
    """What waits for one worker."""

    wake: asyncio.Event
    leases: dict[AttemptId, Lease] = {}
    """Not fetched yet."""
    orders: list[Cancel | Move] = []
    """About leases that were fetched."""


class Desks:
    """One desk per worker."""

    def __init__(self) -> None:
        self._desks: dict[str, Desk] = {}
        self._closed = False

    def open(self, worker: str) -> None:
        self._desks[worker] = Desk(asyncio.Event())

    def close(self, worker: str) -> None:
        """A worker is gone."""
        desk = self._desks.pop(worker, None)
        if desk is not None:
            desk.wake.set()

    def close_all(self) -> None:
        """Nothing more will come; what waits is still given out."""
        self._closed = True
        for desk in self._desks.values():
            desk.wake.set()

    def put(self, worker: str, order: Order) -> None:
        """Leave an order for a worker, if it is still there."""
        desk = self._desks.get(worker)
        if desk is None:
            return
        match order:
            case Lease(attempt=attempt):
                desk.leases[attempt] = order
            case Cancel(attempt=attempt) if attempt in desk.leases:
                del desk.leases[attempt]
                return
            case Move(attempt=attempt, engine=engine) if attempt in desk.leases:
                desk.leases[attempt] = but(desk.leases[attempt], engine=engine)
            case Cancel() | Move():
                desk.orders.append(order)
        desk.wake.set()

    async def fetch(self, worker: str, most: int) -> list[Order]:
        """Everything for a worker, with at most so many leases; waits for something; nothing means that all is over."""
        if worker not in self._desks:
            raise ConfigError(f"worker {worker!r} has not joined{did_you_mean(worker, self._desks)}")
        if most < 1:
            raise Refused(f"worker {worker!r} asks for {most} leases; ask for 1 or more")
        while True:
            desk = self._desks.get(worker)
            if desk is None:
                return []
            orders = [*_taken(desk, most)]
            if orders or self._closed:
                return orders
            desk.wake.clear()
            await desk.wake.wait()


def _taken(desk: Desk, most: int) -> Iterator[Order]:
    yield from desk.orders
    desk.orders.clear()
    for attempt in [*desk.leases][:most]:
        yield desk.leases.pop(attempt)
