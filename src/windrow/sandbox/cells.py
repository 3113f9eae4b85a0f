"""What a program lives in: the way from a fork of the warden to the first line of the program.

Promises: a program begins only when every wall of its level stands; if one does not, the warden hears why and the
program is not even read. It inherits no open file but its input, output and complaints, no environment, and nothing of
any other program. It dies with the warden, however that ends.
"""

import os
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from windrow.linux import die_with_parent, limit
from windrow.sandbox import filters, kernel, landlock, plays, rooms
from windrow.sandbox.wire import Order

INSIDE = 1000
"""Who a program is in its user namespace."""
NAMESPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNS
NO_MORE = (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK)
"""Limits of which a program has nothing."""
FEW = {resource.RLIMIT_SIGPENDING: 128} if sys.platform == "linux" else {}
"""Limits that are shared with others of the same user, and of which a program needs next to nothing."""
KILL_ME_FIRST = b"1000"
NICE = 5
"""A program gives way to whoever wants it run, but not so much that a busy machine takes its wall time from it."""
PAGE = 4096
STACK = 64 << 20
"""Bytes; how deep a program may recurse in C."""
ALL_FILES = 1 << 20
BEGUN = b"+"


class Cells:
    """How the warden isolates programs: the level, and what was prepared for it."""

    def __init__(self, level: str, readable: list[str], proc: int) -> None:
        self.level = level
        self.readable = readable
        self.proc = proc
        """The machine's /proc, opened; whoever becomes somebody in a namespace needs it."""
        self.outside = (0, 0)
        """Who a program is outside: user and group."""
        self.life = os.pipe()
        """Its writing end is closed when the warden is gone."""
        self._filter = filters.compiled(namespaces=True, process=0) if level == "namespaces" else b""
        self._rules = _rules(readable) if level == "landlock" else None

    def fork(self) -> int:
        self.outside = os.geteuid(), os.getegid()
        return kernel.fork(NAMESPACES) if self.level == "namespaces" else os.fork()

    def live(self, order: Order, files: list[int], begun: int) -> NoReturn:
        """Be the program; for the child alone."""
        try:
            self._enter(files, begun)
            self._wall_in(order)
            os.write(begun, BEGUN)
        except (OSError, ValueError) as error:
            os.write(begun, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        _close_all_but(files[0])
        plays.play(files[0], home=rooms.SCRATCH if self.level == "namespaces" else "/")

    def _enter(self, files: list[int], begun: int) -> None:
        """Leave the warden's affairs behind."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for place, file in enumerate(files[1:]):
            os.dup2(file, place)
        self._be_killed_first()
        rules = self._rules.file if self._rules else -1
        _close_all_but(files[0], begun, self.proc, self.life[0], rules)
        die_with_parent()
        if select.select([self.life[0]], [], [], 0)[0]:
            os._exit(1)  # the warden died before its death could be told

    def _be_killed_first(self) -> None:
        """When memory runs out it is not whoever wanted the program run that has to go."""
        with suppress(OSError):
            file = self._open("oom_score_adj", os.O_WRONLY)
            try:
                os.write(file, KILL_ME_FIRST)
            finally:
                os.close(file)

    def _own_memory(self) -> int:
        """Bytes of address space that the interpreter takes by itself, now: a warden may have grown."""
        try:
            file = self._open("statm", os.O_RDONLY)
        except OSError:
            return STACK
        try:
            return resource.getpagesize() * int(os.read(file, 1024).split()[0])
        finally:
            os.close(file)

    def _open(self, name: str, how: int) -> int:
        """A file of the kernel's about this process."""
        if self.proc < 0:
            return os.open(f"/proc/self/{name}", how)
        return os.open(f"self/{name}", how, dir_fd=self.proc)

    def _wall_in(self, order: Order) -> None:
        memory = self._own_memory()
        if self.level == "namespaces":
            kernel.map_ids(self.proc, *self.outside, INSIDE)
            rooms.furnish(order["scratch"], order["scratch_files"])
            limit(resource.RLIMIT_NPROC, order["processes"])
        else:
            os.chdir("/")
        self._limit(order, memory)
        if self.level == "limits":
            return
        kernel.be_private()
        kernel.give_up_privileges()
        if self._rules is not None:
            self._rules.enforce()
        elif landlock.version():
            self._own_rules().enforce()
        filters.install(self._filter or filters.compiled(namespaces=False, process=os.getpid()))

    def _own_rules(self) -> landlock.Ruleset:
        """For a program with a scratch folder, which is another one each time."""
        rules = landlock.Ruleset()
        rules.may_read(self.readable)
        rules.may_use(rooms.DEVICES)
        rules.may_own(rooms.SCRATCH)
        return rules

    def _limit(self, order: Order, memory: int) -> None:
        """`memory`: what the interpreter takes by itself."""
        for nothing in NO_MORE:
            limit(nothing, 0)
        for what, most in FEW.items():
            limit(what, most)
        limit(resource.RLIMIT_CPU, order["cpu_s"])
        limit(resource.RLIMIT_AS, memory + order["memory"])
        os.nice(NICE)
        limit(resource.RLIMIT_STACK, STACK)
        limit(resource.RLIMIT_NOFILE, order["open_files"])
        limit(resource.RLIMIT_FSIZE, max(order["scratch"], order["output"] + PAGE))


def _rules(readable: list[str]) -> landlock.Ruleset:
    """For all programs of a warden that have no scratch folder; made once, because it is long."""
    rules = landlock.Ruleset()
    rules.may_read(readable, rooms.hidden(readable))
    rules.may_use(rooms.DEVICES)
    return rules


def _close_all_but(*kept: int) -> None:
    first = 3
    for file in sorted(file for file in kept if file >= first):
        os.closerange(first, file)
        first = file + 1
    os.closerange(first, ALL_FILES)
