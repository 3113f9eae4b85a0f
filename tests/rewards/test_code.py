"""The reward for programs: right answers count, and nothing but right answers."""

import asyncio
import json
import math
from typing import Any

import cloudpickle
import numpy as np
import pytest

from windrow.errors import ConfigError, RewardError, SandboxError
from windrow.rewards.code import CodeReward, _replies, program_in, same
from windrow.rewards.protocol import Closable, Reward, Score
from windrow.sandbox.values import Limits
from windrow.trajectory import Chain, Task, Trajectory, Turn
from windrow.types import AttemptId

ADD = {"entry": "add", "tests": [{"args": [n, 2 * n + 1], "expected": 3 * n + 1} for n in range(4)]}


def trajectory(answer: str, info: dict[str, Any]) -> Trajectory:
    chain = Chain(token_ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), segments=())
    turn = Turn(chain=0, begin=0, end=0, reward=0.0, finish="stop", action=answer)
    return Trajectory(
        attempt=AttemptId(0, 0), seat=0, mode="train", task=Task(ordinal=0), chains=(chain,), turns=(turn,),
        score=0.0, ending="terminated", info=info,
    )  # fmt: skip


def scores(*answers: str, info: dict[str, Any] = ADD, **settings: Any) -> list[Score]:
    async def main() -> list[Score]:
        reward = CodeReward(**settings)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(reward.score(trajectory(answer, info))) for answer in answers]
        finally:
            await reward.close()
        return [task.result() for task in tasks]

    return asyncio.run(main())


def score(answer: str, info: dict[str, Any] = ADD, **settings: Any) -> Score:
    return scores(answer, info=info, **settings)[0]


def test_it_is_a_reward_that_can_be_closed_and_sent_elsewhere():
    reward = CodeReward()
    assert isinstance(reward, Reward)
    assert isinstance(reward, Closable)
    assert isinstance(cloudpickle.loads(cloudpickle.dumps(reward)), CodeReward)


def test_a_right_program_has_full_marks_and_a_wrong_one_none():
    right, wrong = scores("def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b")
    assert right == Score(1.0, {"passed": 1.0, "compiles": 1.0}, "all 4 tests passed")
    assert wrong == Score(0.0, {"passed": 0.0, "compiles": 1.0}, "test 1 of 4: expected 1, got -1")


def test_some_right_answers_are_worth_nothing_or_their_share():
    half = "def add(a, b):\n    return a + b if a < 2 else None"
    assert score(half).value == 0.0
    assert score(half, all_or_nothing=False) == Score(
        0.5, {"passed": 0.5, "compiles": 1.0}, "test 3 of 4: expected 7, got null"
    )


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("x = 1", "x = 1"),
        ("Look:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\nBetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nWhich prints\n```\n1\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("``` python3 \r\nx = 1\r\n```", "x = 1\r\n"),
        ("", ""),
    ],
)
def test_the_last_block_of_python_is_the_program(answer: str, program: str):
    assert program_in(answer) == program


@pytest.mark.parametrize(
    ("program", "compiles", "words"),
    [
        ("def add(a, b: return", 0.0, "before add could be called: SyntaxError: "),
        ("def sub(a, b): return a", 0.0, "before add could be called: KeyError: 'add'"),
        ("", 0.0, "before add could be called: KeyError: 'add'"),
        ("import socket; socket.socket()", 0.0, "before add could be called: PermissionError: "),
        ("while True: pass", 0.0, "before add could be called: cpu"),
        ("add = 5", 1.0, "test 1 of 4: TypeError: 'int' object is not callable"),
        ("def add(a, b): raise ValueError('no')", 1.0, "test 1 of 4: ValueError: no"),
        ("def add(a, b): return {1, 2}", 1.0, "test 1 of 4: what it returned is no JSON: "),
        ("def add(a, b): return 10 ** 5000", 1.0, "test 1 of 4: what it returned is no JSON: "),
        ("def add(a, b): return bytearray(1 << 40)", 1.0, "test 1 of 4: MemoryError"),
        ("import os\ndef add(a, b): os._exit(0)", 1.0, "test 1 of 4: it ended"),
        ("import os\ndef add(a, b): os.kill(os.getpid(), 11); os.abort()", 1.0, "test 1 of 4: crashed"),
        ("def add(a, b):\n while True: print('x' * 999)", 1.0, "test 1 of 4: PermissionError: "),
        ("def add(a, b): return add(a, b)", 1.0, "test 1 of 4: RecursionError: "),
    ],
)
def test_a_program_that_fails_has_failed(program: str, compiles: float, words: str):
    failed = score(program, limits=Limits(cpu_s=1, wall_s=30.0))
    assert (failed.value, failed.parts["passed"], failed.parts["compiles"]) == (0.0, 0.0, compiles)
    assert failed.note.startswith(words), failed.note


def test_a_test_that_hangs_takes_no_other_along():
    hangs = "def add(a, b):\n    while a == 2: pass\n    return a + b"
    assert score(hangs, all_or_nothing=False, test_s=0.2) == Score(
        0.75, {"passed": 0.75, "compiles": 1.0}, "test 3 of 4: it took too long"
    )


def test_a_test_that_cannot_be_interrupted_leaves_those_before_it():
    stuck = "import time\ndef add(a, b):\n    if a == 2: time.sleep(99)\n    return a + b"
    stopped = score(stuck, all_or_nothing=False, limits=Limits(wall_s=2.0))
    assert (stopped.value, stopped.note) == (0.5, "test 3 of 4: timeout")


def test_what_a_program_prints_is_no_answer():
    talks = "print('{\"ready\": true}')\ndef add(a, b):\n    print('{\"value\": 1}')\n    return 0"
    assert score(talks).note == "test 1 of 4: expected 1, got 0"


FORGERIES = {
    "leaves well": "import os; os._exit(0)",
    "finds the way out and says something": """
import os
for file in range(3, 64):
    try:
        os.write(file, b'{"ready": true}\\n' + b'{"value": true, "passed": true, "score": 1}\\n' * 4)
    except OSError:
        pass
os._exit(0)
""",
    "is equal to everything": """
class Same(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def add(a, b): return Same(99)
""",
    "writes its own JSON": """
import json
json.dumps = lambda *a, **k: '{"value": {"__eq__": 1}, "expected": 1, "failed": ""}'
def add(a, b): return 99
""",
    "says that nothing failed": """
import json
json.dumps = lambda *a, **k: '{"failed": ""}'
def add(a, b): pass
""",
    "says that something failed that cannot be printed": """
import json
json.dumps = lambda *a, **k: '{"failed": "\\\\u0000"}'
def add(a, b): pass
""",
    "says that nothing is what failed": """
import json
json.dumps = lambda *a, **k: '{"failed": null, "value2": 1}'
def add(a, b): pass
""",
    "says less than was asked": """
import __main__, os
os.write(__main__.replies, b'{"ready": true}\\n')
os._exit(0)
""",
    "says nonsense": """
import __main__, os
os.write(__main__.replies, b'[' * 100000)
os._exit(0)
""",
    "looks for what is expected": """
import __main__, gc, json
def add(a, b):
    text = json.dumps(__main__.work)
    found = [each for each in gc.get_objects() if isinstance(each, dict) and "expected" in each]
    return json.loads(text)["expected"] if "expected" in text else found[0]["expected"] if found else None
""",
    "changes what is still to come": """
import __main__
__main__.work["calls"].clear()
def add(a, b): return a + b
""",
}


@pytest.mark.parametrize("program", FORGERIES.values(), ids=[*FORGERIES])
def test_only_right_answers_count(program: str):
    forged = score(program, all_or_nothing=False)
    assert forged.value == 0.0, forged


def test_what_is_expected_is_json_too():
    info = {
        "entry": "f",
        "tests": [{"args": [], "expected": (1, 2)}, {"args": [], "expected": [1, 2]}],
    }
    assert score("def f(): return (1, 2)", info).value == 1.0
    info = {"entry": "f", "tests": [{"args": [], "expected": {1: (2,)}}]}
    assert score("def f(): return {1: (2,)}", info).value == 1.0


MODULES = """\ufefffrom __future__ import annotations
import pickle, typing
from dataclasses import dataclass

@dataclass
class Two:
    one: int
    other: int

def add(a, b):
    two = pickle.loads(pickle.dumps(Two(a, b)))
    assert typing.get_type_hints(Two) == {"one": int, "other": int}
    return two.one + two.other
"""


def test_a_program_is_a_module_as_a_file_would_be():
    assert score(MODULES) == Score(1.0, {"passed": 1.0, "compiles": 1.0}, "all 4 tests passed")


def test_no_more_lines_are_read_than_there_are_tests():
    lines = '{"ready": true}\n' + '{"value": 1}\n' * 5 + "{}\n" * 1000
    assert _replies(lines, 3) == (True, [{"value": 1}] * 3)


@pytest.mark.parametrize("words", ["\\ud800", "\\x1b[2J"])
def test_a_note_can_be_printed_and_sent_whatever_a_program_says(words: str):
    note = score(f"def add(a, b): raise ValueError('{words}')").note
    assert note.startswith("test 1 of 4: ValueError: \N{REPLACEMENT CHARACTER}")
    assert note.isprintable()


@pytest.mark.parametrize("mark", ["[", '{"a":', '"\\\\" [" ,['])
def test_an_answer_that_is_too_deep_is_not_even_read(mark: str, monkeypatch: pytest.MonkeyPatch):
    lines = '{"ready": true}\n{"value": 1}\n{"value": ' + mark * 100_000
    read: list[str] = []

    def loads(line: str) -> dict[str, int]:
        read.append(line)
        return {"value": 1}

    monkeypatch.setattr(json, "loads", loads)
    assert _replies(lines, 3) == (True, [{"value": 1}])
    assert len(read) == 2


def test_a_flat_answer_may_be_long_and_a_string_may_be_anything():
    words = ["[" * 1000, '"' + "{" * 1000, [[1]] * 1000, "\\"]
    lines = '{"ready": true}\n' + json.dumps({"value": words})
    assert _replies(lines, 1) == (True, [{"value": words}])


def test_each_call_has_arguments_of_its_own():
    info = {"entry": "last", "tests": [{"args": [[1, 2]], "expected": 2}, {"args": [[1, 2]], "expected": 2}]}
    assert score("def last(found): return found.pop()", info).value == 1.0


@pytest.mark.parametrize(
    ("expected", "got", "is_same"),
    [
        (1, 1, True), (1, 1.0, True), (1, True, False), (True, 1, False), (None, None, True), (None, 0, False),
        (0.1 + 0.2, 0.3, True), (0.3, 0.30001, False), (math.nan, math.nan, True), (math.inf, math.inf, True),
        (math.inf, -math.inf, False), (10**400, 1.5, False), (10**400, 10**400, True), ("a", "a", True),
        (10**15, 1e15, True), (10**15, 1e15 + 300_000.0, False), (3, 3.0000000001, False), (3.0, 3, True),
        (6.6e-34, 0, False), (1.6e-19, 1.6000000000001e-19, True), (0.0, 1.2e-16, True), (0.0, 1e-9, False),
        ("1", 1, False), ([1, [2]], [1, [2.0]], True), ([1], [1, 2], False), ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False), ([], {}, False), ("", [], False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json_knows_them(expected: object, got: object, is_same: bool):
    assert same(expected, got) is is_same


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({}, "g0.a0 has no 'entry' in its info"),
        ({"entry": "f"}, "g0.a0 has no 'tests' in its info"),
        ({"entry": "f", "tests": []}, "g0.a0 has no tests in its info"),
        ({"entry": "f", "tests": [{"args": 1}]}, "g0.a0 has tests in its info that are none: "),
        (
            {"entry": "f", "tests": [{"args": [], "expected": 1}, {"args": [], "expected": {1, 2}}]},
            "g0.a0 has a test in its info, number 2, that is no JSON: Object of type set",
        ),
        (
            {"entry": "f", "tests": [{"args": [b"x"], "expected": 1}]},
            "g0.a0 has a test in its info, number 1, that is no JSON: Object of type bytes",
        ),
    ],
)
def test_an_environment_without_tests_is_no_fault_of_the_program(info: dict[str, Any], words: str):
    async def main() -> None:
        await CodeReward().score(trajectory("def f(): pass", info))

    with pytest.raises(RewardError) as refused:
        asyncio.run(main())
    assert str(refused.value).startswith(words)


def test_a_broken_sandbox_is_never_a_score(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windrow.sandbox.gate.BOOT", "raise SystemExit('nothing works today')")

    async def main() -> None:
        reward = CodeReward()
        try:
            await reward.score(trajectory("def add(a, b): return a + b", ADD))
        finally:
            await reward.close()

    with pytest.raises(SandboxError, match="nothing works today"):
        asyncio.run(main())


def test_a_call_takes_some_time():
    with pytest.raises(ConfigError, match=r"code\.test_s must be more than 0, got 0"):
        CodeReward(test_s=0)
