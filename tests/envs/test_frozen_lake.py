"""FrozenLake: Gymnasium's ice, in words."""

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.playing import episode, observations_elsewhere, problems, scores, solved, task, told, wandered

from windrow.envs.frozen_lake import FEWEST_HOLES, FrozenLakeEnv, ice
from windrow.envs.protocol import Solvable, Wanderable
from windrow.envs.shipped import describe, find
from windrow.errors import ConfigError, EnvError
from windrow.trajectory import Split

SMALL = ("SFF", "HFH", "FFG")
TASKS = 1_000

START = """\
you are P on a frozen lake: go to G, . is ice, H is a hole you fall into; say up, down, left or right
P..
H.H
..G
you 0,0 goal 2,2
up edge, down hole, left edge, right ice"""


def test_the_map_is_shown_with_rules_and_words():
    assert told(FrozenLakeEnv(map=SMALL), task(), []).first == START


def test_a_step_shows_what_happened_and_where_one_is():
    (step,) = told(FrozenLakeEnv(map=SMALL), task(), ["I go <answer>right</answer>"]).steps
    assert step.observation == "you went right\n.P.\nH.H\n..G\nyou 0,1 goal 2,2\nup edge, down ice, left ice, right ice"
    assert (step.reward, step.terminated, step.truncated, step.info) == (0.0, False, False, {})


def test_the_edge_holds_one_back():
    (step,) = told(FrozenLakeEnv(map=SMALL, view="grid"), task(), ["up"]).steps
    assert step.observation == "you stay where you are\nP..\nH.H\n..G"


def test_the_goal_is_worth_one():
    *before, last = told(FrozenLakeEnv(map=SMALL), task(), ["right", "down", "down", "right"]).steps
    assert [step.reward for step in before] == [0.0] * 3
    assert (last.reward, last.terminated, last.truncated, last.observation) == (
        1.0,
        True,
        False,
        "you reached the goal",
    )
    assert last.info == {"problem": "SFF\nHFH\nFFG"}


def test_a_hole_ends_it_with_nothing():
    (step,) = told(FrozenLakeEnv(map=SMALL), task(), ["down"]).steps
    assert (step.reward, step.terminated, step.truncated, step.observation) == (
        0.0,
        True,
        False,
        "you fell into a hole",
    )


def test_what_is_no_direction_costs_a_step_and_moves_nothing():
    (step,) = told(FrozenLakeEnv(map=SMALL, view="words"), task(), ["hm"]).steps
    assert step.observation == (
        "say up, down, left or right\nyou 0,0 goal 2,2\nup edge, down hole, left edge, right ice"
    )


def test_without_steps_left_it_is_cut_off():
    played = told(FrozenLakeEnv(map=SMALL, max_steps=4), task(), ["hm", "up", "right", "left"])
    assert [step.truncated for step in played.steps] == [False, False, False, True]
    assert not any(step.terminated for step in played.steps)
    assert str(played.steps[-1].observation).endswith("no steps left")
    assert played.problem == "\n".join(SMALL)


def test_after_the_end_a_step_is_refused():
    with pytest.raises(EnvError, match="frozen_lake is over; make a new environment"):
        told(FrozenLakeEnv(map=SMALL), task(), ["down", "up"])


def test_a_second_start_is_refused():
    env = FrozenLakeEnv()
    solved(env, task())
    with pytest.raises(EnvError, match="frozen_lake was started twice"):
        asyncio.run(env.start(task()))


def test_the_rules_can_be_left_out():
    assert told(FrozenLakeEnv(map=SMALL, rules=False, view="grid"), task(), []).first == "P..\nH.H\n..G"


def test_the_brief_view_says_where_the_goal_lies_and_where_no_hole_is():
    played = told(FrozenLakeEnv(map=SMALL, rules=False, view="brief"), task(), ["right", "right", "hm"])
    assert played.texts == [
        "goal down right safe up left right",
        "goal down right safe up down left right",
        "goal down safe up left right",
        "goal down safe up left right",
    ]


def test_the_brief_view_has_the_same_ends():
    played = told(FrozenLakeEnv(map=SMALL, view="brief"), task(), ["right", "down", "down", "right"])
    assert played.steps[-1].observation == "you reached the goal"
    assert str(played.first).startswith("you are P on a frozen lake")


@pytest.mark.parametrize(("near", "far"), [(1, 1), (2, 2), (3, 5), (6, None)])
def test_goals_are_as_far_away_as_was_asked_for(near: int, far: int | None):
    steps = [len(solved(FrozenLakeEnv(min_distance=near, max_distance=far), task(seed)).actions) for seed in range(100)]
    assert near <= min(steps)
    assert max(steps) <= (far or 12)
    assert len(set(steps)) > 1 or near == far


def test_without_detours_every_step_of_a_shortest_way_leads_nearer():
    def apart(problem: str) -> int:
        rows = problem.split("\n")
        ends = [divmod("".join(rows).index(sign), len(rows)) for sign in "SG"]
        return abs(ends[0][0] - ends[1][0]) + abs(ends[0][1] - ends[1][1])

    def winding(*, detours: bool) -> int:
        episodes = (solved(FrozenLakeEnv(holes=0.5, detours=detours), task(seed)) for seed in range(200))
        return sum(len(each.actions) > apart(each.problem) for each in episodes)

    assert winding(detours=False) == 0
    assert winding(detours=True) > 0


def test_a_map_of_ones_own_is_taken_at_any_distance():
    assert solved(FrozenLakeEnv(map=["SG"], min_distance=3), task()).actions == ["right"]


def test_solve_arrives_on_a_thousand_held_out_tasks():
    assert set(scores(FrozenLakeEnv, TASKS, solve=True)) == {1.0}


def test_a_wanderer_seldom_arrives():
    got = scores(FrozenLakeEnv, TASKS, solve=False)
    assert set(got) == {0.0, 1.0}
    assert sum(got) / TASKS < 0.3


@given(
    size=st.integers(3, 12),
    holes=st.floats(0, 0.6),
    corners=st.booleans(),
    seed=st.integers(-(2**70), 2**70),
    split=st.sampled_from(["train", "held_out"]),
)
def test_every_map_can_be_crossed_from_wherever_one_went(
    size: int, holes: float, corners: bool, seed: int, split: Split
):
    env = FrozenLakeEnv(size=size, holes=max(holes, FEWEST_HOLES) if corners else holes, corners=corners)
    played = solved(env, task(seed, split))
    assert played.score == 1.0
    assert len(played.problem.split("\n")) == size
    assert len(played.steps) >= 2, "a goal beside the start is too easy"
    if corners:
        assert (played.problem[0], played.problem[-1]) == ("S", "G")


def test_every_goal_is_near_enough_for_the_step_limit():
    episodes = [solved(FrozenLakeEnv(size=8, max_steps=4), task(seed)) for seed in range(100)]
    assert {each.score for each in episodes} == {1.0}


def test_solve_finds_back_after_a_detour():
    detour = iter(["right", "right"])
    env = FrozenLakeEnv(map=SMALL)
    assert episode(env, task(), lambda it: next(detour, "") or it.solve()).actions == [
        "right", "right", "left", "down", "down", "right",
    ]  # fmt: skip


def test_train_and_held_out_share_no_map():
    train, held_out = problems(FrozenLakeEnv, "train", 2_000), problems(FrozenLakeEnv, "held_out", 2_000)
    assert not train & held_out
    assert min(len(train), len(held_out)) > 1_500


@pytest.mark.parametrize("slippery", [False, True])
def test_the_same_task_is_the_same_episode(slippery: bool):
    for seed in range(50):
        first, again = (wandered(FrozenLakeEnv(slippery=slippery), task(seed)) for _ in range(2))
        assert first == again


def test_the_same_task_is_the_same_episode_in_another_process():
    assert observations_elsewhere("frozen_lake", 7) == str(wandered(FrozenLakeEnv(), task(7)).texts)


def test_slippery_ice_slides_and_solve_mostly_arrives():
    played = [solved(FrozenLakeEnv(slippery=True), task(seed)) for seed in range(60)]
    texts = [str(text) for each in played for text in each.texts]
    assert any("you slid aside" in text for text in texts)
    assert "the ice is slippery" in texts[0]
    wanderers = [wandered(FrozenLakeEnv(slippery=True), task(seed)) for seed in range(60)]
    assert sum(each.score for each in played) > 0.75 * 60 > 0.5 * 60 > sum(each.score for each in wanderers)


def test_the_ice_is_gymnasiums_own():
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Theirs

    env = FrozenLakeEnv()
    told(env, task(), [])
    assert ice() is Theirs
    assert isinstance(env._ice, Theirs)


def test_it_goes_as_in_gymnasium():
    """The same actions on the same map, there and here."""
    for seed in range(30):
        played = wandered(FrozenLakeEnv(slippery=True), task(seed))
        theirs = ice()(desc=played.problem.split("\n"), is_slippery=True)
        theirs.reset(seed=seed)
        number = {"left": 0, "down": 1, "right": 2, "up": 3}
        results = [theirs.step(number[action]) for action in played.actions]
        assert [float(result[1]) for result in results] == [step.reward for step in played.steps]
        assert [result[2] for result in results] == [step.terminated for step in played.steps]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 2}, r"frozen_lake\.size must be an integer from 3 to 12, got 2"),
        ({"size": 13}, r"frozen_lake\.size must be"),
        ({"sice": 4}, r"unknown setting frozen_lake\.sice; did you mean size\?"),
        ({"holes": 0.9}, r"frozen_lake\.holes must be a number from 0 to 0\.6, got 0\.9"),
        ({"corners": True, "holes": 0.009}, r"frozen_lake\.holes must be at least 0\.01 between corners, got 0\.009"),
        ({"view": "picture"}, r"frozen_lake\.view must be one of both, grid, words, brief, got 'picture'"),
        ({"max_steps": 3}, r"frozen_lake\.max_steps must be"),
        ({"min_distance": 7}, r"frozen_lake\.min_distance must be at most 6 at size 4, got 7"),
        ({"max_distance": 1}, r"frozen_lake\.max_distance must be at least min_distance, which is 2, got 1"),
        ({"corners": True, "max_distance": 5}, r"max_distance must be at least 6, the way between corners, got 5"),
        ({"corners": True, "max_steps": 5}, r"max_steps must be at least 6, the way between corners, got 5"),
        ({"min_distance": 6, "max_steps": 4}, r"max_steps must be at least min_distance, which is 6, got 4"),
        ({"corners": True, "size": 8, "max_steps": 13}, r"frozen_lake\.max_steps must be at least 14, the way between"),
        ({"min_distance": 6, "max_steps": 5}, r"frozen_lake\.max_steps must be at least min_distance, which is 6"),
        ({"map": ["SF", "G"]}, "rows of equal length made of S, F, H and G"),
        ({"map": ["SX", "FG"]}, "rows of equal length made of S, F, H and G"),
        ({"map": ["SS", "FG"]}, "must have one S and one G"),
        ({"map": ["SF", "FF"]}, "must have one S and one G"),
        ({"map": ["SH", "HG"]}, r"must have a way from S to G in 12 steps \(max_steps\)"),
        ({"map": ["SFFFFG"], "max_steps": 4}, r"must have a way from S to G in 4 steps"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        FrozenLakeEnv(**settings)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(FrozenLakeEnv().start(task(payload=settings)))


def test_a_task_may_bring_its_own_settings():
    played = solved(FrozenLakeEnv(size=4), task(payload={"size": 6, "rules": False}))
    assert len(played.problem.split("\n")) == 6
    assert solved(FrozenLakeEnv(), task(payload={"map": ["SFG"]})).actions == ["right", "right"]


def test_it_is_shipped_and_goes_into_other_processes():
    shipped = describe("frozen_lake")
    assert (shipped.kind, shipped.tag) == ("multi-turn", "frozen_lake")
    make = pickle.loads(pickle.dumps(find("frozen_lake", size=5)))  # noqa: S301 -- our own
    assert solved(make(), task()).score == 1.0
    assert isinstance(make(), Solvable)
    assert isinstance(make(), Wanderable)
