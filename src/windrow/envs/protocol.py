"""What an environment promises: one object, one episode, in Gymnasium's words.

An environment raises whatever it likes; it is filed as its fault and never becomes a score. By when a call must be
answered stands in `deadline()`, on the clock of the event loop, for environments that ask others in turn.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from random import Random
from typing import Any, Literal, Protocol, runtime_checkable

from windrow.text import Message, Tool
from windrow.trajectory import Task
from windrow.types import Value

Isolation = Literal["inline", "thread", "process"]
"""Where an environment lives: on the event loop; in a thread of its own; in a process that can be killed."""

DEADLINE: ContextVar[float | None] = ContextVar("windrow_deadline", default=None)


def deadline() -> float | None:
    """By when the call in hand must be answered, on the event loop's clock; None if nobody waits for it."""
    return DEADLINE.get()


class Rewritten(Value, frozen=True):
    """A history that replaces the one so far, instead of adding to it."""

    messages: tuple[Message, ...]


class Briefing(Value, frozen=True, gc=True):
    """A first observation that offers tools as well; they stay on offer until the end."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


Observation = str | Message | Sequence[Message] | Rewritten | Briefing
"""What the policy sees next. Text is a message by the user."""


class Step(Value, frozen=True, gc=True):
    """What an action led to."""

    observation: Observation = ""
    reward: float = 0.0
    terminated: bool = False
    """It came to its own end."""
    truncated: bool = False
    """It was cut off."""
    info: dict[str, Any] = {}  # whatever the environment wants kept with the trajectory


class Env(Protocol):
    """Single use: one object, one episode."""

    async def start(self, task: Task) -> Observation: ...

    async def step(self, action: str) -> Step: ...

    async def close(self) -> None: ...


EnvFactory = Callable[[], Env]
"""Makes one environment for one episode."""


@runtime_checkable
class Solvable(Protocol):
    """An environment that can prove itself without a model."""

    def solve(self) -> str:
        """What a perfect player says next."""
        ...


@runtime_checkable
class Wanderable(Protocol):
    """An environment that knows what a player without a plan might say."""

    def wander(self, rng: Random) -> str:
        """Some action, drawn from those that make sense now."""
        ...
