"""The sandbox as its users see it: what a program gets, how it ends, and what is left when it is over."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.kit import processes_of, warden_of

from windrow.errors import ConfigError, InternalError, SandboxError
from windrow.sandbox.pool import TRIES, Sandbox
from windrow.sandbox.values import Level, Limits, Program, Ran, SandboxSettings

SLEEP = Program(source="import time; time.sleep(1000)")
BOTH: tuple[Level, ...] = ("namespaces", "landlock")


def in_sandbox(body: Callable[[Sandbox], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        async with Sandbox(SandboxSettings(**settings)) as sandbox:
            await body(sandbox)

    asyncio.run(main())


def ran(source: str, **given: Any) -> Ran:
    """What becomes of one program."""
    found: list[Ran] = []

    async def body(sandbox: Sandbox) -> None:
        found.append(await sandbox.run(Program(source=source, **given)))

    in_sandbox(body)
    return found[0]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something outside that nobody tells about."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 -- the kernel sends no event
            await asyncio.sleep(0.005)


def is_busy(sandbox: Sandbox) -> bool:
    """Whether it has a warden, and that a program."""
    gate = sandbox._gate
    return gate is not None and gate.lost is None and bool(gate._handed) and len(processes_of(os.getpid())) > 1


@pytest.mark.parametrize("level", BOTH)
def test_a_program_gets_its_input_and_its_arguments_and_is_heard(level: Level):
    async def body(sandbox: Sandbox) -> None:
        source = "import sys; print(sys.argv, input(), __name__); print('ö', file=sys.stderr); sys.exit(3)"
        done = await sandbox.run(Program(source=source, stdin="grüß\n", args=("a", "b")))
        assert (done.stdout, done.stderr) == ("['program.py', 'a', 'b'] grüß __main__\n", "ö\n")
        assert (done.outcome, done.exit_code, done.level) == ("error", 3, level)
        assert sandbox.level == level
        assert 0 < done.cpu_s < 5
        assert done.peak_mb > 1

    in_sandbox(body, at_most=level, at_least=level)


def test_an_exception_is_told_as_python_tells_it():
    done = ran("def f():\n    return 1 / 0\nf()\n")
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert '  File "program.py", line 2, in f' in done.stderr.splitlines()
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "return 1 / 0" in done.stderr
    assert "plays" not in done.stderr, "what runs it is nobody's business"


@pytest.mark.parametrize(
    ("source", "outcome", "code", "stdout"),
    [
        ("raise SystemExit", "ok", 0, ""),
        ("raise SystemExit('words')", "error", 1, ""),
        ("raise SystemExit(256 + 7)", "error", 7, ""),
        ("import os; os._exit(9)", "error", 9, ""),
        ("this is no Python", "error", 1, ""),
        ("'\\udc80'.encode()", "error", 1, ""),
        ("import atexit; atexit.register(print, 'last'); print('first')", "ok", 0, "first\nlast\n"),
        ("import threading; threading.Timer(0.05, print, ['late']).start()", "ok", 0, "late\n"),
        ("import asyncio; asyncio.run(asyncio.sleep(0.01)); print('slept')", "ok", 0, "slept\n"),
        ("import os; print(os.fork() and os.wait()[1])", "ok", 0, "0\n0\n"),
        ("import multiprocessing as m; m.Process(target=print, args=(1,)).start()", "ok", 0, "1\n"),
        ("open('x', 'w').write('kept'); print(open('x').read())", "ok", 0, "kept\n"),
        ("import tempfile; print(tempfile.TemporaryFile().write(b'12'))", "ok", 0, "2\n"),
        ("import sqlite3, ssl, zoneinfo; print(zoneinfo.ZoneInfo('Europe/Paris'))", "ok", 0, "Europe/Paris\n"),
        ("import dataclasses, pickle, typing\n@dataclasses.dataclass\nclass A: pass\npickle.dumps(A())", "ok", 0, ""),
        ("import numpy", "error", 1, ""),
        ("import windrow", "error", 1, ""),
    ],
)
def test_a_program_runs_as_a_file_would(source: str, outcome: str, code: int, stdout: str):
    done = ran(source)
    assert (done.outcome, done.exit_code, done.stdout) == (outcome, code, stdout), done


def test_limits_belong_to_the_program():
    async def body(sandbox: Sandbox) -> None:
        take = "held = bytearray(64 << 20); print(len(held))"
        small, large = Limits(memory_mb=32), Limits(memory_mb=128)
        assert (await sandbox.run(Program(source=take, limits=small))).outcome == "memory"
        assert (await sandbox.run(Program(source=take, limits=large))).outcome == "ok"
        say = "print('x' * 4999)"
        exact, short = Limits(output_bytes=5000), Limits(output_bytes=4999)
        assert (await sandbox.run(Program(source=say, limits=exact))).outcome == "ok"
        cut = await sandbox.run(Program(source=say, limits=short))
        assert (cut.outcome, len(cut.stdout)) == ("output", 4999)
        threads = (
            "import threading\nfor _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()"
        )
        assert (await sandbox.run(Program(source=threads, limits=Limits(processes=4)))).outcome == "ok"
        assert (await sandbox.run(Program(source=threads, limits=Limits(processes=3)))).outcome == "error"

    in_sandbox(body)


COUNT = """
done = []
try:
    while True:
        done.append({})
except OSError:
    print(len(done))
"""


@pytest.mark.parametrize(
    ("action", "limits", "most"),
    [
        ("open('/dev/null')", Limits(open_files=20), 17),
        ("open(str(len(done)), 'w').close()", Limits(scratch_files=30), 30),
        ("open(str(len(done)), 'wb').write(bytes(1 << 16))", Limits(scratch_mb=1), 16),
        ("open('one', 'ab').write(bytes(1 << 16))", Limits(scratch_mb=2), 32),
    ],
)
def test_a_limit_is_where_it_says(action: str, limits: Limits, most: int):
    assert int(ran(COUNT.replace("{}", action), limits=limits).stdout) == most


def test_a_program_that_takes_too_long_is_ended_at_its_time():
    done = ran(SLEEP.source, limits=Limits(wall_s=0.5))
    assert (done.outcome, done.exit_code) == ("timeout", None)
    assert 0.5 <= done.seconds < 5


def test_what_was_said_before_the_end_is_kept():
    done = ran("print('said', flush=True)\nwhile True: pass", limits=Limits(cpu_s=1, wall_s=30))
    assert (done.outcome, done.stdout) == ("cpu", "said\n")


def test_the_same_program_runs_the_same_way_but_chance_is_new():
    async def body(sandbox: Sandbox) -> None:
        sets = [await sandbox.run(Program(source="print({str(n) for n in range(50)})")) for _ in range(2)]
        assert sets[0].stdout == sets[1].stdout
        chance = [await sandbox.run(Program(source="import random; print(random.random())")) for _ in range(2)]
        assert chance[0].stdout != chance[1].stdout

    in_sandbox(body)


SEARCH = """
import ctypes, gc, os
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
hidden = b"revo-tfel"  # backwards, so as not to find itself
end, begin = os.pipe()
arenas = {id(each) >> 20 << 20 for each in [*gc.get_objects(), *map(str, range(9999))]}
pages = {arena + 4096 * n for arena in arenas for n in range(256)}
pages |= {(libc.sbrk(0) >> 12 << 12) - 4096 * n for n in range(1, 4096)}
found = 0
for page in pages:
    if libc.write(begin, ctypes.c_void_p(page), 4096) == 4096:
        found += hidden in os.read(end, 4096)[::-1]
print(os.listdir())
print(found)
"""
"""Looks through the memory of its own process."""


def test_a_program_finds_nothing_of_the_one_before():
    async def body(sandbox: Sandbox) -> None:
        known = "left-over " * 1000
        await sandbox.run(Program(source=f"open('left', 'w').write('{known}')", stdin=known, args=(known,)))
        assert (await sandbox.run(Program(source=SEARCH))).stdout == "[]\n0\n"
        found = await sandbox.run(Program(source=SEARCH, args=(known,)))
        assert int(found.stdout.split()[1]) > 0, "what is there is found"

    in_sandbox(body)


def test_never_more_at_once_than_allowed():
    async def body(sandbox: Sandbox) -> None:
        source = "import time; a = time.monotonic(); time.sleep(0.05); print(a, time.monotonic())"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sandbox.run(Program(source=source))) for _ in range(12)]
        spans = [tuple(map(float, task.result().stdout.split())) for task in tasks]
        overlaps = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
        assert 2 <= max(overlaps) <= 3

    in_sandbox(body, at_once=3)


def test_a_program_nobody_waits_for_any_more_is_ended():
    async def body(sandbox: Sandbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandbox.run(Program(source=SLEEP.source, limits=Limits(wall_s=1000)))
        async with asyncio.timeout(60):  # the only place is free again when the first one is gone
            assert (await sandbox.run(Program(source="print(1)"))).stdout == "1\n"
        assert processes_of(os.getpid()) == {warden_of(sandbox)}

    in_sandbox(body, at_once=1)


def test_a_lost_warden_costs_nobody_anything():
    async def body(sandbox: Sandbox) -> None:
        source = "import time; time.sleep(0.5); print('done')"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sandbox.run(Program(source=source))) for _ in range(3)]
            await until(lambda: is_busy(sandbox))
            lost = warden_of(sandbox)
            os.kill(lost, signal.SIGKILL)
        assert [task.result().stdout for task in tasks] == ["done\n"] * 3
        assert warden_of(sandbox) != lost
        assert processes_of(os.getpid()) == {warden_of(sandbox)}

    in_sandbox(body)


def test_a_sandbox_that_keeps_failing_says_so():
    async def body(sandbox: Sandbox) -> None:
        async def run() -> None:
            with pytest.raises(SandboxError, match="its warden died"):
                await sandbox.run(Program(source="import os, time; os.fork(); time.sleep(1000)"))

        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            for _ in range(TRIES):
                await until(lambda: is_busy(sandbox))
                gate = sandbox._gate
                os.kill(warden_of(sandbox), signal.SIGKILL)
                await until(lambda gate=gate: gate.lost is not None)  # type: ignore[misc]  # the next may be busy at once
        await until(lambda: processes_of(os.getpid()) == set())  # programs die with their warden

    in_sandbox(body)


def test_a_stopped_warden_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windrow.sandbox.pool.GRACE_S", 0.2)

    async def body(sandbox: Sandbox) -> None:
        stopped = warden_of(sandbox)
        os.kill(stopped, signal.SIGSTOP)
        done = await sandbox.run(Program(source="print(1)", limits=Limits(wall_s=4)))
        assert done.stdout == "1\n"
        assert warden_of(sandbox) != stopped

    in_sandbox(body)


def test_closing_ends_what_runs_and_leaves_no_process():
    async def main() -> None:
        sandbox = Sandbox()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_refused(sandbox.run(SLEEP)))
            await until(lambda: is_busy(sandbox))
            await sandbox.close()
        assert "the sandbox was closed" in running.result()
        assert processes_of(os.getpid()) == set()
        assert "the sandbox is closed" in await _refused(sandbox.run(SLEEP))
        await sandbox.close()

    asyncio.run(main())


async def _refused(work: Awaitable[object]) -> str:
    with pytest.raises(SandboxError) as refused:
        await work
    return str(refused.value)


def test_nothing_is_left_when_its_user_is_killed():
    source = (
        "import asyncio\nfrom windrow.sandbox.pool import Sandbox\nfrom windrow.sandbox.values import Program\n"
        "async def main():\n async with Sandbox() as s:\n  print(s.level, flush=True)\n"
        "  await s.run(Program(source='import os, time; os.fork(); time.sleep(1000)'))\nasyncio.run(main())"
    )
    user = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    with user:
        assert user.stdout is not None
        assert user.stdout.readline()

        async def watch() -> None:
            await until(lambda: len(processes_of(user.pid)) == 3)
            user.kill()
            await until(lambda: processes_of(user.pid) == set())

        asyncio.run(watch())


def test_no_file_is_left_open():
    async def body(sandbox: Sandbox) -> None:
        await sandbox.run(Program(source=""))
        places = [Path(f"/proc/{pid}/fd") for pid in (os.getpid(), warden_of(sandbox))]
        before = [_entries(place) for place in places]
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(sandbox.run(Program(source=f"print({number})")))
        assert [_entries(place) for place in places] == before

    in_sandbox(body)


def test_the_machine_has_no_new_mount():
    mounts = Path("/proc/self/mountinfo").read_text
    before = mounts()
    seen: list[str] = []

    async def body(sandbox: Sandbox) -> None:
        await sandbox.run(Program(source="print(1)"))
        seen.append(mounts())

    in_sandbox(body)
    assert seen == [before]


@pytest.mark.parametrize("level", BOTH)
def test_every_wall_stands_by_itself(level: Level):
    """Seen from outside, because one wall hides the lack of another."""
    spaces = ("user", "pid", "mnt", "net", "ipc", "uts")
    apart: list[str] = []
    writable: set[str] = set()
    status: dict[str, str] = {}

    def look(pid: int) -> None:
        apart.extend(name for name in spaces if Path(f"/proc/{pid}/ns/{name}").readlink() != _own(name))
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        writable.update(mount[4] for mount in mounts if "ro" not in mount[5].split(","))
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status.update({name: value.strip() for name, _, value in (line.partition(":") for line in lines)})

    async def body(sandbox: Sandbox) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(sandbox.run(Program(source=SLEEP.source, limits=Limits(processes=3))))
            await until(lambda: "S (sleeping)" in _states(sandbox))
            (pid,) = processes_of(os.getpid()) - {warden_of(sandbox)}
            look(pid)
            running.cancel()

    in_sandbox(body, at_most=level, at_least=level)
    assert apart == ([*spaces] if level == "namespaces" else [])
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == ("1", "2", "1")
    if level == "namespaces":
        assert writable == {"/tmp"}  # noqa: S108 -- its own
        assert "0" not in status["Uid"].split(), "limits on processes do not hold for root"


def _own(name: str) -> Path:
    return Path(f"/proc/self/ns/{name}").readlink()


def _states(sandbox: Sandbox) -> list[str]:
    """Of the programs that sleep behind their walls."""
    found = []
    for pid in processes_of(os.getpid()) - {warden_of(sandbox)}:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        walled = any(line.split() == ["Seccomp:", "2"] for line in lines)
        found += [line.partition(":")[2].strip() for line in lines if walled and line.startswith("State:")]
    return found


def test_a_level_that_holds_less_than_wanted_is_never_tried():
    with pytest.raises(ConfigError, match="at_least is namespaces, which is more than at_most, landlock"):
        Sandbox(SandboxSettings(at_least="namespaces", at_most="landlock"))


@pytest.mark.parametrize(
    "settings",
    [SandboxSettings(at_once=0), SandboxSettings(limits=Limits(memory_mb=1)), SandboxSettings(limits=Limits(wall_s=0))],
)
def test_settings_that_cannot_work_are_refused(settings: SandboxSettings):
    with pytest.raises(ConfigError, match="sandbox: Expected"):
        Sandbox(settings)


def test_limits_that_cannot_work_are_refused():
    async def body(sandbox: Sandbox) -> None:
        with pytest.raises(ConfigError, match="sandbox: Expected `float` <= 86400"):
            await sandbox.run(Program(source="", limits=Limits(wall_s=float("inf"))))

    in_sandbox(body)


def test_cancelled_at_any_moment_it_keeps_nothing():
    async def body(sandbox: Sandbox) -> None:
        files = Path("/proc/self/fd")
        before = _entries(files)
        for steps in range(12):
            task = asyncio.ensure_future(sandbox.run(SLEEP))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        assert (await sandbox.run(Program(source="print(1)"))).stdout == "1\n"
        assert _entries(files) == before
        await until(lambda: processes_of(os.getpid()) == {warden_of(sandbox)})

    in_sandbox(body, at_once=1)


def _entries(folder: Path) -> int:
    return len([*folder.iterdir()])


def test_a_sandbox_belongs_to_one_event_loop():
    sandbox = Sandbox()
    with asyncio.Runner() as runner:
        runner.run(sandbox.open())
        with pytest.raises(InternalError, match="one event loop"):
            asyncio.run(sandbox.run(SLEEP))
        runner.run(sandbox.close())


def test_the_level_is_known_when_it_is_open():
    with pytest.raises(InternalError, match="known when it is open"):
        _ = Sandbox().level


def test_without_walls_only_who_asks_for_it_is_served():
    async def body(sandbox: Sandbox) -> None:
        done = await sandbox.run(Program(source="print(open('/etc/hostname') and 1)"))
        assert (done.level, done.stdout) == ("limits", "1\n")

    in_sandbox(body, at_least="limits", at_most="limits")
