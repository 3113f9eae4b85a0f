"""Any environment, with tools beside it.

Promises: the tools stand in the first observation; an action that calls some is answered by them and the environment
does not see it; any other action is the environment's, and so is a call of a tool that it offers itself. What was
opened for an episode is closed with it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol, runtime_checkable

from windrow.envs.plain import PlainEnv, as_messages, lend_skills
from windrow.envs.protocol import Briefing, Env, EnvFactory, Observation, Step
from windrow.envs.tools.calls import Call, Found, Parse, Unreadable, find_calls, write_call
from windrow.envs.tools.functions import ToolFunction, as_tool
from windrow.envs.tools.toolbox import MAX_CHARS, OnError, Toolbox, Usable
from windrow.errors import ConfigError
from windrow.text import Message, Tool
from windrow.trajectory import Task
from windrow.types import Value, but


class Opening(Protocol):
    """Tools for one episode, as long as it is open."""

    async def open(self) -> Sequence[Usable]: ...

    async def close(self) -> None:
        """Also after an opening that failed or was cut off."""
        ...


@runtime_checkable
class ToolSource(Protocol):
    """Tools that have to be opened before they can be used: those of a server."""

    def session(self) -> Opening: ...


Given = Callable[..., Any] | ToolFunction | ToolSource
Tools = Sequence[Given] | Callable[[Any], Sequence[Given]]
"""Functions, tools and servers; or what makes them out of the environment, when it has started."""


class Offer(Value, frozen=True, kw_only=True, gc=True):
    """What is offered, and how."""

    tools: Any  # Tools; msgspec does not need to know
    parse: Parse = find_calls
    max_calls: int | None = None
    """Calls in one episode; None for any number."""
    reward_per_call: float = 0.0
    on_error: OnError = "tell"
    max_chars: int = MAX_CHARS


def with_tools(
    make: EnvFactory,
    tools: Tools,
    *,
    parse: Parse = find_calls,
    max_calls: int | None = None,
    reward_per_call: float = 0.0,
    on_error: OnError = "tell",
    max_chars: int = MAX_CHARS,
) -> EnvFactory:
    """Makes environments with tools beside them.

    `tools` is a list of functions, tools and servers, or a function that takes the environment and gives such a list,
    so that tools can use its state. A tool may return a `Step`: its text is the answer, its reward counts, and it may
    end the episode. Beyond `max_calls` a call is answered with an error.
    """
    if not callable(tools):
        for each in tools:
            _usable(each)  # what is wrong with a function is said now
    offer = Offer(
        tools=tools,
        parse=parse,
        max_calls=max_calls,
        reward_per_call=reward_per_call,
        on_error=on_error,
        max_chars=max_chars,
    )
    return partial(ToolEnv, make, offer)


class ToolEnv:
    """An environment with tools, for one episode."""

    def __init__(self, make: EnvFactory, offer: Offer) -> None:
        self.inner: Env = make()
        """The environment itself."""
        self._offer = offer
        self._box = Toolbox([])
        self._theirs: set[str] = set()  # all and only the tools that the environment offers itself
        self._calls = 0
        self._open = AsyncExitStack()
        lend_skills(self.inner, self)

    async def start(self, task: Task) -> Observation:
        first = await self.inner.start(task)
        self._box = Toolbox(await self._opened(), self._offer.on_error, self._offer.max_chars)
        own = first.tools if isinstance(first, Briefing) else ()
        self._theirs = _names(own)
        for name in self._theirs & _names(self._box.schemas):
            raise ConfigError(f"two tools are called {name}, one is the environment's own; give the other another name")
        return Briefing(as_messages(first), (*own, *self._box.schemas))

    async def step(self, action: str) -> Step:
        found = self._offer.parse(action)
        if all(self._is_theirs(each) for each in found):
            return await self.inner.step(action)
        return await self._answered(found)

    async def close(self) -> None:
        try:
            await self._open.aclose()
        finally:
            await self.inner.close()

    async def _opened(self) -> list[Usable]:
        given: Any = self._offer.tools
        if callable(given):
            given = given(self.inner.inner if isinstance(self.inner, PlainEnv) else self.inner)
        if not isinstance(given, Sequence):
            raise ConfigError(f"the tools for an environment are {given!r:.60}; give a list of them")
        ready: list[Usable] = []
        for each in given:
            usable = _usable(each)
            if isinstance(usable, ToolSource):
                session = usable.session()
                self._open.push_async_callback(session.close)
                ready.extend(await session.open())
            else:
                ready.append(usable)
        return ready

    async def _answered(self, found: Sequence[Found]) -> Step:
        """The answers to some calls, one after the other, until one of them ends the episode."""
        messages: list[Message] = []
        reward = 0.0
        info: dict[str, Any] = {}
        for each in found:
            step = await self._answer(each)
            messages.extend(as_messages(step.observation))
            reward += step.reward
            info |= step.info
            if step.terminated or step.truncated:
                return but(step, observation=tuple(messages), reward=reward, info=info)
        return Step(observation=tuple(messages), reward=reward, info=info)

    async def _answer(self, found: Found) -> Step:
        if isinstance(found, Call) and self._is_theirs(found):
            return await self.inner.step(write_call(found.name, **found.arguments))
        self._calls += 1
        most = self._offer.max_calls
        if most is not None and self._calls > most:
            found = Unreadable(f"no calls left of {most}; answer without a tool")
        paid = self._offer.reward_per_call
        if isinstance(found, Unreadable):
            paid = min(paid, 0.0)  # what is no call may cost, and is not paid for
        answered = await self._box.answer(found)
        return but(answered.step, observation=(answered.message,), reward=answered.step.reward + paid)

    def _is_theirs(self, found: Found) -> bool:
        return isinstance(found, Call) and found.name in self._theirs


def _names(tools: Sequence[Tool]) -> set[str]:
    """What they are called; one of an environment may be anything."""
    names = set()
    for tool in tools:
        match tool:
            case {"function": {"name": str(name)}}:
                names.add(name)
            case _:
                pass
    return names


def _usable(given: object) -> ToolFunction | ToolSource:
    if isinstance(given, ToolFunction | ToolSource):
        return given
    if isinstance(given, Mapping) or not callable(given):
        raise ConfigError(f"{given!r:.60} is no tool; give a function, the result of as_tool, or a server")
    return as_tool(given)
