"""Threads for calls that may block: used again as long as they come back.

Promises: a call that is cancelled ends at once; its thread, if it does not come back, is left behind and replaced, and
keeps neither others nor the end of the program waiting.
"""

import asyncio
from typing import Any

from windrow.isolation.threads import ThreadHost, Threads


class Pool:
    """As many threads as there are calls at once."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._idle: list[ThreadHost] = []  # all and only those that nobody uses

    async def call(self, method: str, *args: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        """Call a method of an object in a thread."""
        host = self._idle.pop() if self._idle else self._threads.take()
        try:
            said = await host.call(method, *args)
        except asyncio.CancelledError:
            self._threads.give_back(host)
            raise
        except BaseException:
            self._idle.append(host)
            raise
        self._idle.append(host)
        return said

    async def close(self) -> None:
        """End all threads that can end."""
        await self._threads.close()
