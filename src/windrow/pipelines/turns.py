"""Generation and training on the devices that they share: one of them at a time.

Promises: whoever works there has the turn, which the arbiter gives to one role at a time; work without it is a bug of
ours and raises. Whether engines on those devices really stood still while it was training's turn is seen from what they
have computed, not from the books. Where nothing is shared nobody needs a turn.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

from windrow.cluster.arbiter import Arbiter, Ticket
from windrow.engines.torch.spells import Activity
from windrow.errors import InternalError

Role = Literal["generation", "training"]
Look = Callable[[], Awaitable[Mapping[str, Activity]]]
"""What engines have done so far, by name; those that are lost are left out."""

TURN_S = 60.0
"""How long a turn may be waited for: whoever had it has given it back before."""


class Turns:
    """Whose turn it is."""

    def __init__(self, shared: Sequence[int], lent: Sequence[str], look: Look) -> None:
        """`lent` are the engines on the shared devices."""
        self._shared = [*shared]
        self._lent = [*lent]
        self._look = look
        self._before: Mapping[str, Activity] = {}  # what engines had done when the turn of training began
        self._arbiter = Arbiter()
        self._now: Ticket | None = None

    async def hand_to(self, role: Role) -> None:
        """The other one is done; nothing happens if nothing is shared."""
        if not self._shared:
            return
        await self.check_quiet()
        self.end()
        self._now = await self._arbiter.take(role, self._shared, TURN_S)
        self._before = await self._look() if role == "training" else {}

    def check(self, role: Role) -> None:
        """Raise unless it is the turn of this role, and turns never overlapped."""
        if self._shared and (self._now is None or self._now.role != role):
            raise InternalError(f"{role} on devices {self._shared}, where it is the turn of {self._now}")
        self._arbiter.check()

    async def check_quiet(self) -> None:
        """Raise if an engine on the shared devices has computed anything since it became the turn of training."""
        if not self._before:
            return
        after = await self._look()
        for name in self._lent:
            if name not in self._before or name not in after:
                continue  # it is lost
            forwards = after[name].forwards - self._before[name].forwards
            tokens = after[name].tokens - self._before[name].tokens
            if forwards or tokens:
                raise InternalError(
                    f"engine {name} sampled {tokens} tokens in {forwards} forwards while it was the turn of training "
                    f"on devices {self._shared}"
                )

    def end(self) -> None:
        """Nobody works there any more."""
        if self._now is not None:
            self._arbiter.give_back(self._now)
            self._now = None
        self._before = {}
