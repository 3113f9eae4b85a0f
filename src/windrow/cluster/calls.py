"""A call on workers that is under way.

Promises
- `result` and `await` give the same, as often as one likes; giving up waiting does not end the call.
- They end soon after one worker has failed, with what it raised and a note of who raised it. The first to speak is
  often a victim of another, so the others have `NEWS_S` to say what they know; the loss of a worker comes before
  all else.
- Past the deadline they end with a TimeoutError that names the workers, the method and the seconds.

What it does not do: workers that have not failed go on with what they are at.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import Any

from windrow.errors import HostLost, Refused
from windrow.types import Value

NEWS_S = 2.0
"""After the first failure: how long the others have to say what they know."""
VICTIMS = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError"})
"""What torch.distributed raises in those who wait for somebody who is gone."""


class Order(Value, frozen=True, kw_only=True, gc=True):
    """What was asked for."""

    method: str
    limit_s: float | None
    wanted: Sequence[str]
    """Whose answers are wanted, in order."""


class Call:
    """Something that workers are doing."""

    def __init__(
        self, order: Order, futures: Mapping[str, "Future[Any]"], put_together: Callable[[list[Any]], Any]
    ) -> None:
        """`futures`: what each worker is at, by what it is called in messages."""
        self._order = order
        self._futures = dict(futures)
        self._put_together = put_together
        self._began = time.monotonic()
        self._noted: set[str] = set()  # all and only the workers whose exception has a note of ours

    def done(self) -> bool:
        """Everybody has answered, or failed."""
        return all(future.done() for future in self._futures.values())

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 -- whatever the method gives
        """Wait for the answers; `timeout` in seconds, at most until the method's own deadline."""
        limit = self._limit(timeout)
        wait(self._futures.values(), limit.left(), FIRST_EXCEPTION)
        if self._should_wait_for_news():
            wait(self._futures.values(), NEWS_S, ALL_COMPLETED)
        return self._outcome(limit)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:  # noqa: ANN401 -- as above
        limit = self._limit(None)
        await self._quiet(limit.left(), lambda: self.done() or bool(self._troubles()))
        if self._should_wait_for_news():
            await self._quiet(NEWS_S, self.done)
        return self._outcome(limit)

    async def _quiet(self, within_s: float | None, is_over: Callable[[], bool]) -> None:
        """Wait for a moment to come, or for the time to pass."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def look(_: object) -> None:
            if is_over():
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(over.set)

        for future in self._futures.values():
            future.add_done_callback(look)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await over.wait()

    def _limit(self, timeout: float | None) -> "_Limit":
        own = self._order.limit_s
        until_own = None if own is None else self._began + own
        until = None if timeout is None else time.monotonic() + timeout
        if until is None or (until_own is not None and until_own <= until):
            return _Limit(seconds=own, until=until_own, way_out="raise its timeout_s if it needs longer")
        return _Limit(seconds=timeout, until=until, way_out="the call goes on, so give result more time or ask again")

    def _should_wait_for_news(self) -> bool:
        troubles = self._troubles()
        return bool(troubles) and not self.done() and not any(isinstance(t, HostLost) for t in troubles.values())

    def _troubles(self) -> dict[str, BaseException]:
        """What has gone wrong, by worker."""
        raised = {name: _raised(future) for name, future in self._futures.items() if future.done()}
        return {name: error for name, error in raised.items() if error is not None}

    def _outcome(self, limit: "_Limit") -> Any:  # noqa: ANN401 -- as above
        troubles = self._troubles()
        if troubles:
            worker = min(troubles, key=lambda name: _distance(troubles[name]))
            self._note(worker, troubles[worker])
            raise troubles[worker]
        late = [name for name, future in self._futures.items() if not future.done()]
        if late:
            raise TimeoutError(
                f"{self._order.method}: worker {', '.join(late)} has not answered within {limit.seconds:g} s; "
                f"{limit.way_out}"
            )
        return self._put_together([self._futures[name].result() for name in self._order.wanted])

    def _note(self, worker: str, error: BaseException) -> None:
        if worker not in self._noted:
            self._noted.add(worker)
            error.add_note(f"{self._order.method}: raised by worker {worker}")


class _Limit(Value, frozen=True, kw_only=True):
    """When waiting ends."""

    seconds: float | None
    until: float | None
    way_out: str
    """Whose limit it is, and what can be done about it."""

    def left(self) -> float | None:
        return None if self.until is None else max(0.0, self.until - time.monotonic())


def _raised(future: "Future[Any]") -> BaseException | None:
    return Refused("it was ended before it had answered") if future.cancelled() else future.exception()


def _distance(error: BaseException) -> int:
    """From the cause: a loss, then what was raised, then the complaint of those who lost somebody."""
    if isinstance(error, HostLost):
        return 0
    return 2 if type(error).__name__ in VICTIMS else 1
