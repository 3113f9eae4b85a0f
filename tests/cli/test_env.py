"""`windrow env`: what scripts rely on, what people read, and a game in the terminal."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.checking import broken
from tests.cli.given import Windrow

from windrow.envs.shipped import SHIPPED

BROKEN = str(Path(broken.__file__).resolve())
PATIENCE_S = 60.0

Type = Callable[[str], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """What a person will type."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


# list


def test_scripts_find_every_environment(windrow: Windrow):
    said = windrow("env", "list", "--json")
    assert said.code == 0
    assert said.result == {
        "environments": [{"name": each.name, "tag": each.tag, "kind": each.kind} for each in SHIPPED.values()]
    }


def test_people_read_what_each_is_about(windrow: Windrow):
    said = windrow("env", "list")
    assert all(name in said.out and each.about in said.out for name, each in SHIPPED.items())


# check


def test_scripts_find_the_verdict_and_the_scores(windrow: Windrow):
    said = windrow("env", "check", f"{BROKEN}:Good", "--tasks", "7", "--json")
    assert said.code == 0
    result = said.result
    assert set(result) >= {"name", "ok", "findings", "solve_score", "random_score", "tasks"}
    assert (result["name"], result["ok"], result["findings"]) == (f"{BROKEN}:Good", True, [])
    assert (result["solve_score"], result["tasks"]) == (1.0, 7)
    assert result["random_score"] < 1.0
    assert "verdict" in said.err, "people read the same"


def test_an_error_fails_the_command_and_says_how_to_get_rid_of_it(windrow: Windrow):
    said = windrow("env", "check", f"{BROKEN}:BothFlags", "--tasks", "3", "--json")
    assert said.code == 1
    (found,) = said.result["findings"]
    assert not said.result["ok"]
    assert (found["rule"], found["severity"], found["task"]) == ("both-flags", "error", 0)
    assert "error both-flags: step returned terminated=True and truncated=True together" in said.err
    assert f"    {found['way_out']}" in said.err


def test_a_warning_does_not_fail_the_command(windrow: Windrow):
    said = windrow("env", "check", f"{BROKEN}:HasNoSolve", "--tasks", "3")
    assert said.code == 0
    assert "warning solve-missing: " in said.out
    assert "0 errors, 1 warnings" in said.out


def test_what_the_environment_prints_stays_out_of_the_result(windrow: Windrow):
    said = windrow("env", "check", f"{BROKEN}:Prints", "--tasks", "3", "--json")
    assert [found["rule"] for found in said.result["findings"]] == ["prints"]


def test_a_hang_ends_the_check_and_is_told(windrow: Windrow):
    said = windrow("env", "check", f"{BROKEN}:Spins", "--timeout", "0.3", "--json")
    assert said.code == 1
    assert [found["rule"] for found in said.result["findings"]] == ["never-returns"]
    assert "stopped by a call that never returned" in said.err


def test_options_reach_the_check(windrow: Windrow):
    argv = ("--tasks", "3", "--seed", "40", "--reward-range", "0", "10", "--max-steps", "4", "--args", "limit=9")
    Path("own.py").write_text(OWN, encoding="utf-8")
    said = windrow("env", "check", "own.py:Env", *argv, "--payload", '{"times": 10}', "--json")
    assert said.code == 0, said.err
    assert said.result["solve_score"] == 10.0
    said = windrow("env", "check", "own.py:Env", "--tasks", "3", "--payload", '{"times": 10}', "--json")
    assert said.code == 1
    assert {found["rule"] for found in said.result["findings"]} >= {"reward-range"}


OWN = """
import random

import windrow as wr


class Env:
    def __init__(self, limit=1000):
        self.limit = limit

    async def start(self, task):
        self.times = task.payload["times"]
        self.number = random.Random(f"{task.split} {task.seed}").randint(0, self.limit)
        return f"{task.split}: say {self.number}"

    async def step(self, action):
        return wr.Step(reward=self.times * float(action == str(self.number)), terminated=True)

    async def close(self): ...

    def solve(self):
        return str(self.number)
"""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["chek"], "command line: env cannot chek; did you mean check?"),
        (["check"], "command line: name an environment to check, or see `windrow env list`"),
        (["check", "gues"], "unknown environment 'gues'; did you mean guess?"),
        (["check", "nope.py:Env"], "nope.py: no such file"),
        (["check", "guess", "--tasks", "0"], "command line: --tasks must be 1 or more, got 0"),
        (["check", "guess", "--max-steps", "-3"], "command line: --max-steps must be 1 or more, got -3"),
        (["check", "guess", "--timeout", "0"], "command line: --timeout must be a number of seconds above 0, got 0"),
        (
            ["check", "guess", "--timeout", "nan"],
            "command line: --timeout must be a number of seconds above 0, got nan",
        ),
        (["check", "guess", "--reward-range", "nan", "1"], "a range of rewards has two ends, got nan to 1"),
        (["check", "guess", "--reward-range", "0", "inf"], "a range of rewards has two ends, got 0 to inf"),
        (["check", "guess", "--reward-range", "1", "0"], "a range of rewards goes up, got 1 to 0"),
        (["check", "guess", "--payload", "{"], "command line: --payload { is not JSON: Input data was truncated"),
        (["check", "guess", "--args", "turns"], "command line: 'turns' sets nothing; write turns=VALUE"),
        (["check", "--args", "turns=3", "guess"], "guess was taken for an argument; write it before --args"),
        (["check", "guess", "--args", "tuns=3"], "unknown argument 'tuns' of environment 'guess'; did you mean turns?"),
        (["check", "guess", "--split", "train"], "command line: --split has no meaning for env check"),
        (["play", "guess", "--tasks", "3"], "command line: --tasks has no meaning for env play"),
        (["play", "guess", "--split", "test"], "command line: --split must be train or held_out, got 'test'"),
        (["list", "guess"], "command line: env list takes no name, got 'guess'"),
        (["list", "--seed", "3"], "command line: --seed has no meaning for env list"),
    ],
)
def test_what_cannot_be_done_is_one_line(argv: list[str], words: str, windrow: Windrow):
    said = windrow("env", *argv, "--json")
    assert said.code == 2
    assert words in said.line


# play


def test_a_person_plays_to_the_end(windrow: Windrow, typed: Type):
    typed("what?\n:help\n:solve\n")
    said = windrow("env", "play", "guess", "--seed", "3")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "guess, seed 3, train; :help lists the commands"
    assert lines[1] == "guess a number from 0 to 9"
    assert "say a number" in lines
    assert ":quit    leave" in lines
    assert lines[-2:] == ["[reward 1, terminated]", "score 1 after 2 turns"]


def test_programs_get_the_score_of_a_game(windrow: Windrow, typed: Type):
    typed(":random\n" * 20)
    said = windrow("env", "play", "guess", "--json")
    assert said.result["over"] is True
    assert set(said.result) == {"name", "seed", "score", "turns", "over"}


@pytest.mark.parametrize("typing", ["", "x\n", "x\n:quit\n"])
def test_leaving_early_is_no_failure(typing: str, windrow: Windrow, typed: Type):
    typed(typing)
    said = windrow("env", "play", "guess")
    assert said.code == 0
    assert "left before the end" in said.out
    assert said.out.splitlines()[-1].startswith("score 0 after ")


def test_several_lines_are_one_action(windrow: Windrow, typed: Type):
    Path("own.py").write_text(ECHO, encoding="utf-8")
    typed(":text\none\ntwo\n.\n")
    assert "system: heard 'one\\ntwo'" in windrow("env", "play", "own.py:Echo").out


def test_tools_that_are_offered_are_shown(windrow: Windrow, typed: Type):
    typed(":quit\n")
    shown = [line for line in windrow("env", "play", "guess_tools").out.splitlines() if line.startswith("tool: ")]
    assert shown
    assert all(json.loads(line.removeprefix("tool: "))["function"]["name"] for line in shown)


def test_an_environment_that_raises_is_one_line(windrow: Windrow, typed: Type):
    typed("abcdef\n")
    said = windrow("env", "play", f"{BROKEN}:RaisesInStep", "--json")
    assert said.code == 1
    assert said.err.splitlines()[-1].endswith("step: ZeroDivisionError: float division by zero")


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("sys.exit('bye')", "step: SystemExit: bye"),
        ("raise Panic('oh')", "step: Panic: oh"),
        ("[each.cancel() for each in asyncio.all_tasks()]; await asyncio.sleep(1)", "step: CancelledError: "),
        ("asyncio.get_running_loop().stop(); await asyncio.sleep(1)", "step: RuntimeError: Event loop stopped before"),
        ("return None", "step returned None; is a return missing?; `windrow env check` says more"),
        ("return wr.Step(reward=10**400)", "step returned reward=1000"),
        ("return wr.Step(observation=wr.Message('user', None))", "step shows Message(role='user', content=None"),
        ("return wr.Step(observation=Odd())", "step shows <Odd, whose repr raises RuntimeError>"),
        ("return wr.Step(terminated=Odd())", "step returned flags that are neither true nor false"),
    ],
)
def test_whatever_an_environment_does_in_a_game_is_one_line(does: str, words: str, windrow: Windrow, typed: Type):
    Path("odd.py").write_text(ODD.format(does=does), encoding="utf-8")
    sys.modules.pop("odd", None)  # of another folder
    typed("x\n")
    said = windrow("env", "play", "odd.py:Env")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert said.err.startswith("windrow: error: odd.py:Env")
    assert words in said.err


ODD = """
import asyncio
import sys

import windrow as wr


class Panic(BaseException): ...


class Odd:
    def __repr__(self):
        raise RuntimeError

    __bool__ = __repr__


class Env:
    async def start(self, task):
        return "say something"

    async def step(self, action):
        {does}

    async def close(self): ...
"""

ECHO = """
import windrow as wr


class Echo:
    async def start(self, task):
        return "say something"

    async def step(self, action):
        return wr.Step(observation=wr.Message("system", f"heard {action!r}"), terminated=True)

    async def close(self): ...
"""


# Ctrl-C


def interrupted(argv: list[str], at: str, folder: Path) -> tuple[int, str]:
    """Run the command on a terminal of its own, and interrupt it there as soon as these words appear."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windrow", *argv], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    seen, waiting, until = "", True, monotonic() + PATIENCE_S
    try:
        while text := read(ours, until):
            seen += text
            if waiting and at in seen:
                os.killpg(process.pid, signal.SIGINT)
                waiting = False
        return process.wait(PATIENCE_S), seen
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def read(terminal: int, until: float) -> str:
    ready, _, _ = select.select([terminal], [], [], max(0.0, until - monotonic()))
    assert ready, "it does not end"
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # nobody holds the other end any more: no process is left
        return ""


@pytest.mark.parametrize(
    ("argv", "at"),
    [
        (["env", "play", "guess"], "> "),
        (["env", "check", f"{BROKEN}:SleepsInStep", "--tasks", "100000"], "episodes"),
    ],
)
def test_an_interruption_ends_it_cleanly(argv: list[str], at: str, folder: Any):
    code, seen = interrupted(argv, at, folder)
    assert code == 130
    assert "interrupted" in seen
    assert "Traceback" not in seen
