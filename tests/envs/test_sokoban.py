"""Sokoban: rooms, plans, and the game."""

import asyncio
import pickle
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.playing import episode, observations_elsewhere, problems, scores, solved, task, told, wandered

from windrow.envs.games import DIRECTIONS, Direction
from windrow.envs.protocol import Solvable, Wanderable
from windrow.envs.shipped import describe, find
from windrow.envs.sokoban import SokobanEnv
from windrow.envs.sokoban.making import made
from windrow.envs.sokoban.planning import at_least, distances, plan
from windrow.envs.sokoban.room import Position, Room, Scene, bits, drawn, moved, reach, read, walk
from windrow.errors import ConfigError, EnvError

TASKS = 1_000
LINE = ("######", "#@$ .#", "######")
HALL = ("#######", "#_____#", "#_$$__#", "#_@..*#", "#_____#", "#######")

START = """\
push every box onto a target, you cannot pull: # wall, _ floor, $ box, . target, * box on a target, @ you, \
+ you on a target; say up, down, left or right
######
#@$_.#
######
you 1,1 box 1,2 target 1,4
up wall, down wall, left wall, right box"""


def test_the_room_is_shown_with_rules_and_words():
    assert told(SokobanEnv(map=LINE), task(), []).first == START


def test_a_push_moves_the_box_and_the_player():
    (step,) = told(SokobanEnv(map=LINE), task(), ["I push right!"]).steps
    assert step.observation == (
        "you pushed a box right\n######\n#_@$.#\n######\nyou 1,2 box 1,3 target 1,4\n"
        "up wall, down wall, left floor, right box"
    )
    assert (step.reward, step.terminated, step.truncated, step.info) == (0.0, False, False, {})


def test_the_last_box_on_its_target_is_worth_one():
    *_, last = told(SokobanEnv(map=LINE), task(), ["right", "right"]).steps
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert last.observation == "every box is on a target"
    assert last.info == {"problem": "######\n#@$_.#\n######"}


def test_the_brief_view_says_where_the_box_lies_where_it_is_to_go_and_where_walls_are():
    played = told(SokobanEnv(map=LINE, rules=False, view="brief"), task(), ["right", "hm", "right"])
    assert played.texts == [
        "box right target right right wall up down left",
        "box right target right wall up down",
        "box right target right wall up down",
        "every box is on a target",
    ]


def test_the_brief_view_is_for_one_box():
    with pytest.raises(ConfigError, match=r"sokoban\.view brief tells of one box, got 2 boxes; use words"):
        SokobanEnv(boxes=2, view="brief")


@pytest.mark.parametrize("longest", [1, 4, 9])
def test_plans_are_as_short_as_was_asked_for(longest: int):
    steps = [len(solved(SokobanEnv(max_plan=longest), task(seed)).actions) for seed in range(50)]
    assert max(steps) <= longest
    assert len(set(steps)) > 1 or longest == 1


@pytest.mark.parametrize(
    ("before", "way", "after"),
    [
        ("#@_#", "right", "#_@#"),
        ("#@_#", "left", "#@_#"),
        ("#@$_#", "right", "#_@$#"),
        ("#@$.#", "right", "#_@*#"),
        ("#@*_#", "right", "#_+$#"),
        ("#@$#", "right", "#@$#"),
        ("#@$$_#", "right", "#@$$_#"),
        ("#@$*_#", "right", "#@$*_#"),
        ("#+_$#", "right", "#.@$#"),
        ("#_@$#", "left", "#@_$#"),
    ],
)
def test_what_a_step_does(before: str, way: Direction, after: str):
    scene = scene_of(before)
    now = moved(scene.room, scene.position, way)
    assert drawn(scene.room, now).split("\n")[1] == after


def scene_of(row: str) -> Scene:
    """One row as a room, with as many targets and boxes as it happens to have."""
    signs = dict(enumerate(row, start=len(row)))
    player = next(place for place, sign in signs.items() if sign in "@+")
    floor, targets, boxes = (
        sum(1 << place for place, sign in signs.items() if sign in of) for of in ("_@$.+*", ".+*", "$*")
    )
    return Scene(Room(width=len(row), floor=floor, targets=targets), Position(player, boxes))


def test_a_room_is_drawn_as_it_was_read():
    scene = read(HALL)
    assert drawn(scene.room, scene.position) == "\n".join(HALL)
    ragged = read(("  ####", "###  #", "#@$ .#", "######"))
    assert drawn(ragged.room, ragged.position) == "######\n###__#\n#@$_.#\n######"


def test_what_is_no_direction_costs_a_step_and_moves_nothing():
    (step,) = told(SokobanEnv(map=LINE, view="grid"), task(), ["hm"]).steps
    assert step.observation == "say up, down, left or right\n######\n#@$_.#\n######"


def test_a_blocked_step_is_said():
    (step,) = told(SokobanEnv(map=LINE, view="words"), task(), ["up"]).steps
    assert str(step.observation).startswith("you cannot go there\nyou 1,1 box 1,2 target 1,4\n")


def test_without_steps_left_it_is_cut_off():
    played = told(SokobanEnv(map=LINE, max_steps=8), task(), ["left"] * 8)
    assert [step.truncated for step in played.steps] == [False] * 7 + [True]
    assert (played.score, str(played.steps[-1].observation)[-13:]) == (0.0, "no steps left")
    assert played.problem == "######\n#@$_.#\n######"


def test_after_the_end_a_step_is_refused():
    with pytest.raises(EnvError, match="sokoban is over; make a new environment"):
        told(SokobanEnv(map=LINE), task(), ["right", "right", "left"])


def test_solve_scores_one_on_a_thousand_held_out_tasks():
    assert set(scores(SokobanEnv, TASKS, solve=True)) == {1.0}


def test_a_wanderer_seldom_wins():
    got = scores(SokobanEnv, TASKS, solve=False)
    assert set(got) == {0.0, 1.0}
    assert sum(got) / TASKS < 0.3


SIZES = [(5, 1), (5, 2), (6, 2), (7, 1), (7, 3), (8, 2), (8, 3), (9, 3), (10, 1), (10, 3), (10, 4)]


@pytest.mark.parametrize(("size", "boxes"), SIZES)
def test_rooms_of_every_size_can_be_solved_in_time(size: int, boxes: int):
    for seed in range(15):
        played = solved(SokobanEnv(size=size, boxes=boxes), task(seed))
        assert (played.score, len(played.problem.split("\n"))) == (1.0, size)
        assert (played.problem.count("$"), played.problem.count("*")) == (boxes, 0)
        assert len(played.steps) <= 4 * size * boxes


def test_every_room_is_easy_enough_for_the_step_limit():
    episodes = [solved(SokobanEnv(size=8, max_steps=8), task(seed)) for seed in range(100)]
    assert {each.score for each in episodes} == {1.0}


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), detour=st.lists(st.sampled_from(DIRECTIONS), max_size=4))
def test_solve_finds_back_after_a_detour_or_says_something_legal(seed: int, detour: list[str]):
    env, ways = SokobanEnv(max_steps=60), iter(detour)
    hopeless = list[bool]()

    def policy(game: Any) -> str:
        hopeless.append(plan(env._room, env._position) is None)
        return next(ways, "") or str(game.solve())

    played = episode(env, task(seed), policy)
    assert set(played.actions) <= set(DIRECTIONS)
    assert played.score == float(not any(hopeless))


def test_a_lost_box_leaves_something_to_say():
    scene = read(("#####", "#$_.#", "#_@_#", "#####"))
    assert at_least(scene.position, distances(scene.room)) is None
    assert plan(scene.room, scene.position) is None
    env, into_the_corner = SokobanEnv(map=("#####", "#___#", "#_$@#", "#_._#", "#___#", "#####")), iter(["left"])
    played = episode(env, task(), lambda it: next(into_the_corner, "") or it.solve())
    assert (played.score, played.steps[-1].truncated) == (0.0, True)
    assert set(played.actions) <= set(DIRECTIONS)


def test_a_walled_in_player_can_still_say_something():
    env = SokobanEnv(map=LINE)
    told(env, task(), [])
    env._room, env._position = Room(width=3, floor=1 << 4, targets=0), Position(4, 0)
    assert env.solve() in DIRECTIONS
    assert env.wander(Random(1)) in DIRECTIONS


@pytest.mark.parametrize(
    ("picture", "steps"),
    [
        (LINE, ["right", "right"]),
        (("#####", "#@__#", "#_$_#", "#_._#", "#####"), ["right", "down"]),
        (("#####", "#_._#", "#_$_#", "#@__#", "#####"), ["right", "up"]),
        (("######", "#.$_@#", "######"), ["left", "left"]),
    ],
)
def test_plans_worked_by_hand(picture: tuple[str, ...], steps: list[str]):
    scene = read(picture)
    assert plan(scene.room, scene.position) == steps


@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (6, 2), (7, 2)])
def test_a_plan_has_the_fewest_pushes(size: int, boxes: int):
    """Against a search that knows nothing but the rules."""
    for seed in range(30):
        scene = made(size, boxes, 0.15, 60, Random(seed))
        assert pushes_of(scene, plan(scene.room, scene.position)) == fewest_pushes(scene)


def pushes_of(scene: Scene, moves: list[Direction] | None) -> int:
    assert moves is not None
    position, pushes = scene.position, 0
    for way in moves:
        before, position = position, moved(scene.room, position, way)
        assert position != before, "a plan has no step in vain"
        pushes += before.boxes != position.boxes
    assert position.is_solved(scene.room)
    return pushes


def fewest_pushes(scene: Scene) -> int:
    """Breadth first, a push at a time, over single steps."""
    seen, ring, pushes = set[Position](), {scene.position}, 0
    while True:
        ahead, pushed = [*ring - seen], set[Position]()
        seen |= ring
        for position in ahead:  # it grows while it is read
            for way in DIRECTIONS:
                now = moved(scene.room, position, way)
                if now.boxes != position.boxes:
                    pushed.add(now)
                elif now not in seen:
                    seen.add(now)
                    ahead.append(now)
        pushes += 1
        if any(position.is_solved(scene.room) for position in pushed):
            return pushes
        ring = pushed


@given(seed=st.integers(0, 100_000))
def test_a_walk_is_a_way_without_a_push(seed: int):
    scene = made(8, 2, 0.2, 64, Random(seed))
    room, start = scene.room, scene.position
    for place in bits(reach(room, start)):
        position = start
        for way in walk(room, start, place):
            position = moved(room, position, way)
        assert position == Position(place, start.boxes)


def test_a_room_that_is_too_full_says_so():
    with pytest.raises(EnvError, match=r"no room of size 5 for 1 boxes in 2000 tries; take fewer boxes or walls"):
        made(5, 1, 0.99, 20, Random(0))


def test_train_and_held_out_share_no_room():
    train, held_out = problems(SokobanEnv, "train", 2_000), problems(SokobanEnv, "held_out", 2_000)
    assert not train & held_out
    assert min(len(train), len(held_out)) > 1_500


def test_the_same_task_is_the_same_episode():
    for seed in range(50):
        first, again = (wandered(SokobanEnv(boxes=2), task(seed)) for _ in range(2))
        assert first == again


def test_the_same_task_is_the_same_episode_in_another_process():
    assert observations_elsewhere("sokoban", 7) == str(wandered(SokobanEnv(), task(7)).texts)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 4}, r"sokoban\.size must be an integer from 5 to 10, got 4"),
        ({"boxs": 2}, r"unknown setting sokoban\.boxs; did you mean boxes\?"),
        ({"boxes": 0}, r"sokoban\.boxes must be an integer from 1 to 4, got 0"),
        ({"size": 5, "boxes": 3}, r"sokoban\.boxes must be at most 2 at size 5, got 3"),
        ({"walls": 0.5}, r"sokoban\.walls must be a number from 0 to 0\.3, got 0\.5"),
        ({"max_steps": 2}, r"sokoban\.max_steps must be"),
        ({"map": ["#####", "#@X.#", "#####"]}, "must have one player and be made of # wall"),
        ({"map": ["#####", "#_$.#", "#####"]}, "must have one player"),
        ({"map": ["#####", "#@$._", "#####"]}, "must have a wall all around"),
        ({"map": ["#####", "#@_.#", "#####"]}, "must have as many boxes as targets, all within reach"),
        ({"map": ["#######", "#@_#$.#", "#######"]}, "must have as many boxes as targets, all within reach"),
        ({"map": ["#####", "#@.$#", "#####"]}, r"must be solvable in 1 to 24 steps \(max_steps\)"),
        ({"map": ["#####", "#@_*#", "#####"]}, "must be solvable in 1 to 24 steps"),
        ({"map": ["#" * 9, "#@$$$$$_#", "#_....._#", "#" * 9]}, "must have at most 4 boxes"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        SokobanEnv(**given)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(SokobanEnv().start(task(payload=given)))


def test_a_task_may_bring_its_own_settings():
    played = solved(SokobanEnv(), task(payload={"size": 7, "boxes": 2}))
    assert (len(played.problem.split("\n")), played.problem.count("$")) == (7, 2)
    assert solved(SokobanEnv(), task(payload={"map": [*LINE]})).actions == ["right", "right"]


def test_it_is_shipped_and_goes_into_other_processes():
    shipped = describe("sokoban")
    assert (shipped.kind, shipped.tag) == ("multi-turn", "sokoban")
    make = pickle.loads(pickle.dumps(find("sokoban", size=5)))  # noqa: S301 -- our own
    assert solved(make(), task()).score == 1.0
    assert isinstance(make(), Solvable)
    assert isinstance(make(), Wanderable)
