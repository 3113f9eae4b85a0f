"""How a sandbox and its programs come to their end, at bad moments too: what is said to be over is over."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.kit import processes_of, warden_of

from windrow.errors import SandboxError
from windrow.sandbox.cells import NICE, Cells
from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import LEVELS, Level, Limits, Program, SandboxSettings
from windrow.sandbox.warden import Warden

WALLED: tuple[Level, ...] = ("namespaces", "landlock")
PAGE = os.sysconf("SC_PAGESIZE")
SOON_S = 30.0
"""Far longer than it takes, and shorter than for ever."""
LARGE = Program(source="import time\nheld = bytearray(b'x') * (100 << 20)\nprint(1, flush=True)\ntime.sleep(1000)")


def held_at(level: Level) -> SandboxSettings:
    return SandboxSettings(at_most=level, at_least=level)


def is_dead(pid: int) -> bool:
    """It is gone, or nothing of it is left but that somebody may ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def pages_of(pid: int) -> list[int]:
    """Of memory that a process has: all, those in use, and more."""
    return [*map(int, Path(f"/proc/{pid}/statm").read_text().split())]


def is_forgotten(pid: int) -> bool:
    """It is dead, and somebody has asked how it ended."""
    return not Path(f"/proc/{pid}").exists()


async def until_large(sandbox: Sandbox, programs: int) -> list[int]:
    """The processes of that many LARGE programs, when each of them is."""
    async with asyncio.timeout(SOON_S):
        while True:
            found = [*processes_of(os.getpid()) - {warden_of(sandbox)}]
            if len([pid for pid in found if pages_of(pid)[1] > (100 << 20) // PAGE]) == programs:
                return found
            await asyncio.sleep(0.01)


async def refused(sandbox: Sandbox, program: Program) -> None:
    with pytest.raises(SandboxError):
        await sandbox.run(program)


def test_closing_waits_for_the_programs_of_a_warden_that_was_lost():
    async def main() -> None:
        async with Sandbox() as sandbox, asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(refused(sandbox, LARGE))
            programs = await until_large(sandbox, 3)
            os.kill(warden_of(sandbox), signal.SIGKILL)
            await sandbox.close()
            assert [pid for pid in programs if not is_dead(pid)] == []

    asyncio.run(main())


def test_whoever_closes_it_again_waits_too():
    async def main() -> None:
        sandbox = Sandbox()
        await sandbox.open()
        warden = warden_of(sandbox)
        async with asyncio.TaskGroup() as group:
            group.create_task(sandbox.close())
            await asyncio.sleep(0)
            await sandbox.close()
            assert is_forgotten(warden)

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(1, 5))
def test_a_close_that_was_cancelled_can_be_made_up_for(steps: int):
    async def main() -> None:
        sandbox = Sandbox()
        await sandbox.open()
        warden = warden_of(sandbox)
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(sandbox.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
        await sandbox.close()
        assert is_forgotten(warden)

    asyncio.run(main())


def test_closing_does_not_wait_for_the_threads_of_others():
    async def main() -> None:
        held = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        others = loop.run_in_executor(None, held.wait)
        sandbox = Sandbox()
        try:
            await sandbox.open()
            async with asyncio.timeout(SOON_S):
                await sandbox.close()
        finally:
            held.set()
            await others

    asyncio.run(main())


def test_an_event_loop_that_stood_still_costs_no_warden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windrow.sandbox.pool.GRACE_S", 0.1)

    async def main() -> None:
        async with Sandbox() as sandbox:
            warden = warden_of(sandbox)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(sandbox.run(Program(source="print(1)", limits=Limits(wall_s=1.0))))
                await asyncio.sleep(0)
                stand_still(1.2)
            assert running.result().stdout == "1\n"
            assert warden_of(sandbox) == warden

    asyncio.run(main())


def stand_still(seconds: float) -> None:
    """As an event loop does while something else is done on it."""
    time.sleep(seconds)


def test_a_program_that_has_no_group_yet_can_be_killed():
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Warden(theirs, Cells("limits", [], proc=-1))._kill(process.pid)
        assert process.wait() == -signal.SIGKILL


STRANGE = """
import ctypes, os, platform, time
number = 56 if platform.machine() == "x86_64" else 220
if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0:  # a child of its parent
    os._exit(0)
time.sleep(0.2)
print(1)
"""


def test_without_walls_a_child_that_nobody_knows_harms_nobody():
    async def main() -> None:
        async with Sandbox(held_at("limits")) as sandbox:
            warden = warden_of(sandbox)
            assert (await sandbox.run(Program(source=STRANGE))).stdout == "1\n"
            assert warden_of(sandbox) == warden

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "limits", "outcome"),
    [
        ("while True: pass", {"wall_s": 0.0001}, "timeout"),
        ("print('x' * (3 << 20))", {"output_bytes": 2 << 20, "scratch_mb": 1}, "output"),
    ],
)
def test_a_limit_is_told_as_what_it_is(source: str, limits: dict[str, Any], outcome: str):
    async def main() -> None:
        async with Sandbox() as sandbox:
            assert (await sandbox.run(Program(source=source, limits=Limits(**limits)))).outcome == outcome

    asyncio.run(main())


def kindness_of(pid: int) -> tuple[int, int]:
    """How willing a process is to be killed when memory runs out, and to let others go first."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text()), os.getpriority(os.PRIO_PROCESS, pid)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_is_the_first_to_go_when_memory_runs_out_and_gives_way(level: Level):
    async def main() -> None:
        async with Sandbox(held_at(level)) as sandbox, asyncio.TaskGroup() as group:
            running = group.create_task(sandbox.run(LARGE))
            (pid,) = await until_large(sandbox, 1)
            assert kindness_of(pid) == (1000, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE))
            running.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("level", WALLED)
def test_a_warden_does_not_grow_with_its_programs(level: Level):
    async def main() -> None:
        async with Sandbox(held_at(level)) as sandbox:
            sizes = []
            for _ in range(2):
                async with asyncio.TaskGroup() as group:
                    for _ in range(150):
                        group.create_task(sandbox.run(Program(source="")))
                sizes.append(pages_of(warden_of(sandbox)))
            assert sizes[1][0] - sizes[0][0] < 100, "a page for each program is one too many"

    asyncio.run(main())


@pytest.mark.parametrize("level", WALLED)
def test_no_picture_of_a_program_is_taken(level: Level):
    async def main() -> None:
        async with Sandbox(held_at(level)) as sandbox:
            asked = await sandbox.run(Program(source="import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"))
            assert asked.stdout == "0\n"

    asyncio.run(main())
