"""What runs in a process of its own: one object and one event loop, answering calls until it is killed.

Promises: one call at a time, all of them in one task on one event loop, so that what an object bound to its loop or
task in one call is there in the next, and what it left running goes on in between. Whatever a call raises is an answer
with its traceback, `SystemExit` and `KeyboardInterrupt` too. When the connection ends the process ends, at once and
without exit handlers.

Everything that the object prints goes to a pipe of which only the end is kept.
"""

import asyncio
import inspect
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from windrow import linux
from windrow.isolation.messages import ASKED, Answer, Call, Frames, Made, Raised, Said, pack, unpack
from windrow.isolation.pickles import Unsendable, dump_back, load

PIECE = 1 << 16
REHEARSALS = 20
"""Calls after which the interpreter has seen enough of them: they halve what a new process costs."""
SPARE_MB = 16
"""What a process that ran out of memory gets in order to say so."""


def live(connection: socket.socket, make: Callable[[], object], memory_mb: int | None) -> None:
    """Be the process of an object; never returns."""
    code = 1
    try:
        _settle(memory_mb)
        with asyncio.Runner() as runner:
            runner.run(_Guest(connection, make).serve())
        code = 0
    except BaseException:  # noqa: BLE001 -- the last words of a process; there is nobody to raise to
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _settle(memory_mb: int | None) -> None:
    """Be easy to kill, and hard to hurt others."""
    linux.adopt_orphans()  # whatever goes astray below is found here, and ended together with this process
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", b"1000")
    if memory_mb is not None:
        _limit_memory(memory_mb)
    if "numpy.random" in sys.modules:  # Python's own generator does this by itself
        sys.modules["numpy.random"].seed()


def _limit_memory(memory_mb: int) -> None:
    with suppress(OSError, ValueError):
        has = int(_read("/proc/self/statm").split()[5]) * resource.getpagesize()
        most = has + memory_mb * linux.MEGABYTE
        resource.setrlimit(resource.RLIMIT_DATA, (most, most + SPARE_MB * linux.MEGABYTE))


def _read(path: str) -> bytes:
    """The beginning of a file, without touching more of the interpreter than needed: every process does this."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)


def _write(path: str, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, data)
    finally:
        os.close(file)


class _Guest:
    """Answers calls."""

    def __init__(self, connection: socket.socket, make: Callable[[], object]) -> None:
        self._connection = connection
        self._make = make
        self._object: object = None

    async def serve(self) -> None:
        """Answer one call after the other, until the connection ends."""
        self._connection.settimeout(0)
        loop = asyncio.get_running_loop()
        frames = Frames()
        with suppress(ConnectionError):
            await loop.sock_sendall(self._connection, _packed(self._renewed()))
            while data := await loop.sock_recv(self._connection, PIECE):
                for frame in frames.feed(data):
                    asked = unpack(frame, ASKED)
                    said = await self._called(asked) if isinstance(asked, Call) else self._again()
                    await loop.sock_sendall(self._connection, _packed(said))
                    del said  # a large answer is not kept while nothing happens

    def _again(self) -> Said:
        self._object = None
        _bury_the_dead()
        return self._renewed()

    def _renewed(self) -> Said:
        self._object = None
        try:
            self._object = self._make()
        except BaseException as error:  # noqa: BLE001 -- it is told with its traceback
            return _told(error)
        return Made()

    async def _called(self, call: Call) -> Said:
        try:
            result = getattr(self._object, call.method)(*load(call.args))
            if inspect.isawaitable(result):
                result = await result
            return Answer(dump_back(result))
        except BaseException as error:  # noqa: BLE001 -- it is told with its traceback
            return _told(error)


def _bury_the_dead() -> None:
    """What an object left behind below it, and is dead: there is nobody left who would ask how it ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _packed(said: Said) -> bytes:
    try:
        return pack(said)
    except ValueError as error:  # too long
        return pack(Raised(why=f"its answer cannot be sent: {error}", trace=""))


def _told(error: BaseException) -> Raised:
    """An exception as something that can be sent."""
    out_of_memory = isinstance(error, MemoryError)
    if out_of_memory:
        with suppress(OSError, ValueError):
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if isinstance(error, asyncio.CancelledError):
        _not_cancelled()
    trace = error.__traceback__ and error.__traceback__.tb_next  # without the line here that called it
    if isinstance(error, Unsendable):
        return Raised(why=f"its answer or argument: {error}", trace="")
    lines = sendable("".join(traceback.format_exception(type(error), error, trace)))
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return Raised(why=sendable(_in_short(error, trace)), trace=lines, out_of_memory=out_of_memory, kinds=kinds)


def sendable(words: str) -> str:
    """Words that can be sent: names of files may hold what is no text."""
    return words.encode("utf-8", "backslashreplace").decode()


def _in_short(error: BaseException, trace: TracebackType | None) -> str:
    """An exception in one line, with where it came from."""
    words = words_of(error)
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    frames = traceback.extract_tb(trace)
    if not frames:
        return what
    last = frames[-1]
    return f"{what} ({Path(last.filename).name}:{last.lineno} in {last.name})"


def words_of(error: BaseException) -> str:
    """What an exception says, if it can."""
    try:
        return str(error)
    except Exception as again:  # noqa: BLE001 -- whatever an object's own exception does
        return f"it cannot be told, {type(again).__name__}"


def _not_cancelled() -> None:
    """An object that cancelled the task it runs in has cancelled itself, not this process."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def own_signals() -> None:
    """Undo what a nest does with signals."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def rehearse() -> None:
    """Play a few calls here, before the fork: what the interpreter learns from them every fork has learnt."""
    ours, theirs = socket.socketpair()
    with ours, theirs, asyncio.Runner() as runner:
        runner.run(_rehearsed(ours, theirs))


async def _rehearsed(ours: socket.socket, theirs: socket.socket) -> None:
    ours.settimeout(0)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        group.create_task(_Guest(theirs, str).serve(), name="rehearsal")
        for _ in range(REHEARSALS):
            await loop.sock_recv(ours, PIECE)
            await loop.sock_sendall(ours, pack(Call("upper", dump_back(()))))
        await loop.sock_recv(ours, PIECE)
        ours.shutdown(socket.SHUT_WR)
