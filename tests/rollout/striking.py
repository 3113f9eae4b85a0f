"""Cancellation at the k-th await of a call, for every k."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal

from tests.rollout.kit import play

Moment = Literal["begin", "end"]
"""As soon as it waits for something; or when that has come, just before it goes on."""


class Strike:
    """Cancels whoever runs a coroutine at one of its awaits."""

    def __init__(self, at: int, moment: Moment) -> None:
        self.at = at
        self.moment = moment
        self.fell = False

    @types.coroutine
    def upon(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The same coroutine, with the strike in it."""
        waits = 0
        error: BaseException | None = None
        while True:
            try:
                waiting = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            waits += 1
            error = None
            if waits == self.at:
                self._fall(waiting)
            try:
                yield waiting
            except BaseException as thrown:  # noqa: BLE001 -- it is passed on
                error = thrown

    def _fall(self, waiting: "asyncio.Future[Any] | None") -> None:
        task = asyncio.current_task()
        assert task is not None

        def fall(_: object = None) -> None:
            self.fell = True
            task.cancel()

        if waiting is None or self.moment == "begin":
            fall()
        else:
            waiting.add_done_callback(fall)


async def struck(work: Coroutine[Any, Any, Any], strike: Strike) -> object:
    """What became of a call: its result, or the exception; a cancellation must pass through."""

    async def whole() -> object:
        return await strike.upon(work)

    task = asyncio.ensure_future(whole())
    await asyncio.wait({task})
    if task.cancelled():
        assert strike.fell, "it was cancelled by somebody else"
        return asyncio.CancelledError()
    error = task.exception()
    if error is not None:
        return error
    return task.result()


def at_every_await(scene: Callable[[Strike], Awaitable[None]], moment: Moment, most: int = 200) -> int:
    """Play a scene again and again, with the strike at its first await, at its second, and so on; says how many."""
    for at in range(1, most):
        strike = Strike(at, moment)
        try:
            play(_scene(scene, strike))
        except Exception as error:
            raise AssertionError(f"struck at await {at}, at its {moment}: {error!r}") from error
        if not strike.fell:
            return at - 1
    raise AssertionError(f"still not through after {most} awaits")


async def _scene(scene: Callable[[Strike], Awaitable[None]], strike: Strike) -> None:
    await scene(strike)
