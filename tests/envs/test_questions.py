"""What every environment with one question and one answer promises."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import cloudpickle
import pytest
from tests.rewards.given import answered, said

from windrow.envs.arithmetic import ArithmeticEnv
from windrow.envs.drawing import split_of
from windrow.envs.instructions import InstructionEnv
from windrow.envs.programs import ProgramEnv
from windrow.envs.protocol import Solvable, Wanderable
from windrow.envs.questions import QuestionEnv
from windrow.envs.shipped import SHIPPED, find
from windrow.envs.word_problems import WordProblemEnv
from windrow.errors import ConfigError, EnvError
from windrow.rewards.instructions import InstructionReward
from windrow.rewards.math import MathReward
from windrow.rewards.protocol import Reward, Score
from windrow.trajectory import Split, Task, Trajectory
from windrow.types import from_json, to_json

Make = Callable[..., QuestionEnv[Any]]

MAKES: dict[str, Make] = {
    "arithmetic": ArithmeticEnv,
    "word_problems": WordProblemEnv,
    "programs": ProgramEnv,
    "instructions": InstructionEnv,
}
REWARDS: dict[str, Reward] = {
    "arithmetic": MathReward(),
    "word_problems": MathReward(),
    "instructions": InstructionReward(),
}

every = pytest.mark.parametrize("name", MAKES)
every_scored = pytest.mark.parametrize("name", REWARDS)


def started(name: str, seed: int = 0, split: Split = "train", payload: Any = None, **args: Any) -> tuple[Any, str]:
    env = MAKES[name](**args)
    shown = asyncio.run(env.start(Task(ordinal=0, seed=seed, split=split, payload=payload)))
    return env, str(shown)


def solved(env: Any) -> str:
    return str(env.solve())


def score(name: str, trajectory: Trajectory) -> float:
    scored = REWARDS[name].score(trajectory)
    assert isinstance(scored, Score)
    return scored.value


@every
def test_it_is_shipped_with_a_reward(name: str):
    assert find(name) is MAKES[name]
    assert SHIPPED[name].kind == "single-turn"
    tag, reward = {"programs": ("code", "code"), "instructions": ("general", "instructions")}.get(
        name, ("math", "math")
    )
    assert (SHIPPED[name].tag, SHIPPED[name].reward) == (tag, reward)


@every_scored
def test_solving_a_thousand_held_out_tasks_gets_full_marks(name: str):
    assert {score(name, answered(MAKES[name](), solved, seed)) for seed in range(1000)} == {1.0}


@pytest.mark.parametrize(("name", "most"), [("arithmetic", 0.05), ("word_problems", 0.1), ("instructions", 0.3)])
def test_a_random_policy_is_far_from_that(name: str, most: float):
    def wander(seed: int) -> Trajectory:
        return answered(MAKES[name](), lambda env: env.wander(Random(seed)), seed)

    assert sum(score(name, wander(seed)) for seed in range(500)) / 500 < most


@every
def test_no_problem_is_in_both_parts(name: str):
    def problems(split: Split) -> set[str]:
        return {str(answered(MAKES[name](), solved, seed, split).info["problem"]) for seed in range(600)}

    train, held_out = problems("train"), problems("held_out")
    assert train & held_out == set()
    assert {split_of(problem) for problem in train} == {"train"}
    assert len(train) > 300
    assert len(held_out) > 200


@every
def test_the_same_task_asks_the_same_question(name: str):
    for seed in range(20):
        assert started(name, seed)[1] == started(name, seed)[1]
    assert len({started(name, seed)[1] for seed in range(100)}) > 80


def test_the_same_task_asks_the_same_question_in_another_process():
    code = (
        "import asyncio\n"
        "from windrow.envs.shipped import find\n"
        "from windrow.trajectory import Task\n"
        f"for name in {[*MAKES]}:\n"
        "    env = find(name)()\n"
        "    print(repr(asyncio.run(env.start(Task(ordinal=0, seed=7)))), repr(env.solve()))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = [started(name, 7) for name in MAKES]
    assert said.splitlines() == [f"{shown!r} {env.solve()!r}" for env, shown in here]


@every
def test_what_it_leaves_for_the_reward_can_be_written_down(name: str):
    trajectory = answered(MAKES[name](), solved)
    assert from_json(to_json(trajectory.info), dict[str, Any]) == trajectory.info


@every
def test_it_can_prove_itself_and_be_sent_away(name: str):
    env, _ = started(name)
    assert isinstance(env, Solvable)
    assert isinstance(env, Wanderable)
    copy = pickle.loads(cloudpickle.dumps(env))  # noqa: S301 -- our own
    assert copy.solve() == env.solve()


@every
def test_a_prompt_is_short(name: str):
    longest = max(len(started(name, seed)[1]) for seed in range(200))
    assert longest < 300


@every
def test_it_is_used_once(name: str):
    env = MAKES[name]()
    with pytest.raises(EnvError, match="start it first"):
        env.solve()
    with pytest.raises(EnvError, match="start it first"):
        asyncio.run(env.step("x"))
    asyncio.run(env.start(Task(ordinal=0)))
    with pytest.raises(EnvError, match="make another one"):
        asyncio.run(env.start(Task(ordinal=1)))
    asyncio.run(env.step("x"))
    with pytest.raises(EnvError, match="is answered"):
        asyncio.run(env.step("x"))


@every
@pytest.mark.parametrize("payload", ["text", 3, ["question"], {3: 4}])
def test_a_payload_that_is_no_mapping_is_the_tasks_fault(name: str, payload: object):
    with pytest.raises(EnvError, match="give a mapping"):
        started(name, payload=payload)


@every
def test_an_unknown_setting_in_a_payload_suggests_the_nearest(name: str):
    setting = MAKES[name]().Settings.__struct_fields__[0]
    with pytest.raises(EnvError, match=rf"unknown setting '{setting}x'.*did you mean {setting}\?"):
        started(name, payload={f"{setting}x": 1})


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("arithmetic", {"operations": ["*"], "largest": 9}),
        ("word_problems", {"kinds": ["fence"]}),
        ("programs", {"kinds": ["text"], "steps": 1}),
        ("instructions", {"kinds": ["sort"], "most": 1}),
    ],
)
def test_a_payload_sets_the_settings_of_one_task(name: str, payload: dict[str, Any]):
    set_by_payload = [started(name, seed, payload=payload)[1] for seed in range(30)]
    assert set_by_payload == [started(name, seed, **payload)[1] for seed in range(30)]
    assert set_by_payload != [started(name, seed)[1] for seed in range(30)]


LEVELS: dict[str, list[dict[str, Any]]] = {
    "arithmetic": [{"smallest": 0, "largest": 9}, {"smallest": 100, "largest": 999}],
    "word_problems": [{"kinds": ["fence"]}, {"kinds": ["ages"]}],
    "programs": [{"kinds": ["text"], "steps": 1}, {"kinds": ["number"], "steps": 3}],
    "instructions": [{"kinds": ["sort"], "most": 1}, {"kinds": ["json"], "most": 1}],
}


@every
def test_with_levels_each_task_has_the_settings_of_one_of_them(name: str):
    short, long = LEVELS[name]

    def level_of(seed: int) -> int:
        shown = started(name, seed, levels=[{"weight": 3, **short}, long])[1]
        return [started(name, seed, **level)[1] for level in (short, long)].index(shown)

    drawn = [level_of(seed) for seed in range(200)]
    assert 25 < sum(drawn) < 75  # a quarter
    assert drawn == [level_of(seed) for seed in range(200)]


@every
def test_a_payload_goes_before_a_level(name: str):
    short, long = LEVELS[name]
    for seed in range(20):
        assert started(name, seed, payload=long, levels=[short])[1] == started(name, seed, **long)[1]


@every
def test_solving_gets_full_marks_on_every_level(name: str):
    if name in REWARDS:
        played = [answered(MAKES[name](levels=LEVELS[name]), solved, seed) for seed in range(100)]
        assert {score(name, each) for each in played} == {1.0}


@every
@pytest.mark.parametrize(
    ("level", "says"),
    [
        ({"weight": 0}, "weight of a level must be a number above 0, got 0"),
        ({"weight": -1}, "weight of a level"),
        ({"weight": True}, "weight of a level"),
        ({"weight": float("inf")}, "weight of a level"),
        ({"weight": "3"}, "weight of a level"),
        ({"stepz": 1}, "unknown setting 'stepz' in a level"),
    ],
)
def test_a_level_that_makes_no_sense_is_refused(name: str, level: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        MAKES[name](levels=[level])


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("arithmetic", {"largest": "x"}),
        ("arithmetic", {"operations": ["^"]}),
        ("word_problems", {"largest": 1}),
        ("programs", {"steps": 0}),
        ("instructions", {"fewest": 3, "most": 2}),
    ],
)
def test_nonsense_is_refused_in_a_payload_and_in_a_constructor(name: str, payload: dict[str, Any]):
    with pytest.raises(EnvError, match="the task's payload"):
        started(name, payload=payload)
    with pytest.raises(ConfigError):
        MAKES[name](**payload)


@pytest.mark.parametrize("name", ["arithmetic", "word_problems"])
@pytest.mark.parametrize("answer", ["72", 72, "He sells 48/2 = 24.\nTogether 72.\n#### 72"])
def test_a_question_of_a_dataset_is_played(name: str, answer: object):
    env, shown = started(name, payload={"question": "How many?", "answer": answer, "source": "elsewhere"})
    assert (shown, env.solve()) == ("How many?", "answer: 72")
    info = asyncio.run(env.step("72")).info
    assert info == {"answer": "72", "problem": "How many?"}
    assert score(name, said("So 72.", info)) == 1.0


@pytest.mark.parametrize(
    "payload",
    [
        {"question": ""},
        {"question": 3, "answer": "4"},
        {"question": "?"},
        {"question": "?", "answer": True},
        {"question": "?", "answer": "so #### "},
    ],
)
def test_a_question_without_an_answer_is_the_tasks_fault(payload: dict[str, Any]):
    with pytest.raises(EnvError, match="give text"):
        started("arithmetic", payload=payload)
