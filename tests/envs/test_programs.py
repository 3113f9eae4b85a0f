"""Programs to be written."""

import asyncio
from random import Random
from typing import Any

import pytest
from tests.rewards.given import answered

from windrow.envs.programs import ENTRY, KINDS, ProgramEnv, _empty, _input, written
from windrow.envs.programs.steps import ENDS, STEPS, Chosen, Kind, Part, run_all
from windrow.errors import EnvError
from windrow.rewards.code import CodeReward
from windrow.trajectory import Task, Trajectory

PARTS = [
    pytest.param(kind, part, id=part.words) for kind in KINDS for part in [*STEPS[kind], *ENDS[kind]]
]  # fmt: skip


def function(answer: str) -> Any:
    """What an answer defines. The text is our own, so it may run here; what a policy writes never does."""
    code = answer.removeprefix("```python\n").removesuffix("```")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 -- as above
    return names["f"]


def share_passed(trajectory: Trajectory) -> float:
    f = function(trajectory.answer)
    tests = trajectory.info["tests"]
    assert trajectory.info["entry"] == "f"
    return sum(passes(f, test) for test in tests) / len(tests)


def passes(f: Any, test: dict[str, Any]) -> bool:
    try:
        return bool(f(*test["args"]) == test["expected"])
    except Exception:  # noqa: BLE001 -- a wrong program may raise anything
        return False


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_words_code_and_function_of_a_part_mean_the_same(kind: Kind, part: Part):
    rng = Random(3)
    for choice in part.choices:
        chosen = Chosen(part, choice)
        end = Chosen(ENDS[kind][0], "")
        f = function(written(kind, [chosen, end]))
        for value in [_empty(kind), *(_input(rng, kind) for _ in range(20))]:
            assert f(value) == run_all([chosen, end], value)
        assert choice in chosen.words()


def test_solving_a_thousand_held_out_tasks_passes_every_test():
    assert {share_passed(answered(ProgramEnv(), lambda env: env.solve(), seed)) for seed in range(1000)} == {1.0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_solving_passes_every_test_of_any_kind(kind: Kind, steps: int):
    played = [answered(ProgramEnv(kinds=[kind], steps=steps), lambda env: env.solve(), seed) for seed in range(50)]
    assert {share_passed(each) for each in played} == {1.0}
    assert all(ENTRY[kind] in each.turns[0].seen[0].content for each in played)


def test_functions_of_numbers_are_asked_for_only_on_demand():
    assert not any("f(x)" in answered(ProgramEnv(), lambda env: env.solve(), seed).answer for seed in range(60))


def test_a_random_program_seldom_passes_every_test():
    def wandered(seed: int) -> float:
        return share_passed(answered(ProgramEnv(), lambda env: env.wander(Random(seed)), seed))

    shares = [wandered(seed) for seed in range(300)]
    assert sum(share == 1.0 for share in shares) / 300 < 0.02
    assert sum(shares) / 300 < 0.4


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_constant_never_passes_every_test(steps: int):
    for seed in range(100):
        tests = answered(ProgramEnv(steps=steps), lambda env: env.solve(), seed).info["tests"]
        assert len({repr(test["expected"]) for test in tests}) > 1


def test_hidden_tests_are_not_shown():
    for seed in range(200):
        trajectory = answered(ProgramEnv(examples=2), lambda env: env.solve(), seed)
        shown = trajectory.turns[0].seen[0].content
        assert shown.count(" gives ") == 2
        assert not any(f"f({test['args'][0]!r})" in shown for test in trajectory.info["tests"])


def test_what_is_shown_is_true():
    for seed in range(100):
        trajectory = answered(ProgramEnv(examples=1), lambda env: env.solve(), seed)
        call, _, result = trajectory.turns[0].seen[0].content.rpartition("\n")[2].partition(" gives ")
        assert eval(call, {"f": function(trajectory.answer)}) == eval(result)  # noqa: S307 -- our own text


def test_there_are_as_many_steps_tests_and_examples_as_are_asked_for():
    trajectory = answered(ProgramEnv(kinds=["text"], steps=3, tests=5, examples=0), lambda env: env.solve())
    assert trajectory.answer.count("\n    s = ") == 3
    assert len(trajectory.info["tests"]) == 5
    assert " gives " not in trajectory.turns[0].seen[0].content
    assert ENTRY["text"] in trajectory.turns[0].seen[0].content


def test_wandering_with_the_seed_of_the_task_does_not_give_the_solution_away():
    def same(seed: int) -> bool:
        env = ProgramEnv(steps=1)
        asyncio.run(env.start(Task(ordinal=0, seed=seed)))
        return env.wander(Random(seed)) == env.solve()

    assert sum(same(seed) for seed in range(200)) < 20


GIVEN: dict[str, Any] = {"question": "Double it.", "entry": "double", "tests": [{"args": [2], "expected": 4}]}


def test_a_program_of_a_dataset_is_asked_for():
    env = ProgramEnv()
    assert asyncio.run(env.start(Task(ordinal=0, payload=GIVEN))) == "Double it."
    with pytest.raises(EnvError, match="no solution"):
        env.solve()
    step = asyncio.run(env.step("def double(x): return 2 * x"))
    assert step.info == {"entry": "double", "tests": GIVEN["tests"], "problem": "Double it."}


def test_its_solution_may_come_along():
    env = ProgramEnv()
    asyncio.run(env.start(Task(ordinal=0, payload=GIVEN | {"solution": "def double(x): return 2 * x"})))
    assert env.solve() == "def double(x): return 2 * x"


@pytest.mark.parametrize(
    "wrong",
    [{"tests": []}, {"tests": None}, {"tests": [1]}, {"tests": [{"args": 1, "expected": 2}]}, {"tests": [{"args": []}]},
     {"entry": ""}, {"solution": 3}],
)  # fmt: skip
def test_a_program_that_cannot_be_checked_is_the_tasks_fault(wrong: dict[str, Any]):
    with pytest.raises(EnvError, match="give"):
        asyncio.run(ProgramEnv().start(Task(ordinal=0, payload=GIVEN | wrong)))


def test_the_code_reward_agrees_in_its_sandbox():
    def wander(seed: int) -> Trajectory:
        return answered(ProgramEnv(), lambda env: env.wander(Random(seed)), seed)

    async def scores(trajectories: list[Trajectory]) -> list[float]:
        reward = CodeReward()
        try:
            return [(await reward.score(trajectory)).value for trajectory in trajectories]
        finally:
            await reward.close()

    solutions = [answered(ProgramEnv(), lambda env: env.solve(), seed) for seed in range(50)]
    guesses = [wander(seed) for seed in range(20)]
    assert asyncio.run(scores(solutions)) == [1.0] * 50
    assert asyncio.run(scores(guesses)) == [float(share_passed(guess) == 1.0) for guess in guesses]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_that_is_named_matters(kind: Kind):
    def results(program: str) -> list[Any]:
        f, rng = function(program), Random(kind)
        return [f(_input(rng, kind)) for _ in range(50)]

    for seed in range(60):
        program = answered(ProgramEnv(kinds=[kind], steps=2), lambda env: env.solve(), seed).answer
        first, second = program.split("\n")[2:4]
        for without in (f"{first}\n", f"{second}\n", f"{first}\n{second}\n"):
            assert results(program.replace(without, "", 1)) != results(program), program
