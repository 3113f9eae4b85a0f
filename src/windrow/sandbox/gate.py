"""The sandbox's end of the line to a warden: starts one, hands it programs, hears how they ended.

Promises: each program that is handed in comes back as a report, or as an error if the warden is lost; its place is free
only when its process is gone, also if nobody waits for it any more. What comes from programs is bytes in files, read up
to a limit and never interpreted.
"""

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import cast

from windrow.errors import SandboxError, blame
from windrow.sandbox.values import Level, Limits, Program
from windrow.sandbox.wire import Begun, Kill, Order, Report, line

BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from windrow.sandbox.warden import main; sys.exit(main(*sys.argv[1:]))"
)
FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8", "-W", "ignore")
"""No user's packages, no folder of the caller's, no packages at all, nothing written, no warnings."""
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""All there is of it: the same program runs through its sets in the same order every time."""
SOURCE = str(Path(__file__).parents[2])
START_S = 30.0
END_S = 5.0
GRACE_S = 10.0
"""How much longer than its program may take a warden is believed to be alive."""
PAGE = 4096
CHUNK = 1 << 16


class WardenLost(SandboxError):
    """The warden is gone, and with it what it ran; another one can run it again."""


class Files:
    """What a program reads and writes: files in memory, of which it can make none longer than it may."""

    def __init__(self, program: Program, limits: Limits) -> None:
        self._most = limits.output_bytes
        work = json.dumps({"source": program.source, "args": program.args}).encode()
        self.all: list[int] = []
        """The program, its input, its output, its complaints; all and only what is open."""
        with blame(SandboxError, "sandbox: the files of a program"):
            try:
                self.all.append(_file_to_read(work))
                self.all.append(_file_to_read(program.stdin.encode(errors="replace")))
                self.all.append(_file_of_size(limits.output_bytes))
                self.all.append(_file_of_size(limits.output_bytes))
            except OSError:
                self.close()
                raise

    @property
    def is_full(self) -> bool:
        """Whether more was written than may be."""
        return any(_written(file) > self._most for file in self.all[2:])

    @property
    def stdout(self) -> str:
        """What was written, up to the limit."""
        return self._text(self.all[2])

    @property
    def stderr(self) -> str:
        return self._text(self.all[3])

    def close(self) -> None:
        while self.all:
            os.close(self.all.pop())

    def _text(self, file: int) -> str:
        return os.pread(file, min(_written(file), self._most), 0).decode(errors="replace")


class Handed:
    """A program that is with the warden: what will be reported of it, and what is done then."""

    def __init__(self, over: Callable[[], None]) -> None:
        self.report: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.pid: int | None = None
        """Its process, if it is known to have begun."""
        self._over = over

    def end(self, report: Report | WardenLost) -> None:
        self._over()
        if self.report.done():
            return  # nobody waits for it any more
        if isinstance(report, WardenLost):
            self.report.set_exception(report)
        else:
            self.report.set_result(report)


class Gate:
    """A warden at work."""

    def __init__(self, level: Level) -> None:
        self.level: Level = level
        self.lost: WardenLost | None = None
        self._numbers = count()
        self._handed: dict[int, Handed] = {}  # all and only the programs without a report
        self._orphans: list[int] = []  # processes of programs whose warden was lost; they die with it, but not at once
        self._heard = b""
        self._hello: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._end_of_line = "its warden died"
        self._loop = asyncio.get_running_loop()
        with blame(SandboxError, "sandbox: a warden"), ExitStack() as undo:
            self._stderr = _file(b"")
            undo.callback(os.close, self._stderr)
            self._line, theirs = socket.socketpair()
            undo.callback(self._line.close)
            with theirs:
                self._process = _start(level, theirs, self._stderr)
            undo.pop_all()
        self._line.settimeout(0)
        self._loop.add_reader(self._line, self.hear)

    async def ready(self) -> None:
        """Wait until programs can be handed in; raises SandboxError if they cannot."""
        broken = await self._hello
        if self.lost is not None:
            raise self.lost
        if broken:
            raise SandboxError(broken)

    def hand_in(self, files: list[int], limits: Limits, over: Callable[[], None]) -> tuple[int, Handed]:
        """Have a program run; `over` is called once, when its process is gone or the warden is."""
        number = next(self._numbers)
        handed = self._handed[number] = Handed(over)
        self._send(line(_order(number, limits)), files)
        return number, handed

    def kill(self, number: int) -> None:
        """Nobody wants this program's report any more."""
        if number in self._handed:
            self._send(line(Kill(kill=number)), [])

    async def close(self) -> None:
        """End the warden and every program, and wait until they are gone."""
        if self.lost is None:
            self._end_of_line = "the sandbox was closed"
            with suppress(TimeoutError, OSError):
                self._line.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(END_S):
                    await self._gone.wait()
        self.give_up("the sandbox was closed")
        if self._process.returncode is None:
            await _death_of(self._process.pid)
            self._process.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for pid in self._orphans:
                    await _death_of(pid)

    def give_up(self, why: str) -> WardenLost:
        """The warden is of no use any more, nor will be."""
        if self.lost is None:
            self.lost = WardenLost(f"{why}{_last_words(self._stderr)}")
            self._loop.remove_reader(self._line)
            self._line.close()
            os.close(self._stderr)
            self._process.kill()
            self._gone.set()
            if not self._hello.done():
                self._hello.set_result(str(self.lost))
        handed, self._handed = self._handed, {}
        self._orphans += [each.pid for each in handed.values() if each.pid is not None]
        for each in handed.values():
            each.end(WardenLost(str(self.lost)))
        return self.lost

    def _send(self, words: bytes, files: list[int]) -> None:
        try:
            sent = socket.send_fds(self._line, [words], files) if files else self._line.send(words)
        except OSError as error:
            self.give_up(f"its warden cannot be reached: {error}")
        else:
            assert sent == len(words), "a line is far shorter than what the socket holds"

    def hear(self) -> None:
        """Take in what the warden has said; the event loop does so by itself, if it has the time."""
        if self.lost is not None:
            return
        try:
            said = self._line.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        *lines, self._heard = (self._heard + said).split(b"\n")
        for words in lines:
            self._understand(json.loads(words))
        if not said:
            self.give_up(self._end_of_line)

    def _understand(self, message: dict[str, object]) -> None:
        if "pid" in message:
            begun = cast("Begun", message)
            self._handed[begun["begun"]].pid = begun["pid"]
            return
        if "number" not in message:
            self._hello.set_result(str(message["broken"]))
            return
        report = cast("Report", message)
        self._handed.pop(report["number"]).end(report)


def _start(level: Level, theirs: socket.socket, stderr: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, *FLAGS, "-c", BOOT, SOURCE, level, str(theirs.fileno()), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603 -- our own interpreter with our own words
        command,
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )


def _order(number: int, limits: Limits) -> Order:
    return Order(
        number=number,
        wall_s=limits.wall_s,
        cpu_s=limits.cpu_s,
        memory=limits.memory_mb << 20,
        processes=limits.processes,
        open_files=limits.open_files,
        scratch=limits.scratch_mb << 20,
        scratch_files=limits.scratch_files,
        output=limits.output_bytes,
    )


def _file(content: bytes) -> int:
    """An open file without a name, standing at its beginning."""
    if sys.platform == "linux":
        file = os.memfd_create("windrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    with open(file, "wb", closefd=False) as whole:
        whole.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _file_to_read(content: bytes) -> int:
    """One that nobody can change."""
    file = _file(content)
    if sys.platform == "linux":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    return file


def _file_of_size(most: int) -> int:
    """One into which a little more than `most` bytes can be written; whole pages, so that it fills to its end."""
    file = _file(b"")
    if sys.platform == "linux":
        os.ftruncate(file, (most // PAGE + 1) * PAGE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file


def _written(file: int) -> int:
    return os.lseek(file, 0, os.SEEK_CUR)


async def _death_of(pid: int) -> None:
    """Wait until a process is dead, also one that is nobody's child here; returns at once where that is not known."""
    if sys.platform != "linux":
        return
    try:
        file = os.pidfd_open(pid)
    except OSError:
        return
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(file)
        os.close(file)


def _last_words(file: int) -> str:
    said = os.pread(file, CHUNK, 0).decode(errors="replace").strip()
    return f": {said.splitlines()[-1]}" if said else ""
