"""Generation and training on the devices that they share: one of them at a time.

Promises: whoever works there has the turn, which the arbiter gives to one role at a time; work without it is a bug of
ours and raises. Where nothing is shared nobody needs a turn.
"""

from collections.abc import Sequence
from typing import Literal

from windrow.cluster.arbiter import Arbiter, Ticket
from windrow.errors import InternalError

Role = Literal["generation", "training"]

TURN_S = 60.0
"""How long a turn may be waited for: whoever had it has given it back before."""


class Turns:
    """Whose turn it is."""

    def __init__(self, shared: Sequence[int]) -> None:
        self._shared = [*shared]
        self._arbiter = Arbiter()
        self._now: Ticket | None = None

    async def hand_to(self, role: Role) -> None:
        """The other one is done; nothing happens if nothing is shared."""
        if self._shared:
            self.end()
            self._now = await self._arbiter.take(role, self._shared, TURN_S)

    def check(self, role: Role) -> None:
        """Raise unless it is the turn of this role, and turns never overlapped."""
        if self._shared and (self._now is None or self._now.role != role):
            raise InternalError(f"{role} on devices {self._shared}, where it is the turn of {self._now}")
        self._arbiter.check()

    def end(self) -> None:
        """Nobody works there any more."""
        if self._now is not None:
            self._arbiter.give_back(self._now)
            self._now = None
