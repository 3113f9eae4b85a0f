"""The score of a program: which share of its hidden tests it passes, found out in the sandbox.

The environment says in its last word which function is asked for and what it must return:

    {"entry": "add", "tests": [{"args": [1, 2], "expected": 3}, …]}

Promises: the expected values never enter the sandbox. The function is called there with the arguments of each test,
what it returns comes out as JSON, and it is compared here; whatever a program does to Python, to what calls it or to
what it prints, only right answers count. A program that fails in any way has failed; a sandbox that fails is a
`SandboxError` and never a score. Nothing that comes out is executed.

Values are compared as JSON knows them: a tuple is a list, a key is a string. Where a whole number is expected it must
be that number (3.0 is 3); where one with a fraction is expected nine digits count, and next to 0.0 twelve places. A
function that returns something else has failed that test.

A call that computes for longer than `test_s` fails that test alone, if it computes in Python: what loops inside one
call of C (`sum(range(10**12))`) cannot be interrupted, uses up the processor time of the program, and takes the tests
after it along.
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
NEXT_TO_NOTHING = 1e-12
"""How far from 0.0 a number may be that should be 0.0; digits mean nothing there."""
LIMITS = Limits(cpu_s=5, wall_s=20.0, memory_mb=256, output_bytes=1 << 20)
DEEPEST = 500
"""Lists in lists in lists; more is no answer."""
STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+"?')
BRACKETS = re.compile(r"[\[\]{}]")
SHOWN = 80
"""Characters of a value that a note shows."""

CALLER = """
import json, os, signal, sys, types

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
space = sys.modules["solution"] = types.ModuleType("solution")
exec(compile(work["source"], "solution.py", "exec", dont_inherit=True), vars(space))
function = vars(space)[work["entry"]]
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
            "source": program.removeprefix("\ufeff"),  # as Python does with a file
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
        ready, replies = _replies(ran.stdout, len(task.tests))
        faults = [_fault(case, reply) for case, reply in zip(task.tests, replies, strict=False)]
        passed = faults.count(None) / len(task.tests)
        parts = {"passed": passed, "compiles": float(ready)}
        value = float(passed == 1.0) if self._all_or_nothing else passed
        return Score(value, parts, _printable(_note(task, faults, ran, ready=ready)))


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
        case (int(), int() | float()):
            return bool(expected == got)
        case (float(), int() | float()):
            return _close(expected, got)
        case _:
            return type(expected) is type(got) and bool(expected == got)


def _close(expected: float, got: float) -> bool:
    try:
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        return math.isclose(expected, got, rel_tol=DIGITS, abs_tol=0.0 if expected else NEXT_TO_NOTHING)
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
    return CodeTask(task.entry, [_as_json(trajectory, *numbered) for numbered in enumerate(task.tests, start=1)])


def _as_json(trajectory: Trajectory, number: int, case: Case) -> Case:
    """A test as it looks when it comes out of the sandbox."""
    try:
        return Case(json.loads(json.dumps(case.args)), json.loads(json.dumps(case.expected)))
    except (TypeError, ValueError, RecursionError) as error:
        raise RewardError(
            f"{trajectory.attempt} has a test in its info, number {number}, that is no JSON: {error}; "
            "give numbers, strings, lists and dictionaries"
        ) from error


def _replies(stdout: str, tests: int) -> tuple[bool, list[dict[str, Any]]]:  # values are any JSON
    """Whether the program could be called at all, and its answers in the order of the tests; no line more is read."""
    found: list[dict[str, Any]] = []
    most = tests + 1
    for line in stdout.split("\n", most)[:most]:
        if _is_deep(line):
            break
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(reply, dict):
            break
        found.append(reply)
    return bool(found), found[1:]


def _is_deep(line: str) -> bool:
    """Whether reading this would take more of the stack than we have: how much that is does not depend on us alone."""
    if line.count("[") + line.count("{") <= DEEPEST:
        return False
    depth = 0
    for bracket in BRACKETS.findall(STRINGS.sub("", line)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            return True
    return False


def _fault(case: Case, reply: dict[str, Any]) -> str | None:
    """What is wrong with an answer; None if it is right, which no word of the program's can bring about."""
    if "value" not in reply:
        return str(reply.get("failed", ""))[:SHOWN] or "it gave no answer"
    try:
        right = same(case.expected, reply["value"])
    except RecursionError:
        right = False
    return None if right else f"expected {_short(case.expected)}, got {_short(reply['value'])}"


def _note(task: CodeTask, faults: Sequence[str | None], ran: Ran, *, ready: bool) -> str:
    for number, fault in enumerate(faults, start=1):
        if fault is not None:
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


def _printable(words: str) -> str:
    """Words of a program, for whoever prints or sends them."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
