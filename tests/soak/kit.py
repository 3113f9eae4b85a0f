"""A crowd of environments of which some crash, hang or exhaust their memory, and what became of each."""

import asyncio
import os
import time
from collections import Counter
from typing import Literal, assert_never

from windrow.envs.places import Place
from windrow.envs.protocol import DEADLINE, Env, Observation, Step
from windrow.errors import EnvError
from windrow.trajectory import Task

Fate = Literal["ok", "crash", "hang", "memory"]

TURNS = 4
PATIENCE_S = 600.0
"""For everything that is not meant to hang: a crowd on few cores takes its time."""


def fate_of(number: int) -> Fate:
    """Of every hundred episodes five crash, five hang and two exhaust their memory."""
    match number % 100:
        case 3 | 23 | 43 | 63 | 83:
            return "crash"
        case 7 | 27 | 47 | 67 | 87:
            return "hang"
        case 11 | 61:
            return "memory"
        case _:
            return "ok"


class Mixed:
    """Says what it was told, for some turns; in the third its fate meets it."""

    def __init__(self) -> None:
        self._number = -1
        self._turn = 0

    async def start(self, task: Task) -> Observation:
        self._number = task.ordinal
        return f"episode {task.ordinal}"

    async def step(self, action: str) -> Step:
        self._turn += 1
        if self._turn == 3:
            await self._meet(fate_of(self._number))
        return Step(observation=f"{self._number}.{self._turn}: {action}", terminated=self._turn == TURNS)

    async def close(self) -> None:
        pass

    async def _meet(self, fate: Fate) -> None:
        match fate:
            case "ok":
                pass
            case "crash":
                os._exit(1) if self._number % 3 else os.abort()
            case "hang":
                await self._hang()
            case "memory":
                food = []
                while True:
                    food.append(bytearray(b"x") * (1 << 20))
            case _:
                assert_never(fate)

    async def _hang(self) -> None:
        """In three manners, of which one takes all the time it can get."""
        match self._number % 3:
            case 0:
                time.sleep(10_000)  # noqa: ASYNC251 -- it hangs
            case 1:
                while True:
                    pass
            case _:
                while True:
                    try:
                        await asyncio.sleep(10_000)
                    except asyncio.CancelledError:
                        continue


class Report:
    """What became of a crowd."""

    def __init__(self) -> None:
        self.counts: Counter[Fate] = Counter()
        self.wrong: list[str] = []  # all and only what should not have been
        self.late_s: list[float] = []  # of each hang: how long after its deadline whoever waited knew
        self.dead_s: list[float] = []  # of each hang: how long after its deadline its process was known to be dead
        self.alive_at_once = 0

    def end(self, number: int, fate: Fate, words: str = "") -> None:
        self.counts[fate] += 1
        if fate != fate_of(number):
            self.wrong.append(f"episode {number} was to {fate_of(number)}, but {fate}: {words}")


async def play_all(place: Place, episodes: int, *, hang_s: float) -> Report:
    """Play so many episodes, all alive at once before any of them goes on; hangs end between `hang_s` and 5 s more."""
    report = Report()
    gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(episodes):
            group.create_task(_episode(place, number, report, gate, episodes, hang_s))
    return report


async def _episode(
    place: Place, number: int, report: Report, gate: asyncio.Event, episodes: int, hang_s: float
) -> None:
    env = place.make()
    try:
        await _start(env, number)
        report.alive_at_once += 1
        if report.alive_at_once == episodes:
            gate.set()
        await gate.wait()
        await _play(env, number, report, hang_s)
    except EnvError as error:
        report.end(number, "memory" if "ran out of memory" in str(error) else "crash", str(error))
    finally:
        await env.close()


async def _start(env: Env, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        shown = await env.start(Task(ordinal=number))
    assert shown == f"episode {number}"


async def _play(env: Env, number: int, report: Report, hang_s: float) -> None:
    loop = asyncio.get_running_loop()
    patience = hang_s + number % 50 / 10 if fate_of(number) == "hang" else PATIENCE_S
    for turn in range(1, TURNS + 1):
        deadline = loop.time() + (patience if turn == 3 else PATIENCE_S)
        DEADLINE.set(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                step = await env.step(f"action {turn}")
        except TimeoutError:
            report.late_s.append(loop.time() - deadline)
            await env.close()
            report.dead_s.append(loop.time() - deadline)
            report.end(number, "hang")
            return
        if step.observation != f"{number}.{turn}: action {turn}":
            report.wrong.append(f"episode {number} got {step.observation!r} in turn {turn}")
    report.end(number, "ok")
