"""Whose turn it is on devices that several roles share.

```
async with arbiter.turn("train", [0, 1]):      nobody else is at work on 0 and 1
    ...
```

Promises
- Never two turns at once on one device. `check` looks for that in the log of all turns, which the arbiter does not
  decide by.
- First come, first served: whoever came later waits behind everybody who wants one of the same devices, and nobody
  holds a part of what they asked for. So nobody starves, and turns cannot wait for each other in a circle; who asks
  for a second turn inside of one is refused.
- A wait ends by its deadline, with who holds what and who is before.

What it does not do: it moves nothing. What a role has to put away before its turn ends is its own business. It lives in
one process; others reach it through a host (`take`, `give_back`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from windrow.errors import ConfigError, InternalError, Refused
from windrow.types import Value, but

LOGGED = 1000
"""Turns that are remembered for `check`."""


class Ticket(Value, frozen=True, kw_only=True):
    """Somebody who has a turn, or waits for one."""

    number: int
    role: str
    devices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.role} (devices {[*self.devices]})"


class Turn(Value, frozen=True, kw_only=True):
    """One turn, as it was seen; beginnings and ends are counted, so that no two happen at the same time."""

    role: str
    devices: tuple[int, ...]
    began: int
    ended: int | None = None


class Line:
    """Decides whose turn it is."""

    def __init__(self) -> None:
        self.holding: dict[int, Ticket] = {}  # all and only those whose turn it is, by number
        self.waiting: dict[int, Ticket] = {}  # all and only those who wait, in the order in which they came
        self._count = 0

    def join(self, role: str, devices: Sequence[int]) -> Ticket:
        """Somebody wants a turn."""
        if not devices:
            raise ConfigError(f"role {role} asks for a turn on no device; name at least one")
        self._count += 1
        ticket = Ticket(number=self._count, role=role, devices=tuple(sorted({*devices})))
        self.waiting[ticket.number] = ticket
        return ticket

    def admit(self) -> list[Ticket]:
        """Whoever's turn it now is."""
        taken = {device for ticket in self.holding.values() for device in ticket.devices}
        admitted: list[Ticket] = []
        for ticket in self.waiting.values():
            if taken.isdisjoint(ticket.devices):
                admitted.append(ticket)
            taken.update(ticket.devices)  # who waits is before everybody who came later
        for ticket in admitted:
            self.holding[ticket.number] = self.waiting.pop(ticket.number)
        return admitted

    def leave(self, ticket: Ticket) -> None:
        """A turn is over, or nobody wants it any more."""
        self.holding.pop(ticket.number, None)
        self.waiting.pop(ticket.number, None)

    def before(self, ticket: Ticket) -> str:
        """Who keeps somebody waiting, in words."""
        wanted = {*ticket.devices}
        holding = [other for other in self.holding.values() if wanted & {*other.devices}]
        waiting = [
            other for other in self.waiting.values() if other.number < ticket.number and wanted & {*other.devices}
        ]
        parts = [("it is the turn of", holding), ("before it waits", waiting)]
        return "; ".join(f"{what} {', '.join(map(str, them))}" for what, them in parts if them) or "nobody is before it"


class Arbiter:
    """Has roles take turns."""

    def __init__(self) -> None:
        self._line = Line()
        self._called: dict[int, asyncio.Event] = {}  # all and only those of whoever waits
        self._inside: dict[asyncio.Task[object], Ticket] = {}  # all and only tasks that are in a turn
        self._log: deque[Turn] = deque(maxlen=LOGGED)
        self._open: dict[int, Turn] = {}  # all and only turns that have begun and not ended
        self._moments = 0

    @asynccontextmanager
    async def turn(self, role: str, devices: Sequence[int], within_s: float | None = None) -> AsyncIterator[Ticket]:
        """A turn on devices, when they are free."""
        task = asyncio.current_task()
        assert task is not None, "this is a coroutine"
        if task in self._inside:
            raise Refused(
                f"role {role} asks for devices {[*devices]} inside of the turn of {self._inside[task]}; "
                f"ask for all of them at once"
            )
        ticket = await self.take(role, devices, within_s)
        self._inside[task] = ticket
        try:
            yield ticket
        finally:
            del self._inside[task]
            self.give_back(ticket)

    async def take(self, role: str, devices: Sequence[int], within_s: float | None = None) -> Ticket:
        """Begin a turn; whoever takes gives back, whatever happens."""
        ticket = self._line.join(role, devices)
        called = self._called[ticket.number] = asyncio.Event()
        self._admit()
        try:
            async with asyncio.timeout(within_s):
                await called.wait()
        except TimeoutError as error:
            why = self._line.before(ticket)
            self.give_back(ticket)
            raise TimeoutError(f"role {ticket} has waited {within_s:g} s for its turn; {why}") from error
        except BaseException:
            self.give_back(ticket)
            raise
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """End a turn; a second time does nothing."""
        self._called.pop(ticket.number, None)
        self._line.leave(ticket)
        if ticket.number in self._open:
            self._log.append(but(self._open.pop(ticket.number), ended=self._moment()))
        self._admit()

    def evict(self, role: str) -> None:
        """End the turns of a role that is gone."""
        for ticket in [held for held in self._line.holding.values() if held.role == role]:
            self.give_back(ticket)

    @property
    def turns(self) -> list[Turn]:
        """The last turns, and those that are under way."""
        return [*self._log, *self._open.values()]

    def check(self) -> None:
        """Raise if two turns were on one device at the same time."""
        found = collisions(self.turns)
        if found:
            one, other = found[0]
            raise InternalError(f"two turns at once on a device: {one} and {other}, of {len(found)} such pairs")

    def _admit(self) -> None:
        for ticket in self._line.admit():
            self._open[ticket.number] = Turn(role=ticket.role, devices=ticket.devices, began=self._moment())
            self._called.pop(ticket.number).set()

    def _moment(self) -> int:
        self._moments += 1
        return self._moments


def collisions(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """All pairs of turns that were on one device at the same time."""
    return [
        (one, other)
        for place, one in enumerate(turns)
        for other in turns[place + 1 :]
        if {*one.devices} & {*other.devices} and _is_before_end(one, other) and _is_before_end(other, one)
    ]


def _is_before_end(one: Turn, other: Turn) -> bool:
    """One began before the other ended."""
    return other.ended is None or one.began < other.ended
