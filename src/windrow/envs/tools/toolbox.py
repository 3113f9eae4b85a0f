"""The tools of one episode, and what a call of one comes to.

Promises: whatever a policy writes is answered in words; only what is the environment's own fault is raised. No
answer is longer than it may be.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from windrow.envs.protocol import Step
from windrow.envs.tools.calls import Call, Found, Unreadable
from windrow.envs.tools.functions import Unfit
from windrow.errors import ConfigError, EnvError, WindrowError, blame
from windrow.nearest import did_you_mean
from windrow.text import Message, Tool
from windrow.types import Value

OnError = Literal["tell", "raise"]
"""What becomes of an exception in a tool: the policy is told, or the episode fails."""

MAX_CHARS = 10_000
"""Longest answer of a tool, unless another is given."""


class Usable(Protocol):
    """A tool, wherever it lives."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Tool: ...

    async def call(self, arguments: Mapping[str, Any]) -> str | Step:
        """What it answers; a Step if that also rewards or ends the episode."""
        ...


class Answered(Value, frozen=True, gc=True):
    """What a call came to."""

    message: Message
    step: Step
    """Its reward, whether the episode is over with it, and its info."""


class Toolbox:
    """All and only the tools on offer."""

    def __init__(self, tools: Sequence[Usable], on_error: OnError = "tell", max_chars: int = MAX_CHARS) -> None:
        self._tools: dict[str, Usable] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name}; give one of them another name")
            self._tools[tool.name] = tool
        self._on_error = on_error
        self._max_chars = max_chars

    @property
    def schemas(self) -> tuple[Tool, ...]:
        return tuple(tool.schema for tool in self._tools.values())

    async def answer(self, found: Found) -> Answered:
        """Carry a call out."""
        if isinstance(found, Unreadable):
            return Answered(Message("tool", f"error: {found.why}"), Step())
        said = await self._said(found)
        step = said if isinstance(said, Step) else Step(observation=said)
        if not isinstance(step.observation, str):
            raise EnvError(
                f"tool {found.name} shows {step.observation!r:.60}; the observation of a tool's Step is text"
            )
        return Answered(Message("tool", self._short(step.observation), found.name), step)

    async def _said(self, call: Call) -> str | Step:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r:.60}{did_you_mean(call.name[:60], self._tools)}"
        try:
            with blame(_Raised, call.name):
                return await tool.call(call.arguments)
        except _Raised as error:
            if isinstance(error.__cause__, Unfit):
                return f"error: {error.__cause__}"
            if self._on_error == "tell":
                return f"error: {error}"
            raise EnvError(f"tool {error}") from error.__cause__

    def _short(self, text: str) -> str:
        more = len(text) - self._max_chars
        return text if more <= 0 else f"{text[: self._max_chars]}… ({more} characters more)"


class _Raised(WindrowError):
    """A tool raised something, which is its `__cause__`."""
