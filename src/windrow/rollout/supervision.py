"""Who owns the tasks of an object that lives longer than a call.

Promises: every task belongs to a crew; a crew's failure is the first exception of any of its tasks, it ends all the
others, and whoever asked to be told is told. Ending a crew cancels what still runs and waits for it, in bounded time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from windrow.errors import InternalError, WindrowError

A = TypeVar("A")


class Crew:
    """The tasks of one object, in one group of their own."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._group: asyncio.TaskGroup | None = None
        self._root: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: set[asyncio.Task[None]] = set()  # all and only the tasks that end by themselves when told to

    def start(self, first: Coroutine[Any, Any, None], name: str) -> None:
        """Open the group with its first task."""
        self._loop = asyncio.get_running_loop()
        self._root = self._loop.create_task(self._live(first, name), name=self.name)

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, ends_itself: bool = False) -> None:
        """Let a task of the crew do something; one that ends itself is given the time for it at the end."""
        if self._group is None:
            work.close()
            raise InternalError(f"{self.name} is over and cannot begin {name!r}")
        task = _add(self._group, self._watched(work), name)
        if ends_itself:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def check_loop(self) -> None:
        """Raise if this is another event loop than the one it lives on."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise InternalError(
                f"{self.name} lives on another event loop; make all calls from the one that made the first"
            )

    async def stop(self, within_s: float) -> bool:
        """Let end what ends itself, cancel the rest and wait for it; false if something would not end in time."""
        root = self._root
        if root is None or root.done():
            return True
        if self._ending:
            await asyncio.wait([*self._ending], timeout=within_s)
        root.cancel(ENOUGH)
        done, _ = await asyncio.wait({root}, timeout=within_s)
        return bool(done)

    def fail(self, error: BaseException) -> None:
        """Something outside the crew's tasks went wrong; it counts as theirs."""
        if self.failure is None:
            self.failure = error
            self._on_failure(error)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """A failure is told when it happens, not when all the others have ended."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(first_of(error))
            raise

    async def _live(self, first: Coroutine[Any, Any, None], name: str) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                _add(group, self._watched(first), name)
                await asyncio.get_running_loop().create_future()  # until it is stopped, or a task fails
        except BaseExceptionGroup:
            pass
        finally:
            self._group = None


ENOUGH = "the crew's work is done"


def _add(group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return group.create_task(work, name=name)


async def contained(kind: type[WindrowError], words: tuple[object, ...], call: Callable[[], Awaitable[A]]) -> A:
    """Wait for somebody else's code: neither an exit nor a stray cancellation in it ends more than this call."""
    try:
        return await call()
    except asyncio.CancelledError:
        if is_stray():
            raise kind(f"{_joined(words)} was cancelled from inside") from None
        raise
    except (Exception, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise kind(f"{_joined(words)} called sys.exit({error.code!r})") from None
    except BaseException as error:  # a panic of a library that is not written in Python
        raise kind(f"{_joined(words)}: {type(error).__name__}: {error}") from error


def _joined(words: tuple[object, ...]) -> str:
    return " ".join(map(str, words))


def is_stray() -> bool:
    """The cancellation in hand is one that nobody asked this task for: somebody else's, that leaked."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def first_of(error: BaseException) -> BaseException:
    """The exception that was first, out of its wrappings."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def leaves(error: BaseException) -> list[BaseException]:
    """All exceptions of a group, out of their wrappings."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]
