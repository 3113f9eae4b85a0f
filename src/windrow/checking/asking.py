"""One call to an environment, with everything that can go wrong with it.

Promises: a call is answered, or `GaveUp` is raised and the notes say why; nothing that an environment raises gets any
further. A call that never comes back although it is cancelled is not seen here but by whoever watches this process.
"""

import asyncio
import contextlib
import inspect
import io
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from windrow.checking import places
from windrow.checking.meter import Meter
from windrow.checking.rules import Notes
from windrow.envs.protocol import DEADLINE
from windrow.errors import EnvError, WindrowError, blame
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
        may_block: bool = False,
    ) -> None:
        self.notes = notes
        self._meter = meter
        self._timeout_s = timeout_s
        self._tell = tell
        self._may_block = may_block
        self._limit: asyncio.Timeout | None = None  # of the call in hand
        self._stalls: Counter[str] = Counter()  # how often each was seen, by what and where

    def now(self, call: str, what: Callable[[], T], where: Where, *, measured: bool = True) -> T:
        """An ordinary call."""
        self._tell(call, where)
        with self._judged(call, where), self._listening(call, where), self._meter if measured else _UNMEASURED:
            return what()

    async def ask(self, call: str, what: Callable[[], Awaitable[T]], where: Where) -> T:
        """A call that is awaited, within its time."""
        self._tell(call, where)
        with self._judged(call, where), self._listening(call, where), self._meter:
            made: object = what()
            if not inspect.isawaitable(made):
                self.notes.add("not-async", f"{call} is an ordinary function", key=call, at=_at(where))
                raise GaveUp
            async with asyncio.timeout(self._timeout_s) as self._limit:
                deadline = DEADLINE.set(self._limit.when())
                try:
                    return await made  # type: ignore[no-any-return]  # whatever the environment answers
                finally:
                    DEADLINE.reset(deadline)

    def found(self, rule: str, message: str, where: Where, *, key: str = "") -> None:
        """Note a mistake in an answer."""
        self.notes.add(rule, message, key=key, at=_at(where))

    @contextlib.contextmanager
    def _judged(self, call: str, where: Where) -> Iterator[None]:
        try:
            with blame(EnvError, call):
                yield
        except GaveUp:
            raise
        except EnvError as error:
            self._failed(call, error.__cause__ or error, where)
            raise GaveUp from None
        except WindrowError as error:
            self._failed(call, error, where)
            raise GaveUp from None
        except SystemExit as error:
            self._failed(call, error, where)
            raise GaveUp from None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._failed(call, error, where)
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
        words = f"{call} raised {type(error).__name__}: {error!s:.200}{places.told(place)}"
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
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            yield
        if said.getvalue():
            self.notes.add("prints", f"{call} prints {said.getvalue()!r:.60}", key=call, at=_at(where))


_UNMEASURED = contextlib.nullcontext()


def _at(where: Where) -> tuple[int, int | None]:
    return where.seed, where.turn
