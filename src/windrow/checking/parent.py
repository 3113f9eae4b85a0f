"""A check from outside: it runs in processes of its own, and always ends.

Promises: whatever the environment does (hang, crash, end its process, never let go of its thread), the check ends with
a report of what was found, and says which call it was. Episodes of the first process are played again in a second one,
with another hash seed, where nothing of the first is left. No process stays behind, except one that was started without
the variables of its parent in a session of its own. What is written to the standard output and error takes no more than
`MOST_SAID` of the disk, more or less.
"""

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from windrow.checking.examining import Script
from windrow.checking.leftovers import MARK
from windrow.checking.messages import Doing, Finished, Found, Job, Message, Played, Unusable, line, read
from windrow.checking.rules import RULES, Finding
from windrow.checking.settings import Report
from windrow.errors import ConfigError
from windrow.isolation.below import sweep
from windrow.loading import places
from windrow.types import but

LOADING_S = 120.0
"""Longest time for loading an environment; some bring large packages along."""
GRACE_S = 3.0
"""After its time is up a call may end because it was cancelled."""
DUMP_S = 1.0
"""For writing down where it hangs."""
MOST_SAID = 32 << 20
"""Bytes of output that are kept; what came before is dropped then."""
LOOK_EVERY_S = 0.1
"""How often the output is looked at, while nothing is heard."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A thread that waits for others to compute looks as if it slept; unless somebody says so, there are no others."""
INTERRUPTED = "interrupted"
TAIL = 2000
"""Characters at the end of what a process said last."""

ELSEWHERE = ("hidden-state", "raises", "never-returns", "dies")
"""What the second process can find and the first one not."""

OnProgress = Callable[[int], None]


def check(job: Job, on_progress: OnProgress = lambda _: None) -> Report:
    """Check an environment; raises `ConfigError` if there is none to be checked.

    An interruption (Ctrl-C) ends it with what was found so far.
    """
    began = time.perf_counter()
    first = _Watched(job, on_progress).run()
    findings = [*first.findings]
    if first.report is not None and first.scripts and not _has(findings, "hidden-state"):
        second = _Watched(but(job, scripts=first.scripts), lambda _: None).run()
        findings += [found for found in second.findings if found.rule in ELSEWHERE and not _has(findings, found.rule)]
        first.ended = second.ended
    return _report(job, first, findings, time.perf_counter() - began)


def _has(findings: list[Finding], rule: str) -> bool:
    return any(finding.rule == rule for finding in findings)


def _report(job: Job, first: "_Watched", findings: list[Finding], seconds: float) -> Report:
    known = first.report or Report(
        name=job.target, ok=False, findings=(), solve_score=None, random_score=None, tasks=first.tasks,
        episodes=first.episodes, ended=first.ended,
    )  # fmt: skip
    ended = first.ended if known.ended == "done" else known.ended
    fine = ended == "done" and not any(finding.severity == "error" for finding in findings)
    order = [*RULES]
    findings.sort(key=lambda found: (found.severity != "error", order.index(found.rule)))
    return but(known, ok=fine, findings=tuple(findings), seconds=seconds, ended=ended)


class _Watched:
    """One process that checks, and everything that was heard of it."""

    def __init__(self, job: Job, on_progress: OnProgress) -> None:
        self.findings: list[Finding] = []
        self.report: Report | None = None
        self.scripts: tuple[Script, ...] = ()
        self.episodes = 0
        self.tasks = 0
        self.ended = "done"
        self._job = job
        self._on_progress = on_progress
        self._doing = Doing("loading", job.target)

    def run(self) -> "_Watched":
        try:
            self._watch()
        except KeyboardInterrupt:
            self.report, self.ended = None, INTERRUPTED
        return self

    def _watch(self) -> None:
        with tempfile.TemporaryFile() as said, _started(self._job, said) as (process, wire):
            wire.sendall(line(self._job))
            for message in _heard(wire, self._patience, said):
                if message is None:
                    self._hangs(process, said)
                    return
                self._hear(message)
                if self.report is not None:
                    return  # what it still waits for does not matter
            try:
                self._died(process.wait(GRACE_S), said)
            except subprocess.TimeoutExpired:
                self._cut_off()

    def _patience(self) -> float:
        return LOADING_S if self._doing.call == "loading" else self._job.settings.timeout_s + GRACE_S

    def _hear(self, message: Message) -> None:
        match message:
            case Doing():
                self._doing = message
            case Played(episodes, tasks):
                self.episodes, self.tasks = episodes, tasks
                self._on_progress(episodes)
            case Found(finding) if finding.rule != "dies" or not _has(self.findings, "dies"):
                self.findings.append(finding)
            case Found():
                pass  # another copy
            case Unusable(why):
                raise ConfigError(why)
            case Finished(report, scripts):
                self.report, self.scripts = report, scripts
                self.findings = [*report.findings, *(found for found in self.findings if found.rule == "dies")]

    def _hangs(self, process: subprocess.Popen[bytes], said: BinaryIO) -> None:
        place = places.of_dump(_where_it_is(process, said))
        if self._doing.call == "loading":
            raise ConfigError(f"{self._job.target} is not loaded within {LOADING_S:g} s{places.told(place)}")
        words = f"{self._doing.call} did not return within {self._patience():g} s and cannot be cancelled"
        self._note("never-returns", f"{words}{places.told(place)}", place)
        self.ended = "stopped by a call that never returned"

    def _died(self, code: int, said: BinaryIO) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = (tail(said).strip().splitlines() or [""])[-1]
        words = f"the process {how} during {self._doing.call}{f': {last:.200}' if last else ''}"
        if self._doing.call == "loading":
            raise ConfigError(f"{self._job.target} cannot be loaded: {words}")
        self._note("dies", words, places.of_dump(tail(said)))
        self.ended = "stopped by the end of its process"

    def _cut_off(self) -> None:
        if self._doing.call == "loading":
            raise ConfigError(f"{self._job.target} cannot be loaded: it closes files that are not its own")
        self._note("dies", f"{self._doing.call} closed files that are not its own", "")
        self.ended = "stopped by the end of its connection"

    def _note(self, rule: str, words: str, place: str) -> None:
        law = RULES[rule]
        self.findings.append(
            Finding(
                rule=rule,
                severity=law.severity,
                message=f"{words} ({self._doing.where})",
                way_out=law.way_out,
                place=place,
                task=self._doing.task,
                turn=self._doing.turn,
            )
        )


@contextlib.contextmanager
def _started(job: Job, said: BinaryIO) -> "Iterator[tuple[subprocess.Popen[bytes], socket.socket]]":
    """A process in a session of its own, which is gone afterwards with all that it started."""
    ours, theirs = socket.socketpair()
    mark = secrets.token_hex(8)
    variables = {**ONE_THREAD, **os.environ, "PYTHONHASHSEED": "1" if job.scripts is None else "2", MARK: mark}
    with ours:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 -- our own module
                [sys.executable, "-P", "-X", "faulthandler", "-m", "windrow.checking.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[theirs.fileno()],
                start_new_session=True, env=variables,
            )  # fmt: skip
        try:
            yield process, ours
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            sweep(f"{MARK}={mark}")


def _heard(wire: socket.socket, patience: Callable[[], float], said: BinaryIO) -> Iterator[Message | None]:
    """What the process says, until it says no more; None if it has been silent for too long."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(wire, selectors.EVENT_READ)
        silent_since = time.monotonic()
        while True:
            drop_too_much(said)
            if not selector.select(LOOK_EVERY_S):
                if time.monotonic() - silent_since < patience():
                    continue
                yield None
                return
            silent_since = time.monotonic()
            try:
                data = wire.recv(1 << 16)
            except ConnectionResetError:  # it died with something unread
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            yield from map(read, lines)


def drop_too_much(said: BinaryIO) -> None:
    """Whoever writes goes on where it was, so that the file is mostly a hole afterwards."""
    if os.fstat(said.fileno()).st_blocks * 512 > MOST_SAID:
        os.ftruncate(said.fileno(), 0)


def _where_it_is(process: subprocess.Popen[bytes], said: BinaryIO) -> str:
    """What the process writes down about where it is, on its deathbed."""
    before = said.seek(0, os.SEEK_END)
    process.send_signal(signal.SIGUSR1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DUMP_S)
    said.seek(before)
    return said.read().decode(errors="replace")


def tail(said: BinaryIO) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
    return said.read().decode(errors="replace").strip("\0")
