"""What the engine's thread says to event loops: answers to orders, and the chunks of a request.

Promises: whatever is said to a loop arrives there in order, in one call per step; a loop that is closed is not spoken
to; who no longer listens costs nothing.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from windrow.errors import EngineError, WindrowError
from windrow.requests import Chunk

T = TypeVar("T")


class Outbox:
    """All and only words that have not been sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def put(self, loop: asyncio.AbstractEventLoop, words: Callable[[], None]) -> None:
        with self._lock:
            self._words.setdefault(loop, []).append(words)

    def send(self) -> None:
        """Hand everything over."""
        if not self._words:
            return
        with self._lock:
            words, self._words = self._words, {}
        for loop, mine in words.items():
            with suppress(RuntimeError):  # it was closed, and with it everybody who listened
                loop.call_soon_threadsafe(_speak, mine)


class Answer(Generic[T]):
    """The answer to one order, awaited by one task."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        self._outbox.put(self._loop, partial(self._settle, value))

    def fail(self, error: WindrowError) -> None:
        self._outbox.put(self._loop, partial(self._break, error))

    async def wait(self) -> T:
        return await self._future

    def _settle(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _break(self, error: WindrowError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Stream:
    """The answer to one request, listened to by one task."""

    def __init__(self, outbox: Outbox, room: int) -> None:
        self.room = room  # tokens that may still come
        self.over = False  # its last word has arrived
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._items: deque[Chunk | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_more(self) -> bool:
        """Something has arrived that nobody has taken."""
        return bool(self._items)

    def put(self, item: Chunk | EngineError) -> None:
        """Called by the engine's thread."""
        self._outbox.put(self._loop, partial(self._arrive, item))

    async def next(self) -> Chunk:
        """Wait for the next chunk; raises if the request failed."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        item = self._items.popleft()
        if isinstance(item, EngineError):
            raise type(item)(*item.args) from item.__cause__  # each listener has a traceback of its own
        return item

    def _arrive(self, item: Chunk | EngineError) -> None:
        if isinstance(item, EngineError):
            self.over = True
        else:
            self.room -= len(item.token_ids)
            self.over = item.finish is not None
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _speak(words: list[Callable[[], None]]) -> None:
    for word in words:
        word()
