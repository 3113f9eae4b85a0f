"""The score of a program: which share of its hidden tests it passes, found out in the sandbox.

The environment says in its last word which function is asked for and what it must return:

    {"entry": "add", "tests": [{"args": [1, 2], "expected": 3}, …]}

Promises: the expected values never enter the sandbox. The function is called there with the arguments of each test,
what it returns comes out as JSON, and it is compared here; whatever a program does to Python, to what calls it or to
what it prints, only right answers count. A program that fails in any way has failed; a sandbox that fails is a
`SandboxError` and never a score. Nothing that comes out is executed.

Values are compared as JSON knows them: a tuple is a list, a key is a string; numbers with a fraction are compared to
nine digits. A function that returns something else has failed that test.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from windrow.errors import ConfigError, RewardError
from windrow.rewards.protocol import Score
from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import Limits, Program, Ran, SandboxSettings
from windrow.trajectory import Trajectory
from windrow.types import Value

FENCE = re.compile(r"```[ \t]*(?:python|py|Python)3?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
DIGITS = 1e-9
LIMITS = Limits(cpu_s=5, wall_s=20.0, memory_mb=256, output_bytes=1 << 20)
SHOWN = 80
"""Characters of a value that a note shows."""

CALLER = """
import json, os, signal, sys

class Late(BaseException):
    pass

def ring(*_):
    raise Late

def say(**words):
    os.write(replies, json.dumps(words).encode() + b"\\n")

work = json.load(sys.stdin)
replies = os.dup(1)
os.dup2(2, 1)
signal.signal(signal.SIGPROF, ring)
space = {"__name__": "solution"}
exec(compile(work["source"], "solution.py", "exec", dont_inherit=True), space)
function = space[work["entry"]]
say(ready=True)
for args in work["calls"]:
    signal.setitimer(signal.ITIMER_PROF, work["test_s"])
    try:
        said = {"value": function(*json.loads(args))}
    except Late:
        said = {"failed": "it took too long"}
    except Exception as error:
        said = {"failed": f"{type(error).__name__}: {error}"[:200]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        say(**said)
    except (TypeError, ValueError, RecursionError) as error:
        say(failed=f"what it returned is no JSON: {error}"[:200])
"""
"""What calls the function. It runs beside the program and is trusted with nothing but to be of help."""


class Case(Value, frozen=True, gc=True):
    """One hidden test."""

    args: list[Any]  # any JSON
    expected: Any  # any JSON


class CodeTask(Value, frozen=True, gc=True):
    """What an environment says about the program it wants."""

    entry: str
    tests: list[Case]


class CodeReward:
    """Scores the last program of an answer by hidden tests; opens its sandbox when it is first needed."""

    def __init__(
        self,
        *,
        all_or_nothing: bool = True,
        limits: Limits = LIMITS,
        test_s: float = 2.0,
        settings: SandboxSettings = SandboxSettings(),  # noqa: B008 -- it never changes
    ) -> None:
        """`all_or_nothing`: 1 if every test passes and else 0, not the share; `test_s`: processor time of one call."""
        if test_s <= 0:
            raise ConfigError(f"code.test_s must be more than 0, got {test_s}")
        self._all_or_nothing = all_or_nothing
        self._limits = limits
        self._test_s = test_s
        self._settings = settings
        self._sandbox: Sandbox | None = None

    async def score(self, trajectory: Trajectory) -> Score:
        task = _task(trajectory)
        program = program_in(trajectory.answer)
        work = {
            "source": program,
            "entry": task.entry,
            "calls": [json.dumps(case.args) for case in task.tests],
            "test_s": self._test_s,
        }
        if self._sandbox is None:
            self._sandbox = Sandbox(self._settings)
        ran = await self._sandbox.run(Program(source=CALLER, stdin=json.dumps(work), limits=self._limits))
        return self._judged(task, ran)

    async def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()

    def _judged(self, task: CodeTask, ran: Ran) -> Score:
        ready, replies = _replies(ran.stdout)
        faults = [_fault(case, reply) for case, reply in zip(task.tests, replies, strict=False)]
        passed = faults.count("") / len(task.tests)
        parts = {"passed": passed, "compiles": float(ready)}
        value = float(passed == 1.0) if self._all_or_nothing else passed
        return Score(value, parts, _note(task, faults, ran, ready=ready))


def program_in(answer: str) -> str:
    """The last Python in a text: the last block that is marked as such, or all of it."""
    blocks: list[str] = FENCE.findall(answer)
    return blocks[-1] if blocks else answer


def same(expected: Any, got: Any) -> bool:  # noqa: ANN401 -- any JSON
    """Whether two values are the same, as JSON knows values."""
    match expected, got:
        case (list(), list()):
            return len(expected) == len(got) and all(map(same, expected, got))
        case (dict(), dict()):
            return expected.keys() == got.keys() and all(same(expected[key], got[key]) for key in expected)
        case (bool(), _) | (_, bool()):
            return expected is got
        case (int(), int()):
            return expected == got
        case (int() | float(), int() | float()):
            return _close(expected, got)
        case _:
            return type(expected) is type(got) and bool(expected == got)


def _close(one: float, other: float) -> bool:
    try:
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=DIGITS, abs_tol=DIGITS)
    except OverflowError:  # an integer beyond all fractions
        return False


def _task(trajectory: Trajectory) -> CodeTask:
    try:
        task = msgspec.convert({key: trajectory.info[key] for key in ("entry", "tests")}, CodeTask)
    except KeyError as error:
        raise RewardError(
            f"{trajectory.attempt} has no {error} in its info; an environment for programs says entry and tests there"
        ) from error
    except msgspec.ValidationError as error:
        raise RewardError(f"{trajectory.attempt} has tests in its info that are none: {error}") from error
    if not task.tests:
        raise RewardError(f"{trajectory.attempt} has no tests in its info, so nothing can be passed; give at least one")
    return task


def _replies(stdout: str) -> tuple[bool, list[dict[str, Any]]]:  # values are any JSON
    """Whether the program could be called at all, and its answers in the order of the tests."""
    found: list[dict[str, Any]] = []
    for line in stdout.split("\n"):
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(reply, dict):
            break
        found.append(reply)
    return bool(found), found[1:]


def _fault(case: Case, reply: dict[str, Any]) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if "value" not in reply:
        return str(reply.get("failed", "it gave no answer"))[:SHOWN]
    try:
        right = same(case.expected, reply["value"])
    except RecursionError:
        right = False
    return "" if right else f"expected {_short(case.expected)}, got {_short(reply['value'])}"


def _note(task: CodeTask, faults: Sequence[str], ran: Ran, *, ready: bool) -> str:
    for number, fault in enumerate(faults, start=1):
        if fault:
            return f"test {number} of {len(task.tests)}: {fault}"
    if len(faults) == len(task.tests):
        return f"all {len(task.tests)} tests passed"
    why = ran.stderr.strip().rpartition("\n")[2][:SHOWN] if ran.outcome in {"ok", "error"} else ran.outcome
    where = f"test {len(faults) + 1} of {len(task.tests)}" if ready else f"before {task.entry} could be called"
    return f"{where}: {why or 'it ended'}"


def _short(value: Any) -> str:  # noqa: ANN401 -- any JSON
    try:
        words = json.dumps(value)
    except (RecursionError, ValueError):
        words = "something very large"
    return words if len(words) <= SHOWN else f"{words[: SHOWN - 1]}…"
