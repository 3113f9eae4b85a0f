"""Environments that break whoever looks at them: the check still ends with a report, and says what is wrong."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from tests.checking import broken
from tests.checking.broken import Good

from windrow.checking.examining import examine
from windrow.checking.loading import Subject, load
from windrow.checking.messages import Job
from windrow.checking.parent import check
from windrow.checking.settings import CheckSettings, Report
from windrow.envs.protocol import Observation, Step
from windrow.errors import ConfigError
from windrow.loading import places
from windrow.text import Message
from windrow.trajectory import Task

SETTINGS = CheckSettings(tasks=4, max_steps=20, timeout_s=0.5)
PATIENCE_S = 10.0


class Panic(BaseException):
    """As libraries in other languages raise it."""


class WordlessError(Exception):
    """Breaks when it is asked what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Wordless:
    """Breaks when it is shown, and when it is asked whether it is true."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


class Panics(Good):
    async def step(self, action: str) -> Step:
        raise Panic("at the disco")


class LeavesAsAGeneratorDoes(Good):
    async def step(self, action: str) -> Step:
        raise GeneratorExit


class RaisesWithoutWords(Good):
    async def step(self, action: str) -> Step:
        raise WordlessError


class SaysNothingAsAMessage(Good):
    async def start(self, task: Task) -> Observation:
        content: Any = None
        return Message("user", content)


class HasNoRole(Good):
    async def start(self, task: Task) -> Observation:
        role: Any = None
        return Message(role, str(await super().start(task)))


class ShowsTheWordless(Good):
    async def start(self, task: Task) -> Observation:
        shown: Any = Wordless()
        return shown  # type: ignore[no-any-return]


class StepsWithoutWords(Good):
    async def step(self, action: str) -> Step:
        step: Any = Wordless()
        return step  # type: ignore[no-any-return]


class RewardsWithoutWords(Good):
    async def step(self, action: str) -> Step:
        reward: Any = Wordless()
        return Step(reward=reward, terminated=True)


class RewardsBeyondFloats(Good):
    async def step(self, action: str) -> Step:
        return Step(observation="rich", reward=10**400, terminated=True)


class NobodyKnowsWhetherItIsOver(Good):
    async def step(self, action: str) -> Step:
        over: Any = Wordless()
        return Step(observation="hm", terminated=over)


class IsOverInPart(Good):
    async def step(self, action: str) -> Step:
        over: Any = np.array([True, False])
        return Step(observation="hm", terminated=over)


class BothFlagsOfNumpy(Good):
    async def step(self, action: str) -> Step:
        step = await super().step(action)
        over: Any = np.bool_(step.terminated)
        return Step(observation=step.observation, reward=step.reward, terminated=over, truncated=over)


class Yields(Good):
    async def step(self, action: str) -> AsyncIterator[Step]:  # type: ignore[override]
        yield await super().step(action)


def examined(make: Any) -> Report:
    return examine(Subject(name=make.__name__, form="env", make=make, module=broken.__name__), SETTINGS)[0]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (Panics, "raises"),
        (LeavesAsAGeneratorDoes, "raises"),
        (RaisesWithoutWords, "raises"),
        (SaysNothingAsAMessage, "observation-type"),
        (HasNoRole, "observation-type"),
        (ShowsTheWordless, "observation-type"),
        (StepsWithoutWords, "not-a-step"),
        (RewardsWithoutWords, "reward-type"),
        (RewardsBeyondFloats, "reward-type"),
        (NobodyKnowsWhetherItIsOver, "flag-type"),
        (IsOverInPart, "flag-type"),
        (BothFlagsOfNumpy, "both-flags"),
        (Yields, "not-async"),
    ],
)
def test_what_breaks_when_it_is_looked_at_is_a_finding(make: Any, rule: str):
    report = examined(make)
    assert not report.ok
    assert {finding.rule for finding in report.findings} == {rule}, report.findings


def test_a_step_with_a_yield_in_it_is_not_called_an_ordinary_function():
    (found,) = examined(Yields).findings
    assert "yield" in f"{found.message} {found.way_out}"


def test_a_payload_that_brings_the_problem_is_no_lack_of_seeds():
    settings = CheckSettings(tasks=6, payload={"question": "1 + 1?", "answer": "2"})
    report, _ = examine(load("arithmetic", {}), settings)
    assert (report.ok, report.findings) == (True, ())


@pytest.mark.parametrize("bounds", [(float("nan"), 1.0), (0.0, float("inf")), (float("-inf"), 1.0)])
def test_a_range_of_rewards_has_two_ends(bounds: tuple[float, float]):
    with pytest.raises(ConfigError, match="reward"):
        CheckSettings(lowest=bounds[0], highest=bounds[1])


def test_where_it_was_is_read_from_a_dump_and_from_a_traceback():
    begin, inside = 'File "/home/me/env.py"', "step"
    dump = f"Current thread 0x00007f (most recent call first):\n  {begin}, line 12 in {inside}\n"
    trace = f"Traceback (most recent call last):\n  {begin}, line 12, in {inside}\n    x\nKeyError: 1\n"
    assert places.of_dump(dump) == places.of_dump(trace) == "/home/me/env.py:12"
    assert places.of_dump('  File "/home/me/env.py", line what\n') == ""


# in a process of its own

HEAD = """\
import asyncio, os, signal, subprocess, sys
from broken import Good
from windrow.envs.protocol import Step

class Odd(Good):
    async def step(self, action):
        {does}
        return await super().step(action)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(broken.__file__).parent), prepend=os.pathsep)
    return tmp_path


def checked(folder: Path, does: str) -> Report:
    (folder / "odd.py").write_text(HEAD.format(does=does), encoding="utf-8")
    return check(Job(target="odd.py:Odd", settings=SETTINGS))


@pytest.mark.parametrize(
    "does",
    [
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(0.1)",
        "[each.cancel() for each in asyncio.all_tasks()]; await asyncio.sleep(0.1)",
        "asyncio.get_running_loop().stop(); await asyncio.sleep(0.1)",
        "os.closerange(3, 64)",
    ],
)
def test_one_that_breaks_the_check_is_told_and_not_a_traceback_of_ours(folder: Path, does: str):
    report = checked(folder, does)
    assert not report.ok
    assert {finding.rule for finding in report.findings} & {"raises", "dies"}, report


def test_a_copy_of_the_process_does_not_go_on_checking(folder: Path):
    report = checked(folder, "os.fork()")
    assert not report.ok
    assert not any("event loop" in finding.message for finding in report.findings), report.findings


def test_no_process_is_left_by_one_that_starts_sessions_of_their_own(folder: Path):
    checked(
        folder,
        "open('pids', 'a').write(f'''{subprocess.Popen(['sleep', '60'], start_new_session=True).pid}\\n''')",
    )
    pids = [int(line) for line in Path("pids").read_text(encoding="utf-8").splitlines()]
    assert pids
    until = monotonic() + PATIENCE_S
    left = pids
    while left and monotonic() < until:
        left = [pid for pid in left if _lives(pid)]
        sleep(0.01)
    for pid in left:
        os.kill(pid, 9)
    assert not left


def _lives(pid: int) -> bool:
    """Whether it runs; one that has ended and was not fetched does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_file_of_a_package_is_told_to_be_named_as_a_module(folder: Path):
    package = folder / "pack"
    package.mkdir()
    for name, text in {"__init__": "", "words": "WORD = 1", "env": "from .words import WORD\n"}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pack\.env:Env"):
        load("pack/env.py:Env", {})
