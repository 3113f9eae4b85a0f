"""Answers that tasks of a crew owe to whoever asked.

Promises: what was begun is done to its end, even if whoever asked gives up meanwhile; every pledge is answered, at the
latest when everything ends.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from windrow.errors import WindrowError
from windrow.rollout.supervision import Crew

T = TypeVar("T")


class Pledges:
    """All and only the answers that are still owed."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._owed: set[asyncio.Future[Any]] = set()

    async def see_through(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do something to its end, even if whoever asked for it gives up meanwhile."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._owed.add(done)
        done.add_done_callback(self._forget)
        self._crew.spawn(_into(done, work), name)
        return await asyncio.shield(done)

    def fail_all(self, error: BaseException) -> None:
        """Whoever waits is told why it waits in vain."""
        for future in [*self._owed]:
            if not future.done():
                future.set_exception(error)

    def _forget(self, done: "asyncio.Future[Any]") -> None:
        self._owed.discard(done)
        if not done.cancelled():
            done.exception()  # one that nobody waited for is no news to the event loop


async def _into(done: "asyncio.Future[T]", work: Coroutine[Any, Any, T]) -> None:
    try:
        result = await work
    except WindrowError as error:
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
