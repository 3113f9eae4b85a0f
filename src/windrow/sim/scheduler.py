"""What the world asks of a scheduler: the machine has it, and so has every rival that it is compared with.

Promises: a scheduler hears facts and answers with orders, at once and always the same; it looks at no clock
but `now`.
"""

from collections.abc import Callable
from typing import Protocol

from windrow.core.commands import AnyCommand
from windrow.core.events import AnyEvent

Tell = Callable[[AnyEvent], None]
"""How the parts of the world report what happened; the scheduler hears it in order, a little later."""


class Scheduler(Protocol):
    """Decides what is played, where and when."""

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        """Hear one fact, and say what is to be done."""
        ...

    @property
    def next_deadline(self) -> float | None:
        """When it wants to hear `TimePassed`, if nothing else happens before."""
        ...
