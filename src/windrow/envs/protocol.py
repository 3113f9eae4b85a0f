"""What an environment promises: one object, one episode, in Gymnasium's words.

An environment raises whatever it likes; it is filed as its fault and never becomes a score.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from windrow.text import Message
from windrow.trajectory import Task
from windrow.types import Value


class Rewritten(Value, frozen=True):
    """A history that replaces the one so far, instead of adding to it."""

    messages: tuple[Message, ...]


Observation = str | Message | Sequence[Message] | Rewritten
"""What the policy sees next. Text is a message by the user."""


class Step(Value, frozen=True, kw_only=True, gc=True):
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
