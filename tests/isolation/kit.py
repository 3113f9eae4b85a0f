"""Things to put into processes, good and bad, and ways to look at processes from outside."""

import asyncio
import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from windrow.errors import EnvError
from windrow.isolation.hosts import Hosts
from windrow.isolation.settings import HostSettings

PATIENCE_S = 300.0
"""Far longer than anything here takes; a test that waits so long has failed."""


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(_in_time(body))


async def _in_time(body: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await body


def hosts(make: Callable[[], object], **settings: Any) -> Hosts:
    given: dict[str, Any] = {"name": "thing", "error": EnvError, "ahead": 0} | settings
    return Hosts(make, HostSettings(**given))


async def eventually(check: Callable[[], bool]) -> None:
    """Wait for something that the kernel tells nobody."""
    while not check():  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return state_of(pid) not in {"Z", "X"}
    except OSError:
        return False


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def descendants(pid: int) -> set[int]:
    """Everything below a process, dead ones that nobody waited for too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents[int(entry.name)] = parent_of(int(entry.name))
    found, size = {pid}, 0
    while len(found) != size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {pid}


Born = Callable[[], set[int]]
"""What the fixture `born` gives: everything below this process that was not there when the test began."""


def born_since(before: set[int]) -> set[int]:
    return descendants(os.getpid()) - before


def nest_of(pool: Hosts) -> int:
    assert pool.nest_pid is not None
    return pool.nest_pid


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Counter:
    """Counts, and says where it is."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.ticks = 0

    def add(self, more: int = 1) -> int:
        self.count += more
        return self.count

    async def add_slowly(self, more: int = 1) -> int:
        await asyncio.sleep(0)
        return self.add(more)

    def pid(self) -> int:
        return os.getpid()

    def echo(self, *things: object) -> tuple[object, ...]:
        return things

    def task(self) -> int:
        return id(asyncio.current_task())

    async def begin_to_tick(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    def ticked(self) -> int:
        return self.ticks

    def say(self, words: str) -> None:
        print(words)  # noqa: T201 -- whether it is heard is the question
        sys.stderr.write(words)
        sys.stderr.flush()
        sys.stdout.flush()

    def numbers(self) -> dict[str, Any]:
        return {"array": np.arange(5), "number": np.float32(0.5)}

    def draws(self) -> float:
        return float(np.random.random())  # noqa: NPY002 -- the global one is what processes might share


class Villain(Counter):
    """Misbehaves on demand."""

    def door(self) -> None:
        raise KeyError("door")

    def leave(self) -> None:
        sys.exit(3)

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    def odd_error(self) -> None:
        class OddError(Exception):
            def __init__(self, lock: object) -> None:
                super().__init__("odd")
                self.lock = lock

        raise OddError(threading.Lock())

    def no_text(self) -> None:
        raise ValueError("a file named \udcff")

    def speechless(self) -> None:
        class SpeechlessError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        raise SpeechlessError

    def trap_exit(self) -> "Trap":
        return Trap("exit")

    def trap_interrupt(self) -> "Trap":
        return Trap("interrupt")

    def trap_memory(self) -> "Trap":
        return Trap("memory")

    def orphan(self) -> int:
        """How many are dead below it when one has died that was left to itself."""
        subprocess.run("sleep 0.05 &", shell=True, check=True)  # noqa: S602, S607 -- whichever
        deadline = time.monotonic() + PATIENCE_S
        while not (dead := _dead_children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return dead

    def exit_at_once(self) -> None:
        sys.stderr.write("the lights went out")
        sys.stderr.flush()
        os._exit(7)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def abort(self) -> None:
        os.abort()

    def sleep(self) -> None:
        time.sleep(1000)

    def spin(self) -> None:
        while True:
            pass

    async def swallow(self) -> None:
        while True:
            with suppress(BaseException):
                await asyncio.sleep(1000)

    def deaf(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        self.spin()

    def wait_in_c(self) -> None:
        ctypes.CDLL(None).pause()

    def eat(self) -> None:
        self.food = []
        while True:
            self.food.append(bytearray(b"x") * (1 << 20))

    def gulp(self) -> int:
        return len(bytearray(8 << 30))

    def lock(self) -> object:
        return threading.Lock()

    def too_much(self) -> bytes:
        return bytes(300 << 20)

    def garbage(self) -> None:
        for number in _sockets():
            os.write(number, b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(1000)

    def almost_garbage(self) -> None:
        for number in _sockets():
            os.write(number, b"wdrw" + (3).to_bytes(8, "big") + b"abc")
        time.sleep(1000)

    def cut(self) -> None:
        os.closerange(3, 1000)
        time.sleep(1000)

    def mute(self) -> int:
        os.close(1)
        os.close(2)
        return 1

    def child(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid  # noqa: S607 -- whichever

    def daemon(self) -> int:
        """Somebody who left the group, the session and their parent."""
        script = "import os, time\nif os.fork() == 0:\n os.setsid()\n print(os.getpid(), flush=True)\n time.sleep(1000)"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            return int(process.stdout.readline())

    def swarm(self) -> None:
        """Several generations that each leave their parent's session."""
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
        time.sleep(1000)

    def flood(self) -> None:
        sys.stdout.write("tide " * (1 << 20))
        sys.stdout.write("the last words\n")
        sys.stdout.flush()
        os._exit(1)


class Trap:
    """Does something bad to whoever unpickles it."""

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def __reduce__(self) -> tuple[Any, ...]:
        match self.deed:
            case "exit":
                return sys.exit, (3,)
            case "interrupt":
                return exec, ("raise KeyboardInterrupt",)
            case _:
                return bytes, (1 << 60,)


def _dead_children() -> int:
    """Of this process: all that nobody waited for."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                pid = int(entry.name)
                found += parent_of(pid) == os.getpid() and state_of(pid) == "Z"
    return found


def _sockets() -> list[int]:
    return [number for number in range(3, 100) if _is_socket(number)]


def _is_socket(number: int) -> bool:
    with suppress(OSError):
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    return False
