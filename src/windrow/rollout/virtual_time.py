"""An event loop whose clock jumps when everything sleeps.

Promises: time passes only while nothing can run, and then exactly up to the next deadline, so a test of an hour takes
no time and comes out the same every time. Blocking work runs at once, in place. If nothing can ever happen again the
loop says so instead of waiting for ever.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from windrow.errors import InternalError

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own, which starts at 0."""

    def __init__(self) -> None:
        self.moment = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.moment

    def run_in_executor(  # type: ignore[override]  # the base class promises a future of the function's type
        self,
        executor: Executor | None,  # noqa: ARG002 -- there are no other threads on virtual time
        func: Callable[..., T],
        *args: Any,  # noqa: ANN401 -- as the base class has it
    ) -> asyncio.Future[T]:
        """Blocking work costs no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- whatever it raises belongs to whoever awaits it
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class _Jump(selectors.DefaultSelector):
    """Instead of waiting for a deadline, moves the clock there."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise InternalError("every task waits and no deadline is set: nothing can happen any more")
        self._loop.moment += timeout
        return events
