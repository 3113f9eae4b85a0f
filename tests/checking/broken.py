"""Environments with one mistake each, by the rule that must find it; and one without any."""

import asyncio
import contextlib
import ctypes
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from windrow.envs.drawing import draw
from windrow.envs.protocol import Briefing, Observation, Rewritten, Step
from windrow.text import Message
from windrow.trajectory import Task

LETTERS = "abcdefghij"


class Good:
    """A word to be said backwards, in three tries."""

    def __init__(self) -> None:
        self.word = ""
        self.tries = 0

    async def start(self, task: Task) -> Observation:
        self.word = draw(task, lambda rng: "".join(rng.choices(LETTERS, k=6)), str)
        return f"say {self.word} backwards"

    async def step(self, action: str) -> Step:
        self.tries += 1
        right = action.strip() == self.word[::-1]
        return Step(
            observation="right" if right else "no", reward=float(right), terminated=right or self.tries == 3,
            info={"word": self.word},
        )  # fmt: skip

    async def close(self) -> None: ...

    def solve(self) -> str:
        return self.word[::-1]

    def wander(self, rng: Random) -> str:
        return "".join(rng.choices(LETTERS, k=6))


class Quiet(Good):
    """Also good: messages, tools, rewritten history, numpy's numbers, work in threads and a pause that is awaited."""

    async def start(self, task: Task) -> Observation:
        text = await super().start(task)
        assert isinstance(text, str)
        tool = {"type": "function", "function": {"name": "nothing", "parameters": {}}}
        return Briefing((Message("system", "play"), Message("user", text)), (tool,))

    async def step(self, action: str) -> Step:
        await asyncio.sleep(0.001)
        await asyncio.to_thread(time.sleep, 0.005)
        step = await super().step(action)
        over: Any = np.bool_(step.terminated)
        shown = Rewritten((Message("user", f"say {self.word} backwards, again"),))
        return Step(observation=shown, reward=np.float64(step.reward), terminated=over)


class RaisesInStep(Good):
    async def step(self, action: str) -> Step:
        return Step(reward=1.0 / (len(action) - 6), terminated=True)


class RaisesInStart(Good):
    async def start(self, task: Task) -> Observation:
        raise KeyError("no such file")


class RaisesOnStrangeWords(Good):
    async def step(self, action: str) -> Step:
        assert action.isascii(), "only ASCII"
        return await super().step(action)


class RaisesInClose(Good):
    async def close(self) -> None:
        if self.word:
            raise OSError("already gone")


class RaisesInSolve(Good):
    def solve(self) -> str:
        raise NotImplementedError


class CallsExit(Good):
    async def step(self, action: str) -> Step:
        raise SystemExit(3)


class IsTooLateForItself(Good):
    async def step(self, action: str) -> Step:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(3600)
        return Step()


class CancelsItself(Good):
    async def step(self, action: str) -> Step:
        raise asyncio.CancelledError


class AwaitsForEver(Good):
    async def step(self, action: str) -> Step:
        await asyncio.Event().wait()
        return Step()


class NeverEnds(Good):
    async def step(self, action: str) -> Step:
        return Step(observation="go on")


class EndsOnlyWhenSolved(Good):
    async def step(self, action: str) -> Step:
        self.tries = 0
        return await super().step(action)


class NotAsync(Good):
    def step(self, action: str) -> Step:  # type: ignore[override]
        return Step(reward=1.0, terminated=True)


class NoStep(Good):
    async def step(self, action: str) -> Step:
        return ("no", 0.0, True, {})  # type: ignore[return-value]


class ForgetsToReturn(Good):
    async def step(self, action: str) -> Step:  # type: ignore[return]
        await super().step(action)


class ShowsNothing(Good):
    async def start(self, task: Task) -> Observation:
        await super().start(task)
        return ""


class ShowsNone(Good):
    async def start(self, task: Task) -> Observation:
        await super().start(task)
        return None  # type: ignore[return-value]


class ShowsAPair(Good):
    async def start(self, task: Task) -> Observation:
        return (await super().start(task), {})  # type: ignore[return-value]


class ShowsNumbers(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=[1, 2], reward=step.reward, terminated=step.terminated)  # type: ignore[list-item]


class ShowsDicts(Good):
    async def start(self, task: Task) -> Observation:
        return [{"role": "user", "content": await super().start(task)}]  # type: ignore[list-item]


class ShowsHalfACharacter(Good):
    async def start(self, task: Task) -> Observation:
        return f"{await super().start(task)} \ud800"


class OffersToolsLate(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=Briefing((Message("user", "no"),)), reward=step.reward, terminated=step.terminated)


class ShowsTooMuch(Good):
    async def start(self, task: Task) -> Observation:
        return f"{await super().start(task)} {'x' * 60_000}"


class RewardIsText(Good):
    async def step(self, action: str) -> Step:
        return Step(reward="1.0", terminated=True)  # type: ignore[arg-type]


class RewardIsNan(Good):
    async def step(self, action: str) -> Step:
        return Step(reward=float("nan"), terminated=True)


class RewardIsLarge(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=step.observation, reward=10.0 * step.reward, terminated=step.terminated)


class RewardIsNegative(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=step.observation, reward=step.reward or -0.1, terminated=step.terminated)


class FlagIsText(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        flag: Any = "yes" if step.terminated else ""
        return Step(observation=step.observation, reward=step.reward, terminated=flag)


class BothFlags(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        over = step.terminated
        return Step(observation=step.observation, reward=step.reward, terminated=over, truncated=over)


class CutsWhatIsSolved(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=step.observation, reward=step.reward, truncated=step.terminated)


class InfoIsAList(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        info: Any = ["word", self.word]
        return Step(observation=step.observation, reward=step.reward, terminated=step.terminated, info=info)


class InfoIsNotPlain(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        info = {"env": object()}
        return Step(observation=step.observation, reward=step.reward, terminated=step.terminated, info=info)


class InfoCannotBeSent(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        info = {"lock": threading.Lock()}
        return Step(observation=step.observation, reward=step.reward, terminated=step.terminated, info=info)


class SleepsInStep(Good):
    async def step(self, action: str) -> Step:
        time.sleep(0.03)  # noqa: ASYNC251 the mistake
        return await super().step(action)


class SleepsInATaskOfItsOwn(Good):
    async def step(self, action: str) -> Step:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fetch())
        return await super().step(action)

    async def fetch(self) -> None:
        time.sleep(0.03)  # noqa: ASYNC251 the mistake


class SleepsInStart(Good):
    async def start(self, task: Task) -> Observation:
        os.system("sleep 0.02")  # noqa: ASYNC221, S605, S607 the mistake
        return await super().start(task)


class Computes(Good):
    async def start(self, task: Task) -> Observation:
        until = time.thread_time() + (0.3 if task.split == "train" and task.ordinal < 4 else 0.0)
        while time.thread_time() < until:
            pass
        return await super().start(task)


class HoldsALock(Good):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class CountsEpisodes(Good):
    episodes = 0

    async def start(self, task: Task) -> Observation:
        CountsEpisodes.episodes += 1
        return f"{await super().start(task)}, for the {CountsEpisodes.episodes}th time"


class SharesItsWord(Good):
    """Right as long as one episode is played at a time."""

    words: list[str] = []

    async def start(self, task: Task) -> Observation:
        shown = await super().start(task)
        SharesItsWord.words = [self.word]
        return shown

    async def step(self, action: str) -> Step:
        self.word = SharesItsWord.words[0]
        step = await super().step(action)
        return Step(observation=f"no, {self.word}", reward=step.reward, terminated=step.terminated)


class DrawsFromTheClock(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return Step(observation=f"{time.time_ns()}", reward=step.reward, terminated=step.terminated)


class SeedsEverybody(Good):
    async def start(self, task: Task) -> Observation:
        random.seed(task.seed)
        return await super().start(task)


class SeedsNumpy(Good):
    async def start(self, task: Task) -> Observation:
        np.random.seed(task.seed)  # noqa: NPY002 the mistake
        return await super().start(task)


class MovesElsewhere(Good):
    async def start(self, task: Task) -> Observation:
        os.chdir("/" if task.seed % 2 else "/usr")
        return await super().start(task)


class SetsAVariable(Good):
    async def start(self, task: Task) -> Observation:
        os.environ["WINDROW_TEST_OF_THE_CHECK"] = str(task.seed)
        return await super().start(task)


class SpeaksAsNobody(Good):
    async def start(self, task: Task) -> Observation:
        return [Message("bogus", str(await super().start(task)))]


class CancelsEverything(Good):
    """And returns before it is noticed."""

    async def step(self, action: str) -> Step:
        for each in asyncio.all_tasks():
            each.cancel()
        return await super().step(action)


class ExitsInATask(Good):
    async def step(self, action: str) -> Step:
        task = asyncio.get_running_loop().create_task(leave())
        await asyncio.wait([task])
        return await super().step(action)


async def leave() -> None:
    raise SystemExit(3)


class Treacherous(list[Message]):
    """Messages that cannot be looked at."""

    def __iter__(self) -> Iterator[Message]:
        raise MemoryError("no")


class ShowsWhatIsTreacherous(Good):
    async def start(self, task: Task) -> Observation:
        return Treacherous([Message("user", str(await super().start(task)))])


class Prints(Good):
    async def step(self, action: str) -> Step:
        print("action", action[:10])  # noqa: T201 the mistake
        return await super().step(action)


class LeavesThreads(Good):
    async def start(self, task: Task) -> Observation:
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, args=(60,), daemon=True).start()
        return await super().start(task)


class LeavesFiles(Good):
    kept: list[int] = []

    async def start(self, task: Task) -> Observation:
        self.kept.append(os.open(os.devnull, os.O_RDONLY))
        return await super().start(task)


class LeavesTasks(Good):
    kept: list[object] = []

    async def start(self, task: Task) -> Observation:
        self.kept.append(asyncio.ensure_future(asyncio.sleep(3600)))
        return await super().start(task)


class ClosesOnce(Good):
    async def close(self) -> None:
        del self.tries


class ClosesOnlyWhatBegan(Good):
    def __init__(self) -> None: ...

    async def start(self, task: Task) -> Observation:
        self.tries = 0
        self.open = True
        return await super().start(task)

    async def close(self) -> None:
        self.open = not self.open and self.open


class HasNoSolve:
    """Good otherwise."""

    async def start(self, task: Task) -> Observation:
        self.word = draw(task, lambda rng: "".join(rng.choices(LETTERS, k=6)), str)
        return f"say {self.word} backwards"

    async def step(self, action: str) -> Step:
        return Step(reward=float(action == self.word[::-1]), terminated=True)

    async def close(self) -> None: ...


class SolvesWithNumbers(Good):
    def solve(self) -> str:
        return 7  # type: ignore[return-value]


class SolvesLater(Good):
    async def solve(self) -> str:  # type: ignore[override]
        return self.word[::-1]


class SolvesHalf(Good):
    def solve(self) -> str:
        return self.word if self.word < "f" else self.word[::-1]


class GivesMarksToAll(Good):
    async def step(self, action: str) -> Step:
        return Step(reward=1.0, terminated=True)


class IgnoresTheSeed(Good):
    async def start(self, task: Task) -> Observation:
        self.word = "abcdef"
        return f"say {self.word} backwards"


class IgnoresTheSplit(Good):
    async def start(self, task: Task) -> Observation:
        self.word = "".join(Random(task.seed).choices(LETTERS, k=6))
        return f"say {self.word} backwards"


# what only another process can tell


class Spins(Good):
    async def step(self, action: str) -> Step:
        while True:
            pass


class SpinsInTheConstructor(Good):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        SpinsInTheConstructor.made += 1
        while self.made > 4:
            pass


class SearchesForEver(Good):
    """In C, without letting go of the interpreter's lock."""

    async def step(self, action: str) -> Step:
        re.match(r"(a+)+$", "a" * 60 + "b")
        return await super().step(action)


class IgnoresCancellation(Good):
    async def step(self, action: str) -> Step:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


class EndsItsProcess(Good):
    async def step(self, action: str) -> Step:
        os._exit(7)


class ForksInStep(Good):
    async def step(self, action: str) -> Step:
        os.fork()
        return await super().step(action)


class ClosesTheConnection(Good):
    """Of the check, and goes on."""

    async def step(self, action: str) -> Step:
        if self.word.startswith("a"):
            os.closerange(3, 64)
            threading.Event().wait()
        return await super().step(action)


class Floods(Good):
    async def step(self, action: str) -> Step:
        os.write(2, b"x" * (20 << 20))
        return await super().step(action)


class EndsLate(Good):
    async def start(self, task: Task) -> Observation:
        if task.seed == 3:
            os._exit(8)
        return await super().start(task)


class Crashes(Good):
    async def step(self, action: str) -> Step:
        ctypes.string_at(0)
        return await super().step(action)


class WaitsForAThread(Good):
    """That never ends, so that the loop cannot be closed either."""

    async def step(self, action: str) -> Step:
        await asyncio.to_thread(threading.Event().wait)
        return await super().step(action)


class LeavesAChild(Good):
    """And says which, in a file."""

    async def start(self, task: Task) -> Observation:
        child = subprocess.Popen(["sleep", "3600"])  # noqa: ASYNC220, S607 the mistake
        Path("children").open("a", encoding="utf-8").write(f"{child.pid}\n")  # noqa: ASYNC230, SIM115 as above
        return await super().start(task)


class HashesText(Good):
    async def start(self, task: Task) -> Observation:
        shown = await super().start(task)
        return f"{shown} ({hash(self.word) % 1000})"


LUCK = random.random()


class DrawsWhenLoaded(Good):
    async def start(self, task: Task) -> Observation:
        return f"{await super().start(task)} {LUCK}"


class Remembers(Good):
    """A file that is there the second time."""

    async def start(self, task: Task) -> Observation:
        if Path("seen").exists() and not SEEN:  # noqa: ASYNC240 the mistake
            raise FileExistsError("seen")
        SEEN.append(task.seed)
        Path("seen").touch()  # noqa: ASYNC240 as above
        return await super().start(task)


SEEN: list[int] = []

ELSEWHERE: list[tuple[str, str, str]] = [
    ("Spins", "never-returns", "while True:|pass"),
    ("SpinsInTheConstructor", "never-returns", "while self.made > 4:|pass"),
    ("SearchesForEver", "never-returns", "re.match("),
    ("IgnoresCancellation", "never-returns", ""),
    ("WaitsForAThread", "never-returns", "await asyncio.to_thread(threading.Event().wait)"),
    ("EndsItsProcess", "dies", "exit code 7"),
    ("Crashes", "dies", "SIGSEGV"),
    ("ForksInStep", "dies", "the environment forked its process"),
    ("HashesText", "hidden-state", "in a process of its own"),
    ("DrawsWhenLoaded", "hidden-state", "in a process of its own"),
    ("Remembers", "raises", "FileExistsError: seen"),
]
"""Which, the rule that it breaks, and one of some words that the finding has."""


async def wrong_rollout(task: Task, policy: Any) -> float:
    return len(await policy(f"say {task.seed}")) / 0


ONE: list[Good] = []


def the_same() -> Good:
    """Always the same object, put back to its beginning."""
    if not ONE:
        ONE.append(Good())
    ONE[0].tries = 0
    return ONE[0]


def holder(lock: Any) -> Good:
    del lock
    return Good()


with_a_lock = partial(holder, threading.Lock())

LOCK = threading.Lock()


class UsesALock(Good):
    """That a process which can import this file makes for itself."""

    async def step(self, action: str) -> Step:
        with LOCK:
            return await super().step(action)


TABLE: list[tuple[Any, set[str]]] = [
    (RaisesInStep, {"raises"}),
    (RaisesInStart, {"raises"}),
    (RaisesOnStrangeWords, {"raises"}),
    (RaisesInClose, {"raises"}),
    (RaisesInSolve, {"raises"}),
    (CallsExit, {"raises"}),
    (CancelsItself, {"raises"}),
    (IsTooLateForItself, {"raises"}),
    (AwaitsForEver, {"never-returns"}),
    (NeverEnds, {"never-ends"}),
    (EndsOnlyWhenSolved, {"may-not-end"}),
    (NotAsync, {"not-async"}),
    (NoStep, {"not-a-step"}),
    (ForgetsToReturn, {"not-a-step"}),
    (ShowsNothing, {"observation-empty"}),
    (ShowsNone, {"observation-type"}),
    (ShowsAPair, {"observation-type"}),
    (ShowsNumbers, {"observation-type"}),
    (ShowsDicts, {"observation-type"}),
    (ShowsHalfACharacter, {"observation-type"}),
    (OffersToolsLate, {"observation-type"}),
    (ShowsTooMuch, {"observation-long"}),
    (RewardIsText, {"reward-type"}),
    (RewardIsNan, {"reward-type"}),
    (RewardIsLarge, {"reward-range"}),
    (RewardIsNegative, {"reward-range"}),
    (FlagIsText, {"flag-type"}),
    (BothFlags, {"both-flags"}),
    (CutsWhatIsSolved, {"solved-but-cut"}),
    (InfoIsAList, {"info-type"}),
    (InfoIsNotPlain, {"info-plain"}),
    (InfoCannotBeSent, {"not-picklable"}),
    (SleepsInStep, {"blocking"}),
    (SleepsInATaskOfItsOwn, {"blocking"}),
    (SleepsInStart, {"blocking"}),
    (Computes, {"hogs"}),
    (HoldsALock, {"holds-unpicklable"}),
    (CountsEpisodes, {"hidden-state"}),
    (SharesItsWord, {"hidden-state"}),
    (DrawsFromTheClock, {"hidden-state"}),
    (SeedsEverybody, {"global-random"}),
    (SeedsNumpy, {"global-random"}),
    (MovesElsewhere, {"global-process"}),
    (SetsAVariable, {"global-process"}),
    (SpeaksAsNobody, {"observation-type"}),
    (CancelsEverything, {"raises"}),
    (ExitsInATask, {"raises"}),
    (ShowsWhatIsTreacherous, {"raises"}),
    (Prints, {"prints"}),
    (LeavesThreads, {"leaks"}),
    (LeavesFiles, {"leaks"}),
    (LeavesTasks, {"leaks"}),
    (ClosesOnce, {"closes-once"}),
    (ClosesOnlyWhatBegan, {"closes-once"}),
    (HasNoSolve, {"solve-missing"}),
    (SolvesWithNumbers, {"solve-type"}),
    (SolvesLater, {"solve-type"}),
    (SolvesHalf, {"solve-short"}),
    (GivesMarksToAll, {"too-easy"}),
    (IgnoresTheSeed, {"ignores-seed"}),
    (IgnoresTheSplit, {"overlap"}),
    (the_same, {"same-object", "hidden-state"}),
    (with_a_lock, {"not-picklable"}),
    (UsesALock, {"not-picklable"}),
]
"""What makes each, and all and only the rules that are broken."""
