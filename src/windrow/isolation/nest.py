"""A nest: a fresh interpreter that loads a factory once and then hatches processes which have it already.

Promises
- A process is hatched by a fork of this one, which has one thread: about a millisecond each, and memory is shared until
  it is written to. If loading left threads running a fork is not safe; then each process is an interpreter of its own.
- What dies is waited for, and told with how it died and the end of what it wrote. Whatever it started, however it hid,
  dies with it: its process group at once; what left the group is adopted here, and killed as soon as it is.
- Killing goes before hatching. Nothing is polled.
- When our process ends, in whatever manner, the nest kills everything below it and ends.

It does not know what it hatches.

consumes      orders
waits for     an order, the death of a process, output of one
unblocked by  our process, the kernel
"""

import faulthandler
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from windrow import linux
from windrow.isolation import below, guest
from windrow.isolation.messages import (
    ORDERS,
    Born,
    Broken,
    End,
    Frames,
    Gone,
    Hatch,
    Loaded,
    News,
    Order,
    Plan,
    Unborn,
    from_file,
    pack,
    unpack,
)
from windrow.isolation.pickles import load

TAIL = 4096
"""Bytes of a process's output that are kept."""
PIECE = 1 << 16
AHEAD, BEHIND = 10, 10
"""By how much the nest goes before our process and what it hatches behind: thousands must not keep it from killing."""
DYING_AT_ONCE = 8
"""Each needs the processor for some milliseconds to die; what is urgent does not wait for this."""
BURIED_AT_ONCE = 8
"""Before there is a look at what else there is to do."""
ORPHANS_S = 0.1
"""How long what has lost its process may wait while there is more urgent work: looking for it takes milliseconds."""

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from windrow.isolation import nest; nest.{what}"
"""What an interpreter is started with: the path that it must find modules on comes first."""


def main() -> None:
    """Be a nest; its arguments are the path, the socket to our process, and the id of our process."""
    control = socket.socket(fileno=int(sys.argv[2]))
    linux.die_with_parent()  # while it loads it cannot look after anything
    if os.getppid() != int(sys.argv[3]):
        os._exit(0)
    nest = Nest(control)
    try:
        if nest.load():
            nest.tend()
    except (BrokenPipeError, ConnectionResetError):
        pass  # our process is gone
    except BaseException:  # noqa: BLE001 -- last words; there is nobody to raise to
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        nest.clear()
        os._exit(0)


def alone() -> None:
    """Be one process that was not forked; its arguments are the path, a socket, and a file with the plan."""
    linux.die_with_parent()
    if os.getppid() != int(sys.argv[4]):
        os._exit(0)
    faulthandler.enable()
    with open(int(sys.argv[3]), "rb") as file:  # noqa: PTH123 -- it has a number and no path
        plan = from_file(file)
    assert isinstance(plan, Plan)
    connection = socket.socket(fileno=int(sys.argv[2]))
    make = _loaded(plan)
    guest.live(connection, make, plan.memory_mb)


class Chick:
    """A process that was hatched."""

    __slots__ = ("is_mute", "number", "output", "said")

    def __init__(self, number: int, output: int) -> None:
        self.number = number
        self.output = output
        self.said = b""
        self.is_mute = False

    def listen(self) -> bool:
        """Take some of what it wrote; false if nothing will come any more."""
        try:
            piece = os.read(self.output, PIECE)
        except BlockingIOError:
            return True
        self.said = (self.said + piece)[-TAIL:]
        return bool(piece)


class Nest:
    """Everything that is hatched here."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames = Frames()
        self._orders: deque[Order] = deque()
        self._chicks: dict[int, Chick] = {}  # by pid: all and only those that nobody has waited for
        self._pids: dict[int, int] = {}  # of the same, by number
        self._dying: set[int] = set()  # numbers: all and only those that were killed and not buried
        self._leaving: deque[int] = deque()  # numbers of those that wait for their turn to be killed
        self._eggs: deque[int] = deque()  # all and only numbers that are ordered and neither hatched nor ended
        self._make: Callable[[], object] = object
        self._plan = Plan(factory=b"")
        self._plan_file: IO[bytes] | None = None  # for processes that are not forked
        self._own: set[int] = set()  # processes that loading has left running
        self._alarm, self._bell = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._may_bury = False  # something died that nobody has waited for
        self._adopts = False  # what loses its parent below comes to us
        self._orphans_from: float | None = None  # since when there may be some: something died
        self._nice = 0  # of our process
        self._open = True
        self._pid = os.getpid()
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)

    def load(self) -> bool:
        """Load plans until one can be loaded; false if there are no more."""
        while True:
            plan = self._next_plan()
            if plan is None:
                return False
            try:
                self._make = _loaded(plan)
            except BaseException as error:  # noqa: BLE001 -- it is told with its traceback
                self._tell(_broken(error))
                continue
            self._plan = plan
            self._settle()
            return True

    def _next_plan(self) -> Plan | None:
        while not self._orders:
            data = self._control.recv(PIECE)
            if not data:
                return None
            self._hear(data)
        order = self._orders.popleft()
        return order if isinstance(order, Plan) else None

    def _settle(self) -> None:
        """Be ready to fork and to bury."""
        self._adopts = linux.adopt_orphans()
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._files[1], self._files[1]))  # one for each process
        for end in (self._alarm, self._bell):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        with suppress(PermissionError):  # then it is one among all that it has hatched, and slower to kill them
            os.setpriority(os.PRIO_PROCESS, 0, self._nice - AHEAD)
        self._own = below.children()
        self._selector.register(self._control, selectors.EVENT_READ, self._obey)
        self._selector.register(self._alarm, selectors.EVENT_READ, self._wake)
        forks = below.threads() == 1
        if not forks:
            self._plan_file = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the nest
            self._plan_file.write(pack(self._plan))
            self._plan_file.flush()
        else:
            guest.rehearse()
        faulthandler.enable()  # a crash leaves a traceback in the output
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # what is there now is never collected, so it stays shared
        self._tell(Loaded(forks))

    def tend(self) -> None:
        """Do what is ordered until the orders end; a little of everything at a time, so that nothing urgent waits."""
        while self._open:
            is_idle = not (self._eggs or self._may_bury or self._orphans_from is not None)
            events = self._selector.select(None if is_idle else 0)
            for key, _ in events:
                key.data()
            if self._may_bury:
                self._bury()
            if self._must_look(is_quiet=not events and not self._may_bury):
                self._end_orphans()
            if self._eggs and self._open:
                self._hatch(self._eggs.popleft())

    def clear(self) -> None:
        """Kill everything below, and whatever that leaves, until nothing is there."""
        signal.set_wakeup_fd(-1)
        for _ in range(below.ROUNDS):
            found = below.children() | set(self._chicks)
            for pid in found:
                below.kill(pid)
            if not found or not self._wait_for_all(found):
                return

    def _wait_for_all(self, pids: set[int]) -> bool:
        """Wait for so many deaths; false if there is nobody left to wait for."""
        for _ in pids:
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                return False
            self._chicks.pop(pid, None)
        return True

    def _obey(self) -> None:
        try:
            data = self._control.recv(PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            self._open = False
            return
        self._hear(data)
        while self._orders:
            match self._orders.popleft():
                case Hatch(number):
                    self._eggs.append(number)
                case End(number, now) if number in self._pids:
                    self._end(number, now=now)
                case End(number) if number in self._eggs:
                    self._eggs.remove(number)
                    self._tell(Unborn(number, "it is no longer wanted"))
                case _:
                    pass  # it died already

    def _end(self, number: int, *, now: bool) -> None:
        """Kill a process, or let it wait for its turn if it may."""
        if not now and len(self._dying) >= DYING_AT_ONCE:
            self._leaving.append(number)
        elif number in self._pids:  # it may have died while it waited
            self._dying.add(number)
            below.kill(self._pids[number])

    def _hear(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._orders.append(unpack(frame, ORDERS))

    def _tell(self, news: News) -> None:
        self._control.sendall(pack(news))

    def _wake(self) -> None:
        """Something died, or we are told to end."""
        with suppress(BlockingIOError):
            if signal.SIGTERM in os.read(self._alarm, PIECE):
                self._open = False
        self._may_bury = True

    def _bury(self) -> None:
        """Wait for some that are dead; what they leave is looked for soon."""
        self._may_bury = all(self._bury_one() for _ in range(BURIED_AT_ONCE))
        if self._orphans_from is None:
            self._orphans_from = time.monotonic()

    def _must_look(self, *, is_quiet: bool) -> bool:
        since = self._orphans_from
        return since is not None and (is_quiet or time.monotonic() > since + ORPHANS_S)

    def _end_orphans(self) -> None:
        """Kill what was adopted here: what it belonged to is dead."""
        self._orphans_from = None
        for pid in below.children() - self._own - self._chicks.keys():
            below.kill(pid)

    def _bury_one(self) -> bool:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        chick = self._chicks.pop(pid, None)
        if chick is not None:
            if not self._adopts:
                below.kill_group(pid)  # what is left of it would never be seen again
            del self._pids[chick.number]
            self._dying.discard(chick.number)
            while self._leaving and len(self._dying) < DYING_AT_ONCE:
                self._end(self._leaving.popleft(), now=False)
            if not chick.is_mute:
                self._selector.unregister(chick.output)
            chick.listen()
            os.close(chick.output)
            self._tell(Gone(chick.number, os.waitstatus_to_exitcode(status), chick.said))
        return pid != 0

    def _hatch(self, number: int) -> None:
        try:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                pid, output = self._start(ours, theirs)
                self._watch(number, pid, output)
                socket.send_fds(self._control, [pack(Born(number, pid))], [ours.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as error:
            if number in self._pids:
                below.kill(self._pids[number])
            self._tell(Unborn(number, f"{error}; raise the limits on open files or processes (ulimit)"))

    def _watch(self, number: int, pid: int, output: int) -> None:
        with suppress(OSError):  # it may be dead already
            os.setpgid(pid, pid)  # it does so itself too; whoever comes first
            os.setpriority(os.PRIO_PROCESS, pid, self._nice + BEHIND)
        os.set_blocking(output, False)
        chick = Chick(number, output)
        self._chicks[pid] = chick
        self._pids[number] = pid
        self._selector.register(output, selectors.EVENT_READ, lambda: self._listen(chick))

    def _listen(self, chick: Chick) -> None:
        if chick.number in self._pids and not chick.listen():
            self._selector.unregister(chick.output)  # it closed its output and lives on
            chick.is_mute = True

    def _start(self, ours: socket.socket, theirs: socket.socket) -> tuple[int, int]:
        """Start a process; says its id and where its output comes from."""
        output, its_output = os.pipe()
        try:
            if self._plan_file is not None:
                pid = self._spawn(theirs, its_output, self._plan_file)
            else:
                pid = os.fork()
                if pid == 0:
                    ours.close()
                    self._leave(theirs, its_output)
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(its_output)
        return pid, output

    def _leave(self, connection: socket.socket, its_output: int) -> None:
        """In the fork: let go of everything that is the nest's, and be a process of an object. Never returns."""
        try:
            linux.die_with_parent()
            if os.getppid() != self._pid:
                os._exit(0)
            os.setpgid(0, 0)
            guest.own_signals()
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            os.dup2(its_output, 1)
            os.dup2(its_output, 2)
            self._selector.close()
            self._control.close()
            for number in (its_output, self._alarm, self._bell, *(chick.output for chick in self._chicks.values())):
                os.close(number)
            guest.live(connection, self._make, self._plan.memory_mb)
        except BaseException:  # noqa: BLE001 -- last words; there is nobody to raise to
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _spawn(self, connection: socket.socket, its_output: int, plan: IO[bytes]) -> int:
        """Start a process without a fork of this one."""
        numbers = [str(connection.fileno()), str(plan.fileno()), str(os.getpid())]
        process = subprocess.Popen(  # noqa: S603 -- ourselves
            [sys.executable, "-c", START.format(what="alone()"), json.dumps(sys.path), *numbers],
            stdin=subprocess.DEVNULL,
            stdout=its_output,
            stderr=its_output,
            pass_fds=(connection.fileno(), plan.fileno()),
            process_group=0,
        )
        process.returncode = 0  # it is waited for together with all others
        return process.pid


def _loaded(plan: Plan) -> Callable[[], object]:
    for name in plan.preload:
        importlib.import_module(name)
    make: Callable[[], object] = load(plan.factory)
    return make


def _broken(error: BaseException) -> Broken:
    cause = error.__cause__ or error
    missing = cause.name or "" if isinstance(cause, ModuleNotFoundError) else ""
    trace = guest.sendable("".join(traceback.format_exception(cause)))
    return Broken(why=guest.sendable(f"{type(cause).__name__}: {guest.words_of(cause)}"), trace=trace, missing=missing)
