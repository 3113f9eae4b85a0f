"""Environments and engines for tests: the smallest that show a behaviour, good or bad."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from windrow.engines.scripted import GOLDEN, Script, ScriptedEngine, scramble
from windrow.envs.protocol import Observation, Rewritten, Step
from windrow.requests import Chunk, Request
from windrow.text import ByteCodec, Message
from windrow.trajectory import Task

When = Callable[[Task, int], bool]
"""Of a task and how often it was played before: whether the environment misbehaves."""


def always(_task: Task, _before: int) -> bool:
    return True


def first_time(_task: Task, before: int) -> bool:
    return before == 0


class EnvLog:
    """What became of all environments."""

    def __init__(self) -> None:
        self.made = 0
        self.open: set[object] = set()  # all and only those that were made and not closed
        self.plays: Counter[int] = Counter()  # by ordinal: how often a task was started
        self.steps = 0
        self.closing = 0


class Echo:
    """Shows its task, then what was said, for some turns; each is worth the length of what was said."""

    def __init__(
        self, log: EnvLog, *, turns: int = 1, start_s: float = 0.0, step_s: float = 0.0, close_s: float = 0.0
    ) -> None:
        self.log = log
        self.turns = turns
        self.turn = 0
        self.task = Task(ordinal=-1)
        self.before = 0
        self._start_s, self._step_s, self._close_s = start_s, step_s, close_s
        log.made += 1
        log.open.add(self)

    async def start(self, task: Task) -> Observation:
        self.task = task
        self.before = self.log.plays[task.ordinal]
        self.log.plays[task.ordinal] += 1
        await asyncio.sleep(self._start_s)
        return f"task {task.ordinal}"

    async def step(self, action: str) -> Any:
        await asyncio.sleep(self._step_s)
        self.log.steps += 1
        self.turn += 1
        return Step(observation=f"turn {self.turn}", reward=float(len(action)), terminated=self.turn == self.turns)

    async def close(self) -> None:
        self.log.closing += 1
        await asyncio.sleep(self._close_s)
        self.log.open.discard(self)


class Misbehaving(Echo):
    """Does something else in one of its steps."""

    def __init__(self, log: EnvLog, *, at: int = 0, when: When = always, **echo: Any) -> None:
        super().__init__(log, **{"turns": at + 2} | echo)
        self._at = at
        self._when = when

    async def step(self, action: str) -> Any:
        if self.turn == self._at and self._when(self.task, self.before):
            return await self.misbehave(action)
        return await super().step(action)

    async def misbehave(self, action: str) -> Any:
        raise NotImplementedError


class Breaking(Misbehaving):
    """Raises."""

    async def misbehave(self, action: str) -> Any:
        raise KeyError("the door")


class Hanging(Misbehaving):
    """Never answers."""

    async def misbehave(self, action: str) -> Any:
        await asyncio.get_running_loop().create_future()


class Answering(Misbehaving):
    """Answers what it was told to."""

    def __init__(self, log: EnvLog, *, answer: Any, **echo: Any) -> None:
        super().__init__(log, **echo)
        self._answer = answer

    async def misbehave(self, action: str) -> Any:
        self.turn += 1
        return self._answer


class Rewriting(Misbehaving):
    """Begins its history anew."""

    async def misbehave(self, action: str) -> Any:
        step = await super(Misbehaving, self).step(action)
        return Step(observation=Rewritten((Message("user", "anew"),)), reward=step.reward)


class Slow(Echo):
    """Takes its time with some tasks."""

    def __init__(self, log: EnvLog, *, seconds: float, slow: frozenset[int] = frozenset(), **echo: Any) -> None:
        super().__init__(log, **echo)
        self._seconds = seconds
        self._slow = slow

    async def step(self, action: str) -> Any:
        if self.task.ordinal in self._slow:
            await asyncio.sleep(self._seconds)
        return await super().step(action)


class Watched(ScriptedEngine):
    """A scripted engine that remembers what it was asked and when it answered."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.requests: list[Request] = []
        self.chunks: list[tuple[float, str, Chunk]] = []

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                self.chunks.append((asyncio.get_running_loop().time(), request.id, chunk))
                yield chunk


def talk(low: int = 4, high: int = 24) -> Script:
    """Letters, as many as the seed says, and the end of the message."""

    def script(request: Request) -> list[int]:
        length = low + request.seed % (high - low + 1)
        letters = [97 + scramble(request.seed + GOLDEN * (place + 1)) % 26 for place in range(length)]
        return [*letters, ByteCodec.END]

    return script
