"""One call to an environment, with everything that can go wrong with it.

Promises: a call is answered, or `GaveUp` is raised and the notes say why; nothing that an environment raises gets any
further, whatever kind of exception it is: nobody but the environment interrupts or cancels what is played here. A call
that never comes back although it is cancelled is not seen here but by whoever watches this process.
"""

import asyncio
import contextlib
import inspect
import io
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from windrow.checking.meter import Meter
from windrow.checking.rules import Notes
from windrow.envs.protocol import DEADLINE
from windrow.errors import EnvError, WindrowError
from windrow.loading import places
from windrow.loading.words import said, shown
from windrow.types import Value

T = TypeVar("T")


class GaveUp(WindrowError):
    """An episode cannot go on; the notes say why."""


class Where(Value, frozen=True):
    """What is being played."""

    player: str
    seed: int
    turn: int | None = None

    def __str__(self) -> str:
        turn = "" if self.turn is None else f", turn {self.turn}"
        return f"task {self.seed} of the {self.player} policy{turn}"


class Asker:
    """Asks environments, and notes what is wrong with how they answer."""

    def __init__(
        self,
        notes: Notes,
        meter: Meter,
        timeout_s: float,
        *,
        tell: Callable[[str, Where], None] = lambda *_: None,
        overhear: Callable[[], str] = lambda: "",
        may_block: bool = False,
    ) -> None:
        self.notes = notes
        self._meter = meter
        self._timeout_s = timeout_s
        self.is_over = False
        self._tell = tell
        self._overhear = overhear
        self._doing: tuple[str, Where] = ("nothing", Where("no", 0))
        self._may_block = may_block
        self._limit: asyncio.Timeout | None = None  # of the call in hand
        self._stalls: Counter[str] = Counter()  # how often each was seen, by what and where

    def now(self, call: str, what: Callable[[], T], where: Where, *, measured: bool = True) -> T:
        """An ordinary call."""
        self._begin(call, where)
        with self._judged(call, where), self._listening(call, where), self._meter if measured else _UNMEASURED:
            return what()

    async def ask(self, call: str, what: Callable[[], Awaitable[T]], where: Where) -> T:
        """A call that is awaited, within its time."""
        self._begin(call, where)
        with self._judged(call, where), self._listening(call, where), self._meter:
            made: object = what()
            if not inspect.isawaitable(made):
                self.notes.add("not-async", f"{call} {_kind(made)}", key=call, at=_at(where))
                raise GaveUp
            async with asyncio.timeout(self._timeout_s) as self._limit:
                deadline = DEADLINE.set(self._limit.when())
                try:
                    answer: T = await made
                    await _if_cancelled()
                    return answer
                finally:
                    DEADLINE.reset(deadline)

    def _begin(self, call: str, where: Where) -> None:
        self._doing = call, where
        self._tell(call, where)

    def found(self, rule: str, message: str, where: Where, *, key: str = "") -> None:
        """Note a mistake in an answer."""
        self.notes.add(rule, message, key=key, at=_at(where))

    @contextlib.contextmanager
    def looking(self, call: str, where: Where) -> Iterator[None]:
        """Look at the answer of a call; one that raises meanwhile is no answer."""
        with self._judged(f"what came of {call}", where):
            yield

    def let_loose(self, error: BaseException) -> None:
        """Something came out of the event loop itself, past every call: nothing can be asked any more."""
        self.is_over = True
        call, where = self._doing
        place = places.of_error(error)
        words = (
            f"{call} or a task of it broke the event loop: {type(error).__name__}: {said(error)}{places.told(place)}"
        )
        self.notes.add("raises", words, key="loop", place=place, at=_at(where))

    @contextlib.contextmanager
    def _judged(self, call: str, where: Where) -> Iterator[None]:
        try:
            yield
        except GaveUp:
            raise
        except BaseException as error:
            if self.is_over:
                raise
            if isinstance(error, asyncio.CancelledError):
                _not_cancelled()
            cause = error.__cause__ if isinstance(error, EnvError) else None
            self._failed(call, cause or error, where)
            raise GaveUp from None
        finally:
            self._note_stalls(call, where)

    def _failed(self, call: str, error: BaseException, where: Where) -> None:
        limit, self._limit = self._limit, None
        if isinstance(error, TimeoutError) and limit is not None and limit.expired():
            place = places.of_error(error.__cause__ or error)
            words = f"{call} did not return within {self._timeout_s:g} s; it waits{places.told(place)}"
            self.notes.add("never-returns", words, key=call, place=place, at=_at(where))
            return
        place = places.of_error(error)
        why = said(error)
        words = f"{call} raised {type(error).__name__}{f': {why}' if why else ''}{places.told(place)}"
        self.notes.add("raises", words, key=f"{call} {type(error).__name__} {place}", place=place, at=_at(where))

    def _note_stalls(self, call: str, where: Where) -> None:
        """The first one makes us look where; two in the same place count."""
        for stall in self._meter.stalls:
            self._meter.watch()
            key = f"{stall.rule} {call} {stall.place}"
            self._stalls[key] += 1
            if not stall.place or self._stalls[key] < 2:
                continue
            does = "sleeps" if stall.rule == "blocking" else "computes"
            words = f"{call} {does} for {stall.seconds:.2g} s without letting go{places.told(stall.place)}"
            mild = stall.rule == "blocking" and self._may_block
            self.notes.add(stall.rule, words, key=key, place=stall.place, at=_at(where), mild=mild)
        self._meter.stalls.clear()

    @contextlib.contextmanager
    def _listening(self, call: str, where: Where) -> Iterator[None]:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            yield
        if heard.getvalue():
            self.notes.add("prints", f"{call} prints {shown(heard.getvalue())}", key=call, at=_at(where))
        elif past := self._overhear():
            words = f"{call}, or what it started, writes {shown(past)} to the standard output or error"
            self.notes.add("prints", words, key=call, at=_at(where))


_UNMEASURED = contextlib.nullcontext()


def _kind(made: object) -> str:
    """What a method is whose answer cannot be awaited."""
    generates = inspect.isasyncgen(made) or inspect.isgenerator(made)
    return "has a `yield`, so that it makes a generator" if generates else "is an ordinary function"


async def _if_cancelled() -> None:
    """Whoever cancelled this task meanwhile is told by the next wait; let it be this one."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def _not_cancelled() -> None:
    """Take back that this task was cancelled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _at(where: Where) -> tuple[int, int | None]:
    return where.seed, where.turn
