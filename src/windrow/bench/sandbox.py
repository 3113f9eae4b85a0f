"""How many programs a second the sandbox runs, beside a fresh Python for each of them.

The program prints one number. The alternative is what is usually done: `python -I` as a child with limits on its
processor time, its memory and its files, as many at once as here. It is not walled in at all: it sees the network and
every file, so it does less. Nearly all the work is done in child processes, so this is measured in real time, in turns,
and a busy machine slows both sides.
"""

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

from windrow.bench import Result, Say, alternate, compared
from windrow.errors import InternalError
from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import LEVELS, Level, Limits, Program, SandboxSettings

WHAT = "sandbox: programs per second, and the latency of one"

PROGRAMS = 100
"""In a round."""
ROUNDS = 5
AT_ONCE = 4
SOURCE = "print(6 * 7)"
SAYS = "42\n"
LIMITS = Limits()

Run = Callable[[], Awaitable[str]]
"""Runs the program once and gives what it printed."""


def run(say: Say) -> list[Result]:
    """Measure everything; a level that does not work here is left out."""
    say(f"{PROGRAMS} programs in a round, {AT_ONCE} at once, {ROUNDS} rounds in turns, real time")
    with asyncio.Runner() as runner:
        sandboxes = runner.run(_open(say))
        try:
            return _compare(runner, sandboxes)
        finally:
            for sandbox in sandboxes.values():
                runner.run(sandbox.close())


async def _open(say: Say) -> dict[Level, Sandbox]:
    """One sandbox of each level that holds attacks and works here; the best there is if none does."""
    best = Sandbox(SandboxSettings(at_once=AT_ONCE, at_least="limits"))
    await best.open()
    say(f"the best level here is {best.level}")
    found = {best.level: best}
    if best.level == LEVELS[0]:
        second = Sandbox(SandboxSettings(at_once=AT_ONCE, at_least="limits", at_most=LEVELS[1]))
        await second.open()
        found[second.level] = second
    return found


def _compare(runner: asyncio.Runner, sandboxes: dict[Level, Sandbox]) -> list[Result]:
    runs: list[Run] = [*(partial(_walled, sandbox) for sandbox in sandboxes.values()), _fresh]
    rates = alternate(ROUNDS, *(_timed(runner, _many, one) for one in runs))
    waits = alternate(ROUNDS, *(_timed(runner, _one_by_one, one) for one in runs))
    results: list[Result] = []
    for place, level in enumerate(sandboxes):
        words = f"level {level} (alternative: a fresh python -I with limits, without walls)"
        results += [
            compared(f"programs per second, {words}", PROGRAMS / rates[place], PROGRAMS / rates[-1], "1/s"),
            compared(f"latency of one program, {words}", 1e3 * waits[place], 1e3 * waits[-1], "ms"),
        ]
    return results


def _timed(runner: asyncio.Runner, way: Callable[[Run], Awaitable[float]], one: Run) -> Callable[[], float]:
    async def measure() -> float:
        return await way(one)

    return lambda: runner.run(measure())


async def _many(one: Run) -> float:
    """Seconds for a round."""
    places = asyncio.Semaphore(AT_ONCE)

    async def placed() -> None:
        async with places:
            _check(await one())

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(PROGRAMS):
            group.create_task(placed(), name=f"program {number}")
    return perf_counter() - began


async def _one_by_one(one: Run) -> float:
    """Seconds for one program, when nothing else runs."""
    few = max(1, PROGRAMS // 10)
    began = perf_counter()
    for _ in range(few):
        _check(await one())
    return (perf_counter() - began) / few


def _check(said: str) -> None:
    if said != SAYS:
        raise InternalError(f"the program of the benchmark said {said!r} instead of {SAYS!r}")


async def _walled(sandbox: Sandbox) -> str:
    return (await sandbox.run(Program(source=SOURCE, limits=LIMITS))).stdout


async def _fresh() -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", SOURCE, stdout=asyncio.subprocess.PIPE, env={}, preexec_fn=_limit
    )
    said, _ = await child.communicate()
    return said.decode()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMITS.cpu_s, LIMITS.cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (LIMITS.memory_mb << 20, LIMITS.memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMITS.open_files, LIMITS.open_files))
