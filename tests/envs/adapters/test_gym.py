"""Environments of Gymnasium, the real ones."""

import asyncio
from random import Random
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from tests.envs.adapters.playing import error_of, play, play_with

from windrow.envs.gym import gymnasium_env, without_paint
from windrow.envs.protocol import Env, Solvable, Step, Wanderable
from windrow.text import Message
from windrow.trajectory import Split, Task

WAYS = ["left", "down", "right", "up"]
TASK = Task(ordinal=0, seed=3)
PARTS: tuple[Split, Split] = ("train", "held_out")


class Echo(gymnasium.Env[Any, Any]):
    """Text in, text out; rewards and flags as numpy makes them."""

    observation_space = gymnasium.spaces.Text(100)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Text(min_length=1, max_length=5, charset="abc")

    def __init__(self, ending: str = "c") -> None:
        self.ending = ending

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"{self.np_random.integers(1000)} {options}", {}

    def step(self, action: str) -> Any:
        return f"you said {action}", np.float32(len(action)), np.bool_(action == self.ending), False, {"said": action}


class Counting(Echo):
    action_space = gymnasium.spaces.Discrete(200, start=-3)

    def step(self, action: Any) -> Any:
        return "on", 0.0, False, False, {"said": action}


class Vague(Echo):
    action_space = gymnasium.spaces.Box(-1, 1, (2,))


class Odd(Echo):
    def step(self, action: str) -> Any:
        return "o", 1.0, 1, False, {}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("windrow/Echo-v0", Echo)  # type: ignore[arg-type]  # a class is what it takes
    yield
    del gymnasium.registry["windrow/Echo-v0"]


def test_frozen_lake_is_read_as_it_is_rendered_and_walked_by_names():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=False)
    played = asyncio.run(play(make, ["I go DOWN.", "down", "right", "right", "not left, down!", "right"], TASK))
    assert played.first == "say one of: left, down, right, up\n\n\n[S]FFF\nFHFH\nFFFH\nHFFG\n"
    assert played.shown[0] == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG\n"
    assert [step.reward for step in played.steps] == [0, 0, 0, 0, 0, 1]
    assert [step.terminated for step in played.steps] == [False] * 5 + [True]


def test_falling_in_ends_it_without_a_reward():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=False)
    played = asyncio.run(play(make, ["down", "right"], TASK))
    assert (played.score, played.steps[-1].terminated) == (0.0, True)


def test_a_limit_of_gymnasiums_cuts_the_episode_off():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=False, max_episode_steps=2)
    last = asyncio.run(play(make, ["up", "up"], TASK)).steps[-1]
    assert (last.terminated, last.truncated) == (False, True)


def test_the_seed_decides_what_chance_does():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=True)

    def walked(seed: int) -> list[object]:
        return [*asyncio.run(play(make, ["down"] * 10, Task(ordinal=0, seed=seed))).shown]

    assert walked(1) == walked(1)
    assert len({str(walked(seed)) for seed in range(8)}) > 1


def test_a_seed_means_another_problem_in_the_held_out_part():
    first = {
        part: asyncio.run(play(gymnasium_env(Echo), [], Task(ordinal=0, seed=1, split=part))).first for part in PARTS
    }
    assert first["train"] != first["held_out"]


def test_taxi_is_shown_with_its_colours_in_words():
    make = gymnasium_env("Taxi-v4", actions=["south", "north", "east", "west", "pick up", "drop off"])
    played = asyncio.run(play(make, ["first south", "pick up"], TASK))
    assert played.first == (
        "say one of: south, north, east, west, pick up, drop off\n\n"
        "+---------+\n|R(blue): |[ ]: :G|\n| : | : : |\n| : : : : |\n| | : | : |\n|Y(magenta)| : |B: |\n+---------+\n\n"
    )
    assert "| : |[ ]: : |" in str(played.shown[0])
    assert [step.reward for step in played.steps] == [-1.0, -10.0]
    assert played.steps[0].info["prob"] == 1.0


def test_blackjack_is_put_in_words_by_the_user():
    def words(seen: tuple[int, int, int]) -> str:
        return f"you have {seen[0]}, the dealer shows {seen[1]}"

    make = gymnasium_env("Blackjack-v1", observe=words, actions=["stick", "hit"], prompt="21 wins.")
    played = asyncio.run(play(make, ["stick"], Task(ordinal=0, seed=1)))
    assert played.first == "21 wins.\n\nyou have 20, the dealer shows 7"
    assert played.steps[-1].terminated
    assert played.score == 1.0


def test_text_spaces_need_nothing():
    played = asyncio.run(play(gymnasium_env("windrow/Echo-v0"), ["ab", "c"], TASK))
    assert isinstance(played.first, str)
    assert played.first.endswith(" None")
    assert played.steps == (
        Step(observation="you said ab", reward=2.0, info={"said": "ab"}),
        Step(observation="you said c", reward=1.0, terminated=True, info={"said": "c"}),
    )


def test_a_function_or_a_class_makes_them_too():
    assert asyncio.run(play(gymnasium_env(Echo, ending="a"), ["a"], TASK)).steps[-1].terminated


def test_a_dict_as_payload_is_handed_over_as_options():
    played = asyncio.run(play(gymnasium_env(Echo), [], Task(ordinal=0, payload={"level": 2})))
    assert isinstance(played.first, str)
    assert played.first.endswith("{'level': 2}")


def test_what_is_no_action_moves_nothing_and_may_cost():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=False, penalty=-0.5)
    played = asyncio.run(play(make, ["", "dow", "leftover", "up-", "down"], TASK))
    told = Step(observation="this is no action; say one of: left, down, right, up", reward=-0.5)
    assert played.steps[:3] == (told, told, told)
    assert "(Up)" in str(played.shown[3])
    assert "[F]HFH" in str(played.shown[4])


@pytest.mark.parametrize("said", ["", "abcabc", "xyz"])
def test_text_outside_the_space_is_no_action(said: str):
    (step,) = asyncio.run(play(gymnasium_env(Echo), [said], TASK)).steps
    assert step.observation == "this is no action; say it as it was told at first"


NUMBERS = {"-3": -3, "I say 196": 196, "1 then 12": 12, "197": None, "1.5": None, "x1": None, "12,": 12, "-4": None}


@pytest.mark.parametrize(("said", "meant"), NUMBERS.items())
def test_actions_without_names_are_numbers_and_no_parts_of_others(said: str, meant: int | None):
    (step,) = asyncio.run(play(gymnasium_env(Counting), [said], TASK)).steps
    assert step.info.get("said") == meant


def test_many_actions_are_not_listed_one_by_one():
    first = asyncio.run(play(gymnasium_env(Counting), [], TASK)).first
    assert isinstance(first, str)
    assert first.startswith("say one of: -3, -2, -1, …, 196\n")


def test_some_names_for_some_actions():
    make = gymnasium_env(Counting, actions={"Low": -3, "high": 196})
    played = asyncio.run(play(make, ["LOW", "high", "0"], TASK))
    assert [step.info.get("said") for step in played.steps] == [-3, 196, None]


def test_another_way_of_reading_actions():
    def read(said: str) -> Any:
        return np.array([float(word) for word in said.split()], np.float32)

    class Pointing(Vague):
        def step(self, action: Any) -> Any:
            return f"{action.tolist()}", 0.0, False, False, {}

    played = asyncio.run(play(gymnasium_env(Pointing, parse=read), ["0.5 -1", "7 7", "left"], TASK))
    told = "this is no action; say it as it was told at first"
    assert played.shown == ["[0.5, -1.0]", told, told]


def test_an_observation_of_several_messages_stands_after_the_prompt():
    make = gymnasium_env("FrozenLake-v1", prompt="walk", observe=lambda seen: [Message("system", f"{seen}")])
    assert asyncio.run(play(make, [], TASK)).first == (Message("user", "walk"), Message("system", "0"))


def test_chance_can_play_what_has_names():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS)
    env = make()
    assert isinstance(env, Wanderable)
    assert not isinstance(env, Solvable)
    assert not isinstance(gymnasium_env(Echo)(), Wanderable)
    rng = Random(0)

    def say(env: Env) -> str:
        assert isinstance(env, Wanderable)
        return env.wander(rng)

    ends = [asyncio.run(play_with(make, say, Task(ordinal=0, seed=seed))).steps[-1] for seed in range(20)]
    assert all(step.terminated or step.truncated for step in ends)


REFUSED = {
    "no text": (
        lambda: gymnasium_env("CartPole-v1"),
        "ConfigError: CartPole-v1 shows Box([-4.8 ",
        "which is no text, and cannot render text (its render modes: human, rgb_array); give observe= that turns",
    ),
    "another render mode": (lambda: gymnasium_env("FrozenLake-v1", render_mode="rgb_array"), "", "give observe="),
    "no such one": (
        lambda: gymnasium_env("FrozenLak-v1"),
        "ConfigError: gymnasium cannot make 'FrozenLak-v1': Environment `FrozenLak` doesn't exist. Did you mean",
        "",
    ),
    "an unknown argument": (
        lambda: gymnasium_env("FrozenLake-v1", size=3),
        "ConfigError: gymnasium cannot make",
        "size",
    ),
    "no such module": (lambda: gymnasium_env("nope:x-v1"), "ConfigError: gymnasium cannot make 'nope:x-v1'", ""),
    "no names for them": (
        lambda: gymnasium_env(Vague),
        "ConfigError: Vague takes Box(-1.0, 1.0, (2,), float32), which nobody can name; give parse= that reads",
        "",
    ),
    "too few names": (
        lambda: gymnasium_env("FrozenLake-v1", actions=["left"]),
        "ConfigError: FrozenLake-v1 has 4 actions and actions= has 1 names; give as many",
        "",
    ),
    "a name for nothing": (
        lambda: gymnasium_env("FrozenLake-v1", actions={"jump": 4}),
        "ConfigError: FrozenLake-v1 has no action 4 for 'jump'; it has 0 to 3",
        "",
    ),
    "two ways at once": (
        lambda: gymnasium_env("FrozenLake-v1", actions=WAYS, parse=int),
        "ConfigError: gymnasium_env takes actions= or parse=, not both",
        "",
    ),
    "a flag that is none": (lambda: gymnasium_env(Odd), "EnvError: Odd.step returned 1 for terminated", ""),
}


@pytest.mark.parametrize(("make", "begins", "has"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_played_is_refused_with_the_way_out(make: Any, begins: str, has: str):
    async def tried() -> None:
        await play(make(), ["a"], TASK)

    said = asyncio.run(error_of(tried()))
    assert said.startswith(begins)
    assert has in said
    assert said


def test_it_travels_to_another_process():
    make = gymnasium_env("FrozenLake-v1", actions=WAYS, is_slippery=False)
    for each in (make, cloudpickle.loads(cloudpickle.dumps(make))):
        assert "[F]HFH" in str(asyncio.run(play(each, ["down"], TASK)).shown[0])


PAINT = {
    "plain": "plain",
    "\x1b[41mS\x1b[0mF": "[S]F",
    "\x1b[34;1mR\x1b[0m:\x1b[35mY\x1b[0m": "R(blue):Y(magenta)",
    "\x1b[1mbold\x1b[0m": "bold",
    "\x1b[2J\x1b[Hhome": "home",
}


@pytest.mark.parametrize(("text", "expected"), PAINT.items(), ids=range(len(PAINT)))
def test_paint_becomes_words(text: str, expected: str):
    assert without_paint(text) == expected
