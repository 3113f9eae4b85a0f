"""One process with one object in it, as seen from here.

Promises: a call is answered, or fails, exactly once; if the wait for it is cancelled the process is killed. How a
process came to its end is told to whoever waited for it, and to whoever calls it afterwards. Nothing here waits but
`call` and `gone`.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any

from windrow.errors import ConfigError, InternalError, WindrowError
from windrow.isolation.messages import SAID, Answer, Call, Gone, Made, Raised, Renew, pack, unpack
from windrow.isolation.pickles import Unsendable, load
from windrow.isolation.settings import HostSettings
from windrow.isolation.wire import Wire

CUT_GRACE_S = 0.5
"""A process that closes its connection is usually dying, and then how it died is news; one that is not is killed."""
SHORT = 300
"""Characters of its output that stand in a message; the cause has more."""


class Elsewhere(Exception):
    """What was seen in another process: a traceback, or the end of its output. The cause of errors raised here."""

    def __init__(self, seen: str, kinds: Iterable[str] = ()) -> None:
        super().__init__(f"in a process of its own\n{seen}")
        self.kinds = frozenset(kinds)
        """Names of the class of what was raised there, and of the classes above it."""


class Host:
    """A process with an object in it."""

    def __init__(
        self,
        connection: socket.socket,
        settings: HostSettings,
        *,
        pid: int,
        dump: Callable[[object], bytes],
        kill: Callable[[bool], None],
        on_made: Callable[["Host", WindrowError | None], None],
    ) -> None:
        """`on_made` is told when there is an object, or why there is none; `kill` sees to its end, soon or now."""
        self.pid = pid
        self._settings = settings
        self._dump = dump
        self._kill = kill
        self._on_made = on_made
        self._doing: str | None = "being made"  # what it was asked for and has not answered
        self._answer: asyncio.Future[Any] | None = None
        self._is_sound = True
        self._trouble = ""  # what is wrong with its connection
        self._failure: WindrowError | None = None  # how it ended
        self._gone = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._wire = Wire(connection, self._hear, self._cut)

    @property
    def is_sound(self) -> bool:
        """It lives, has an object that never raised, and owes nobody an answer."""
        return self._is_sound and self._doing is None

    @property
    def is_alive(self) -> bool:
        """It can be called."""
        return self._failure is None

    async def call(self, method: str, *args: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        """Call a method of the object and wait for what it returns."""
        if self._failure is not None:
            raise self._failure
        if self._doing is not None:
            raise InternalError(f"{self._settings.name} is asked to {method} while it is {self._doing}")
        frame = self._asked(method, args)
        self._doing = method
        self._answer = asyncio.get_running_loop().create_future()
        self._wire.send(frame)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.end(now=True)
            raise
        finally:
            self._answer = None

    def renew(self) -> None:
        """Have another object made in the same process; `on_made` is told."""
        self._doing = "being made"
        self._wire.send(pack(Renew()))

    def end(self, *, now: bool = False) -> None:
        """Kill it, with everything below it, soon or now; what it has not answered fails."""
        if self._failure is None:
            self._is_sound = False
            now = now or self._doing is not None
            self._fail(self._error("it was ended"))
            self._wire.close()
            self._kill(now)

    async def gone(self) -> None:
        """Wait until it is dead."""
        await self._gone.wait()

    def bury(self, gone: Gone | None) -> None:
        """It is dead; None if the nest that it came from died as well."""
        if self._patience is not None:
            self._patience.cancel()
        self._wire.read_all()  # it may have answered before it died
        self._wire.close()
        self._is_sound = False
        if self._failure is None:
            self._fail(self._obituary(gone))
        self._gone.set()

    def _asked(self, method: str, args: tuple[object, ...]) -> bytes:
        try:
            return pack(Call(method, self._dump(args)))
        except (Unsendable, ValueError) as error:
            raise ConfigError(
                f"{self._settings.name} {method}: what it is asked cannot be sent to it: {error}"
            ) from error

    def _hear(self, frame: bytes) -> None:
        said = unpack(frame, SAID)
        doing, self._doing = self._doing, None
        match said:
            case Made() if doing is not None and self._answer is None:
                self._on_made(self, None)
            case Answer(result) if self._answer is not None:
                self._return(result, doing)
            case Raised() if doing is not None:
                self._is_sound = False
                self._doing = doing
                self._answer_with(self._raised(said))
            case _:
                self._doing = doing
                raise ValueError("an answer that nobody asked for")

    def _return(self, result: bytes, doing: str | None) -> None:
        assert self._answer is not None
        try:
            value = load(result)
        except BaseException as error:  # noqa: BLE001 -- its classes run here while they are read; it is not our end
            self._is_sound = False
            self._doing = doing
            why = error if isinstance(error, Unsendable) else f"cannot be unpickled: {type(error).__name__}: {error}"
            self._answer_with(self._error(f"its answer {why}"))
        else:
            if not self._answer.done():
                self._answer.set_result(value)

    def _fail(self, error: WindrowError) -> None:
        """It is over with this process."""
        self._failure = error
        self._answer_with(error)

    def _answer_with(self, error: WindrowError) -> None:
        """Whatever it was asked for ends with an error."""
        doing, self._doing = self._doing, None
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_exception(error)
        elif doing is not None:
            self._on_made(self, error)

    def _cut(self, why: str) -> None:
        """Nothing can be heard from it any more."""
        self._is_sound = False
        self._patience = asyncio.get_running_loop().call_later(CUT_GRACE_S, self._give_up, why)

    def _give_up(self, why: str) -> None:
        self._trouble = why
        self._kill(True)  # noqa: FBT003 -- now

    def _raised(self, raised: Raised) -> WindrowError:
        limit = self._settings.memory_mb
        words = raised.why
        if raised.out_of_memory:
            words = f"ran out of memory (limit {limit} MB): {words}" if limit else f"ran out of memory: {words}"
        return self._error(words, raised.trace, raised.kinds)

    def _obituary(self, gone: Gone | None) -> WindrowError:
        if gone is None:
            return self._error("the process that it came from died, and it with it")
        said = gone.said.decode("utf-8", "replace").strip()
        last = said.rpartition("\n")[2]
        if self._trouble and gone.code == -signal.SIGKILL:  # else it had died already, and the news of it was late
            how = f"{self._trouble}, so it was killed"
        elif last.startswith("MemoryError"):
            how = f"ran out of memory (limit {self._settings.memory_mb} MB)"
        else:
            how = self._how_it_died(gone.code)
        return self._error(f"{how}; {_gist(said)}" if said else how, said)

    def _how_it_died(self, code: int) -> str:
        if code >= 0:
            return f"its process ended with exit code {code}"
        name = _signal_name(-code)
        if -code == signal.SIGKILL:
            return f"its process was killed by {name}, as the system does when memory runs out"
        limit = self._settings.memory_mb
        return f"its process was killed by {name}" + (f" (its memory was limited to {limit} MB)" if limit else "")

    def _error(self, words: str, seen: str = "", kinds: Iterable[str] = ()) -> WindrowError:
        what = f"{self._settings.name} {self._doing}" if self._doing else self._settings.name
        error = self._settings.error(f"{what}: {words}")
        error.__cause__ = Elsewhere(seen, kinds) if seen else None
        return error


def _gist(said: str) -> str:
    """What a process wrote last, in few words; after a crash, where it was."""
    _, fatal, rest = said.rpartition("Fatal Python error: ")
    words = " ".join((fatal + rest).split())
    return f"it last wrote: {words[:SHORT] if fatal else words[-SHORT:]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
