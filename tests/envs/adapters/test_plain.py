"""Ordinary classes as environments."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.envs.adapters.playing import error_of, play

from windrow.envs.plain import plain
from windrow.envs.protocol import Briefing, Rewritten, Solvable, Step, Wanderable
from windrow.errors import ConfigError
from windrow.text import Message
from windrow.trajectory import Task


class Count:
    """As simple as it gets."""

    def __init__(self, up_to: int = 2):
        self.left = up_to

    def reset(self):
        return f"{self.left} to go"

    def step(self, action: str):
        self.left -= 1
        return f"{self.left} to go", 1.0 if action == "on" else 0.0, self.left == 0


def test_a_class_is_adapted_in_one_line():
    played = asyncio.run(play(plain(Count, up_to=3), ["on", "off", "on", "never said"]))
    assert played.first == "3 to go"
    assert [(step.observation, step.reward, step.terminated) for step in played.steps] == [
        ("2 to go", 1.0, False),
        ("1 to go", 0.0, False),
        ("0 to go", 1.0, True),
    ]


def test_each_episode_has_an_object_of_its_own():
    make = plain(Count)
    assert [asyncio.run(play(make, ["on"])).first for _ in range(2)] == ["2 to go"] * 2


def test_a_factory_that_is_no_class_will_do():
    assert asyncio.run(play(plain(lambda: Count(5)), [])).first == "5 to go"


def test_a_class_may_be_asynchronous_altogether():
    class Slow(Count):
        closed = False

        async def reset(self):
            await asyncio.sleep(0)
            return "go"

        async def step(self, action: str):
            await asyncio.sleep(0)
            return "went", 1, True

        async def close(self):
            await asyncio.sleep(0)
            Slow.closed = True

    assert asyncio.run(play(plain(Slow), ["on"])).score == 1
    assert Slow.closed


def resetting(reset: Callable[..., Any]) -> Any:
    return type("Told", (Count,), {"reset": reset})


RESETS = {
    "nothing": (lambda self: "-", "-"),
    "the seed": (lambda self, seed: f"{seed}", "7"),
    "the seed by keyword": (lambda self, *, seed=None, options=None: f"{seed} {options}", "7 None"),
    "the task": (lambda self, task: f"{task.ordinal}", "5"),
    "the payload and the split": (lambda self, payload, split: f"{payload} {split}", "p held_out"),
    "whatever there is": (lambda self, **kwargs: f"{kwargs}", "{'seed': 7}"),
    "the task and whatever": (lambda self, task, **kwargs: f"{task.ordinal} {kwargs}", "5 {'seed': 7}"),
    "no positional ones": (lambda self, *args: f"{args}", "()"),
}


@pytest.mark.parametrize(("reset", "expected"), RESETS.values(), ids=RESETS)
def test_reset_is_told_what_its_parameters_ask_for(reset: Callable[..., Any], expected: str):
    task = Task(ordinal=5, seed=7, payload="p", split="held_out")
    assert asyncio.run(play(plain(resetting(reset)), [], task)).first == expected


def test_a_reset_that_wants_something_unknown_is_refused():
    def reset(self: object, level: int):
        return "-"

    said = asyncio.run(error_of(play(plain(resetting(reset)), [])))
    assert said == "ConfigError: Told.reset wants 'level'; it can be told task, seed, payload, split"


MESSAGE = Message("user", "hello")
OBSERVATIONS: dict[str, tuple[object, object]] = {
    "text": ("hello", "hello"),
    "text and info": (("hello", {"a": 1}), "hello"),
    "a message": (MESSAGE, MESSAGE),
    "a list of messages": ([MESSAGE, MESSAGE], (MESSAGE, MESSAGE)),
    "a tuple of messages": ((MESSAGE, MESSAGE), (MESSAGE, MESSAGE)),
    "messages and info": (([MESSAGE], {}), (MESSAGE,)),
    "another history": (Rewritten((MESSAGE,)), Rewritten((MESSAGE,))),
    "a briefing": (Briefing((MESSAGE,)), Briefing((MESSAGE,))),
}


@pytest.mark.parametrize(("given", "expected"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_these_are_observations(given: object, expected: object):
    assert asyncio.run(play(plain(resetting(lambda self: given)), [])).first == expected


@pytest.mark.parametrize("given", [None, 3, b"x", [], ["a"], [MESSAGE, "a"], {"a": 1}, np.zeros(2), (1, 2, 3)])
def test_these_are_none(given: object):
    said = asyncio.run(error_of(play(plain(resetting(lambda self: given)), [])))
    assert said.startswith("EnvError: Told.reset shows ")
    assert said.endswith("; show text, a Message or a list of them, or turn it into text with render=")


def test_what_is_no_text_is_rendered():
    class Numbers:
        def reset(self):
            return (14, 10, 0)

        def step(self, action: str):
            return (15, 10, 0), 0.0, False

    played = asyncio.run(play(plain(Numbers, render=lambda seen: f"sum {seen[0]}"), ["on"]))
    assert (played.first, played.shown) == ("sum 14", ["sum 15"])


def stepping(answer: object) -> Any:
    return type("Told", (Count,), {"step": lambda self, action: answer})


STEPS = {
    "three": (("o", 1, True), Step(observation="o", reward=1.0, terminated=True)),
    "four": (("o", 0.5, False, {"a": 1}), Step(observation="o", reward=0.5, info={"a": 1})),
    "five": (("o", 0, False, True, {}), Step(observation="o", truncated=True)),
    "numpy's": (
        ("o", np.float32(0.5), np.bool_(True), np.bool_(False), {}),
        Step(observation="o", reward=0.5, terminated=True),
    ),
    "an integer of numpy's": (("o", np.int64(2), False), Step(observation="o", reward=2.0)),
    "right or wrong": (("o", True, True), Step(observation="o", reward=1.0, terminated=True)),
    "nothing to see at the end": ((None, 1.0, True), Step(reward=1.0, terminated=True)),
    "a Step": (Step(observation="o", reward=3.0), Step(observation="o", reward=3.0)),
}


@pytest.mark.parametrize(("given", "expected"), STEPS.values(), ids=STEPS)
def test_a_step_is_read_in_the_usual_ways(given: object, expected: Step):
    (step,) = asyncio.run(play(plain(stepping(given)), ["on"])).steps
    assert step == expected
    assert (type(step.reward), type(step.terminated), type(step.truncated)) == (float, bool, bool)


MISTAKES: dict[str, tuple[object, str]] = {
    "nothing": (None, "Told.step returned None; return (observation, reward, done)"),
    "text alone": ("o", "Told.step returned 'o'; return"),
    "a list": (["o", 1.0, True], "Told.step returned ['o', 1.0, True]; return"),
    "two": (("o", 1.0), "Told.step returned a tuple of 2; return"),
    "six": (("o", 1.0, True, False, {}, 0), "Told.step returned a tuple of 6; return"),
    "a number as a flag": (("o", 1.0, 1), "Told.step returned 1 for terminated; return True or False"),
    "flag and reward swapped": (("o", True, 1.0), "Told.step returned 1.0 for terminated"),
    "an info as a flag": (("o", 1.0, True, {}, {}), "Told.step returned {} for truncated"),
    "text as a reward": (("o", "1", True), "Told.step returned '1' as its reward; return a number"),
    "no reward": (("o", None, True), "Told.step returned None as its reward"),
    "an array as a reward": (("o", np.ones(1), True), "Told.step returned array([1.]) as its reward"),
    "a flag as info": (("o", 1.0, True, True), "Told.step returned True for info; return a dict"),
    "no observation": ((None, 1.0, False), "Told.step shows None; show text"),
}


@pytest.mark.parametrize(("given", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_what_came(given: object, expected: str):
    said = asyncio.run(error_of(play(plain(stepping(given)), ["on"])))
    assert said.startswith(f"EnvError: {expected}")


def test_what_reset_said_as_info_is_kept_beside_what_steps_say():
    class Told(Count):
        def reset(self) -> Any:
            return "go", {"answer": 42, "turn": 0}

        def step(self, action: str) -> Any:
            return "on", 0.0, True, {"turn": 1}

    (step,) = asyncio.run(play(plain(Told), ["on"])).steps
    assert step.info == {"answer": 42, "turn": 1}


def test_it_can_prove_itself_if_its_class_can():
    class Clever(Count):
        def solve(self):
            return "on"

        def wander(self, rng: object):
            return "off"

    clever, simple = plain(Clever)(), plain(Count)()
    assert isinstance(clever, Solvable)
    assert isinstance(clever, Wanderable)
    assert clever.solve() == "on"
    assert not isinstance(simple, Solvable)
    assert not isinstance(simple, Wanderable)


def test_what_it_raises_is_left_to_whoever_plays():
    def reset(self: object):
        raise KeyError("door")

    assert asyncio.run(error_of(play(plain(resetting(reset)), []))) == "KeyError: 'door'"


@pytest.mark.parametrize("thing", [int, Exception])
def test_a_class_without_reset_and_step_is_refused_when_it_is_named(thing: Any):
    with pytest.raises(ConfigError, match=f"{thing.__name__} has no reset and step; write both"):
        plain(thing)


def test_an_object_without_them_is_refused_when_it_is_made():
    with pytest.raises(ConfigError, match="dict has no reset and step"):
        plain(partial(dict))()
    with pytest.raises(ConfigError, match="needs a class or a function that makes an object"):
        plain(3)  # type: ignore[arg-type]


def test_it_travels_to_another_process():
    make = cloudpickle.loads(cloudpickle.dumps(plain(Count, up_to=4, render=lambda text: f"> {text}")))
    assert asyncio.run(play(make, [])).first == "> 4 to go"
