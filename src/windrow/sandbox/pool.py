"""The sandbox: runs Python that a model wrote, where it can do no harm.

    async with Sandbox() as sandbox:
        ran = await sandbox.run(Program(source="print(6 * 7)"))

Promises: a program's end is a value that says how it ended and what held it; whatever else goes wrong is a
`SandboxError` and says nothing about the program. A warden that is lost is replaced and what it ran is run again, so a
program may be begun more than once, but is reported once. Never more than `at_once` programs run. After `close` there
is no process, no file and no mount left, nor after this process is killed.

Not promised: defence against faults of the kernel, on which every wall here rests.
"""

import asyncio
import logging
import os
import signal
import sys
from types import TracebackType
from typing import Self, TypeVar

from windrow.errors import ConfigError, InternalError, SandboxError, WindrowError
from windrow.sandbox.gate import GRACE_S, START_S, Files, Gate, WardenLost
from windrow.sandbox.values import LEVELS, MOST_AT_ONCE, Level, Limits, Outcome, Program, Ran, SandboxSettings
from windrow.sandbox.wire import Report
from windrow.types import Value, checked

V = TypeVar("V", bound=Value)

log = logging.getLogger(__name__)

TRIES = 3
"""How often a program is begun before its sandbox is said to be broken."""
OUT_OF_MEMORY = ("MemoryError", "OSError: [Errno 12]")
MUCH = 0.5
"""Whoever was killed and had used this share of its processor time was killed for using all of it: the kernel counts it
in ticks when it kills and exactly when it reports, and on a busy machine these differ."""


class Sandbox:
    """Runs programs on one event loop, many at once."""

    def __init__(self, settings: SandboxSettings = SandboxSettings()) -> None:  # noqa: B008 -- it never changes
        self.settings = _valid(settings)
        if LEVELS.index(settings.at_most) > LEVELS.index(settings.at_least):
            raise ConfigError(
                f"sandbox.at_least is {settings.at_least}, which is more than at_most, {settings.at_most}; "
                "lower the one or raise the other"
            )
        self._places = asyncio.Semaphore(settings.at_once or min(2 * _processors(), MOST_AT_ONCE))
        self._opening = asyncio.Lock()
        self._gate: Gate | None = None
        self._level: Level | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def level(self) -> Level:
        """What holds programs; known when the sandbox is open."""
        if self._level is None:
            raise InternalError("the level of a sandbox is known when it is open; use `async with`, or run a program")
        return self._level

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Find the best level that works and make ready; `run` does so by itself."""
        await self._warden()

    async def close(self) -> None:
        """End every program and the warden; those who wait for a program get a SandboxError."""
        self._is_closed = True
        async with self._opening:  # whoever closes it too waits for the same
            if self._gate is not None:
                await self._gate.close()
            self._gate = None

    async def run(self, program: Program) -> Ran:
        """Run a program to its end; raises SandboxError if that cannot be done."""
        limits = self.settings.limits if program.limits is None else _valid(program.limits)
        for left in reversed(range(TRIES)):
            try:
                return await self._try(program, limits)
            except WardenLost:
                if self._is_closed or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _try(self, program: Program, limits: Limits) -> Ran:
        await self._places.acquire()
        try:
            gate = await self._warden()
            files = Files(program, limits)
        except BaseException:
            self._places.release()
            raise
        try:
            report = await self._watched(gate, files, limits)
            if report["broken"]:
                raise SandboxError(f"sandbox ({gate.level}): a program could not be begun: {report['broken']}")
            return _ran(report, files, limits, gate.level)
        finally:
            files.close()

    async def _watched(self, gate: Gate, files: Files, limits: Limits) -> Report:
        """Hand a program in; its place is given back when its process is gone."""
        number, handed = gate.hand_in(files.all, limits, self._places.release)
        try:
            await asyncio.wait([handed.report], timeout=limits.wall_s + GRACE_S)
        except asyncio.CancelledError:
            handed.report.cancel()
            gate.kill(number)
            raise
        if not handed.report.done():
            gate.hear()  # perhaps it is not the warden that stood still
        if not handed.report.done():
            handed.report.cancel()
            raise gate.give_up(f"its warden is silent {GRACE_S:.0f} s after the time of a program")
        return handed.report.result()

    async def _warden(self) -> Gate:
        """A warden that works, perhaps a new one."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise InternalError("a sandbox lives on one event loop; make one for each")
        async with self._opening:
            if self._is_closed:
                raise SandboxError("the sandbox is closed; make another")
            if self._gate is not None and self._gate.lost is not None:
                await self._gate.close()
                self._gate = None
            if self._gate is None:
                self._gate = await self._first_that_works()
                self._level = self._gate.level
            return self._gate

    async def _first_that_works(self) -> Gate:
        if self._level is not None:
            return await _opened(self._level)
        best, worst = LEVELS.index(self.settings.at_most), LEVELS.index(self.settings.at_least)
        missing: dict[Level, SandboxError] = {}
        for level in LEVELS[best : worst + 1]:
            try:
                return await _opened(level)
            except SandboxError as error:
                missing[level] = error
                log.info("no sandbox of level %s: %s", level, error)
        raise self._refusal(missing)

    def _refusal(self, missing: dict[Level, SandboxError]) -> WindrowError:
        why = "; ".join(f"{level}: {error}" for level, error in missing.items())
        words = f"no sandbox of level {self.settings.at_least} or better here ({why})"
        if any(isinstance(error, WardenLost) for error in missing.values()):
            return SandboxError(words)  # an accident, not the lack of something
        return ConfigError(f"{words}; allow what is missing, or lower sandbox.at_least if the programs can be trusted")


def _valid(given: V) -> V:
    try:
        return checked(given)
    except ValueError as error:
        raise ConfigError(f"sandbox: {error}") from error


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


async def _opened(level: Level) -> Gate:
    """A warden that has shown that it can run a program."""
    gate = Gate(level)
    try:
        async with asyncio.timeout(START_S):
            await gate.ready()
            await _try_out(gate)
    except BaseException as error:
        gate.give_up("it cannot run programs")
        await gate.close()
        if isinstance(error, TimeoutError):
            raise SandboxError(f"its warden did not answer within {START_S:.0f} s") from error
        raise
    return gate


async def _try_out(gate: Gate) -> None:
    """Run a program that does nothing; raises SandboxError if it could not be begun."""
    limits = Limits(wall_s=START_S)
    files = Files(Program(source=""), limits)
    try:
        _, handed = gate.hand_in(files.all, limits, lambda: None)
        broken = (await handed.report)["broken"]
    finally:
        files.close()
    if broken:
        raise SandboxError(broken)


def _ran(report: Report, files: Files, limits: Limits, level: Level) -> Ran:
    code = os.waitstatus_to_exitcode(report["status"])
    complaints = files.stderr
    return Ran(
        outcome="output" if files.is_full else _outcome(code, report, complaints, limits),
        exit_code=code if code >= 0 else None,
        stdout=files.stdout,
        stderr=complaints,
        seconds=report["seconds"],
        cpu_s=report["cpu_s"],
        peak_mb=report["peak"] / 1024,
        level=level,
    )


def _outcome(code: int, report: Report, complaints: str, limits: Limits) -> Outcome:
    """How a program ended; which failure it calls its own is its own affair, that it failed is not."""
    if report["late"]:
        return "timeout"
    if code == 0:
        return "ok"
    if code > 0:
        last = complaints.rstrip().rpartition("\n")[2]
        return "memory" if last.startswith(OUT_OF_MEMORY) else "error"
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and report["cpu_s"] >= MUCH * limits.cpu_s):
        return "cpu"
    return "killed" if code == -signal.SIGKILL else "crashed"
