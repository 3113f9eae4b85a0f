"""Agents that keep their own loop: `async def rollout(task, policy) -> reward` as an environment.

Promises: the function runs until it asks the policy, and on when it is answered; what it returns ends the episode. Its
errors, and asking in ways that cannot be answered, are the environment's fault. Closing cancels it and waits for it,
but not for ever.
It does not make a blocking function harmless: one that waits without `await` belongs into a thread or a process.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from windrow.envs.plain import as_messages, as_number, as_observation, name_of
from windrow.envs.protocol import DEADLINE, Briefing, EnvFactory, Observation, Rewritten, Step, deadline
from windrow.errors import ConfigError, EnvError
from windrow.text import ANSWER, Message, Tool
from windrow.trajectory import Task
from windrow.types import but

END_GRACE_S = 2.0
"""How long a function may take to end when it is cancelled; shorter than what closing an environment may take."""

Said = Message | Mapping[str, Any]
"""A message, or one as clients of chat services write it: `{"role": …, "content": …}`."""

Rollout = Callable[..., Awaitable[Any]]
"""Takes a task and a policy; returns the reward: a number, or a `Step` whose `info` is kept as well."""


def agent(rollout: Rollout, /, **kwargs: object) -> EnvFactory:
    """Makes environments of an `async def rollout(task, policy)`; other arguments are handed to it."""
    given: object = rollout
    if not callable(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise ConfigError(f"agent({rollout!r:.60}) needs an `async def rollout(task, policy)` that returns its reward")
    return partial(AgentEnv, partial(rollout, **kwargs) if kwargs else rollout)


class Policy:
    """What the function asks. One question at a time."""

    def __init__(self, ask: Callable[[Observation], Awaitable[str]]) -> None:
        self._ask = ask
        self._tools: tuple[Tool, ...] | None = None
        self.history: tuple[Message, ...] = ()
        """What was shown and said so far."""

    async def __call__(self, observation: Observation) -> str:
        """Show the policy something more; gives what it says to it."""
        shown = as_observation(observation, "policy", "call")
        messages = as_messages(shown)
        if isinstance(shown, Briefing):
            self._offer(shown.tools)
        elif self._tools is None:
            self._tools = ()
        before = () if isinstance(shown, Rewritten) else self.history
        reply = await self._ask(shown)
        self.history = (*before, *messages, Message(ANSWER, reply))
        return reply

    async def chat(self, messages: Sequence[Said], tools: Sequence[Tool] = ()) -> str:
        """The whole conversation, as agents keep it; gives what the policy says to it.

        If it begins with what was shown and said so far, word by word, the rest is added to the history; otherwise it
        replaces the history.
        """
        said = tuple(_message(each) for each in messages)
        known = len(self.history)
        if len(said) > known and said[:known] == self.history:
            added = said[known:]
            return await self(Briefing(added, tuple(tools)) if tools and not known else self._same(added, tools))
        if not said or said == self.history:
            raise EnvError("policy.chat was asked with nothing new; add a message")
        return await self(Rewritten(self._same(said, tools)))

    def _offer(self, tools: tuple[Tool, ...]) -> None:
        if self._tools is not None:
            raise EnvError("the policy was offered tools after it had begun; offer them in the first observation")
        self._tools = tools

    def _same(self, messages: tuple[Message, ...], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """The messages, if the tools beside them are those that are on offer."""
        if tools and tuple(tools) != self._tools:
            raise EnvError("policy.chat was given other tools than at first; they stay the same for an episode")
        return messages


class AgentEnv:
    """One run of such a function, for one episode."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._name = name_of(rollout)
        self._running: asyncio.Task[Step] | None = None
        self._context: Context | None = None
        self._asked: asyncio.Future[Observation] | None = None  # what the caller of the environment waits for
        self._answer: asyncio.Future[str] | None = None  # what the function waits for
        self._fault: EnvError | None = None
        self._closed = False

    async def start(self, task: Task) -> Observation:
        self._context = copy_context()
        loop = asyncio.get_running_loop()
        self._asked = loop.create_future()
        self._running = loop.create_task(self._run(task), name=f"agent {self._name}", context=self._context)
        self._running.add_done_callback(_look)
        said = await self._next()
        if isinstance(said, Step):
            raise EnvError(f"{self._name} returned {said.reward:g} without asking the policy; await policy(…) in it")
        return said

    async def step(self, action: str) -> Step:
        if self._answer is None or self._context is None:
            raise EnvError(
                f"{self._name} has not asked anything; start it before its first step, and not after its end"
            )
        self._context.run(DEADLINE.set, deadline())  # the function sees the deadline of the call that it works for
        answer, self._answer = self._answer, None
        self._asked = asyncio.get_running_loop().create_future()
        if not answer.done():  # nobody waits for it any more
            answer.set_result(action)
        said = await self._next()
        return said if isinstance(said, Step) else Step(observation=said)

    async def close(self) -> None:
        self._closed = True
        running = self._running
        if running is None or running.done():
            return
        running.cancel()
        await asyncio.wait({running}, timeout=END_GRACE_S)
        if not running.done():
            raise EnvError(f"{self._name} goes on although it was cancelled; let CancelledError pass in it")
        if self._fault is None and not running.cancelled():
            running.result()  # what went wrong while it ended

    async def _next(self) -> Observation | Step:
        """Wait until the function asks or is over."""
        running, asked = self._running, self._asked
        assert running is not None
        assert asked is not None
        either: set[asyncio.Future[Any]] = {running, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            running.cancel()  # nobody will answer it again
            raise
        if self._fault is not None:
            running.cancel()
            raise self._fault
        if not running.done():
            return asked.result()
        if running.cancelled():
            raise EnvError(f"{self._name} was cancelled from inside")
        return running.result()

    async def _run(self, task: Task) -> Step:
        try:
            going = self._rollout(task, Policy(self._ask))
            if not inspect.isawaitable(going):
                raise EnvError(f"{self._name} returned {going!r:.60} at once; write it as `async def`")
            return self._last(await going)
        except SystemExit as error:  # one episode does not end the program
            raise EnvError(f"{self._name} called sys.exit({error.code!r})") from None

    def _last(self, said: object) -> Step:
        if isinstance(said, Step):
            return but(said, terminated=not said.truncated)
        return Step(reward=as_number(said, self._name), terminated=True)

    async def _ask(self, observation: Observation) -> str:
        """Hand an observation to whoever plays, and wait for what is said to it."""
        running = self._running
        if self._closed or running is None or running.done():
            await asyncio.sleep(0)  # one that asks in a loop whatever happens must not hold up everybody else
            raise EnvError(f"{self._name} asked the policy after its episode was over")
        loop = asyncio.get_running_loop()
        if running.get_loop() is not loop:
            raise EnvError(f"{self._name} asked the policy on another event loop than its own")
        if self._answer is not None:
            self._fault = EnvError(f"{self._name} asked the policy again before it had answered; await each answer")
            raise self._fault
        assert self._asked is not None
        self._answer = loop.create_future()
        self._asked.set_result(observation)
        return await self._answer


def _look(ended: "asyncio.Task[Step]") -> None:
    """See what a function raised even if nobody asks for it any more; asyncio complains otherwise."""
    if not ended.cancelled():
        ended.exception()


def _message(said: Said) -> Message:
    """A message as chat templates know it."""
    match said:
        case Message():
            return said
        case {"role": str(role), "content": str(content)}:
            unknown = [key for key in said if key not in {"role", "content", "name"} and said[key] is not None]
            if unknown:
                raise EnvError(f"policy.chat got a message with {unknown[0]!r}; only role, content and name are known")
            return Message(role, content, str(said.get("name") or ""))
        case _:
            raise EnvError(f"policy.chat got {said!r:.60}; a message has a role and a content, both text")
