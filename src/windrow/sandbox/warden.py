"""The warden: a bare Python process that forks programs into cells, watches them and reports how they ended.

Run as `python … -c BOOT`, with an empty environment and the standard library alone. It is started once and has what
programs like to import loaded already, so a program costs a fork rather than a start of Python.

Promises: every order is answered by one report. A program that is over has no process left in namespaces of its own.
When whoever started it is gone, so is the warden, and with it every program.
"""

import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from array import array
from contextlib import suppress
from typing import NamedTuple, NoReturn

from windrow.linux import die_with_parent
from windrow.sandbox import kernel, landlock, rooms
from windrow.sandbox.cells import BEGUN, Cells
from windrow.sandbox.plays import LEAVE
from windrow.sandbox.wire import FILES, Begun, Hello, Kill, Order, Report, line

LIKED = (
    "__future__", "abc", "array", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers",
    "operator", "pprint", "random", "re", "statistics", "string", "struct", "textwrap", "time", "traceback", "types",
    "typing", "unicodedata",
)  # fmt: skip
"""What programs like to import."""
NOBODY = 65534
"""Who programs are outside, if the warden is started by root."""
CHUNK = 1 << 16


class Running(NamedTuple):
    """A program under way."""

    number: int
    began: float
    deadline: float
    begun: int
    """A pipe that says whether the program began."""


class Warden:
    """All programs under way, and the line to whoever wants them run."""

    def __init__(self, line_out: socket.socket, cells: Cells) -> None:
        self._line = line_out
        self._cells = cells
        self._running: dict[int, Running] = {}  # all and only the programs not reported, by process
        self._late: set[int] = set()  # processes of it whose time was over
        self._heard = b""
        self._files: list[int] = []  # received with orders that have not been read yet

    def serve(self) -> None:
        """Run what is asked for, until nobody asks any more.

        consumes      orders
        waits for     an order, the end of a program
        unblocked by  the line, SIGCHLD, the next deadline
        """
        awake, asleep = os.pipe()
        os.set_blocking(asleep, False)
        signal.set_wakeup_fd(asleep, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(awake, select.POLLIN)
        while True:
            ready = dict(poll.poll(self._until_next_deadline()))
            if awake in ready:
                os.read(awake, CHUNK)
            self._reap()
            self._end_the_late()
            if self._line.fileno() in ready and not self._listen():
                return

    def _until_next_deadline(self) -> float | None:
        """In milliseconds, for `poll`."""
        deadlines = [running.deadline for pid, running in self._running.items() if pid not in self._late]
        return max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1 if deadlines else None

    def _listen(self) -> bool:
        """Hear what was said; false if the other end is closed."""
        said, beside, _, _ = self._line.recvmsg(CHUNK, socket.CMSG_SPACE(FILES * 4))
        for _, _, data in beside:
            self._files += array("i", data)
        *lines, self._heard = (self._heard + said).split(b"\n")
        for words in lines:
            self._obey(json.loads(words))
        return bool(said)

    def _obey(self, message: Order | Kill) -> None:
        if "number" not in message:
            for pid, running in self._running.items():
                if running.number == message["kill"]:
                    self._kill(pid)
            return
        files, self._files = self._files[:FILES], self._files[FILES:]
        try:
            self._begin(message, files)
        except OSError as error:
            report = Report(
                number=message["number"], status=0, late=False, seconds=0, cpu_s=0, peak=0, broken=str(error)
            )
            self._line.sendall(line(report))
        finally:
            for file in files:
                os.close(file)

    def _begin(self, order: Order, files: list[int]) -> None:
        begun, beginning = os.pipe()
        began = time.monotonic()
        try:
            pid = self._cells.fork()
            if pid == 0:
                self._be_program(order, files, beginning)
        except OSError:
            os.close(begun)
            raise
        finally:
            os.close(beginning)
        self._running[pid] = Running(order["number"], began, began + order["wall_s"], begun)
        self._line.sendall(line(Begun(begun=order["number"], pid=pid)))

    def _be_program(self, order: Order, files: list[int], beginning: int) -> NoReturn:
        try:
            self._cells.live(order, files, beginning)
        finally:
            LEAVE(1)  # whatever happens, there is never a second warden

    def _end_the_late(self) -> None:
        now = time.monotonic()
        for pid, running in self._running.items():
            if pid not in self._late and now >= running.deadline:
                self._late.add(pid)
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        if self._cells.level == "limits":
            with suppress(ProcessLookupError):  # it has no group yet, and nothing in it
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._running:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            running = self._running.pop(pid, None)
            if running is None:
                continue  # at level limits a program can leave us children of its own
            late, why_not = pid in self._late, _why_not(running.begun)
            report = Report(
                number=running.number, status=status, late=late, broken="" if late else why_not,
                seconds=time.monotonic() - running.began, cpu_s=used.ru_utime + used.ru_stime, peak=used.ru_maxrss,
            )  # fmt: skip
            self._late.discard(pid)
            self._line.sendall(line(report))

    def end(self) -> None:
        """End every program and wait for it."""
        for pid in self._running:
            self._kill(pid)
        for pid in self._running:
            os.waitpid(pid, 0)


def main(source: str, level: str, file: str, parent: str) -> int:
    die_with_parent()
    if os.getppid() != int(parent):
        return 1
    said = socket.socket(fileno=int(file))
    try:
        cells = _prepare(level)
    except OSError as error:
        said.sendall(line(Hello(broken=str(error))))
        return 1
    sys.path.remove(source)
    for name in [name for name in sys.modules if name.partition(".")[0] == "windrow"]:
        del sys.modules[name]  # programs find Python and nothing else
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection here would be paid for by every program after it
    warden = Warden(said, cells)
    said.sendall(line(Hello(broken="")))
    warden.serve()
    warden.end()
    return 0


def _why_not(begun: int) -> str:
    """Why a program did not begin; empty if it did."""
    with open(begun, "rb") as pipe:
        said = pipe.read() or b"it died before it began"
    return "" if said == BEGUN else said.decode(errors="replace")


def _prepare(level: str) -> Cells:
    """Put up the walls that all programs share."""
    for name in LIKED:
        importlib.import_module(name)
    readable = rooms.needed()
    if level != "limits" and not kernel.machine():
        raise OSError(f"no call numbers for {platform.machine()} on {sys.platform}")
    if level == "landlock" and landlock.version() <= landlock.WITHOUT_TRUNCATE:
        raise OSError(f"Landlock has version {landlock.version()}, {landlock.WITHOUT_TRUNCATE + 1} is needed")
    if level != "namespaces":
        return Cells(level, readable, proc=-1)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    cells = Cells(level, readable, proc)
    _isolate(proc, readable)
    return cells


def _isolate(proc: int, readable: list[str]) -> None:
    """Leave the network, the files and the names of the machine."""
    apart = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    kernel.call("unshare", apart | (kernel.CLONE_NEWUSER if user else 0))
    if user:
        kernel.map_ids(proc, user, group, 0)
    kernel.call("sethostname", b"sandbox", len(b"sandbox"))
    rooms.build(readable)
    if not user:
        kernel.become(NOBODY)  # limits on processes do not hold for root
    die_with_parent()  # forgotten when the user changes
