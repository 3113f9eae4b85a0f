"""The shipped environment."""

import asyncio
from random import Random
from typing import Any

import pytest

from windrow.envs.guess import GuessEnv
from windrow.envs.protocol import Step
from windrow.envs.shipped import find
from windrow.errors import ConfigError, EnvError
from windrow.trajectory import Split, Task


def played(env: GuessEnv, actions: list[str], seed: int = 3) -> list[Step]:
    async def play() -> list[Step]:
        await env.start(Task(ordinal=0, seed=seed))
        steps = [await env.step(action) for action in actions]
        await env.close()
        return steps

    return asyncio.run(play())


@pytest.mark.parametrize("seed", range(20))
def test_it_can_be_solved_by_itself(seed: int):
    env = GuessEnv()
    asyncio.run(env.start(Task(ordinal=0, seed=seed)))
    step = asyncio.run(env.step(f"I say {env.solve()}!"))
    assert (step.reward, step.terminated, step.observation) == (1.0, True, "right")


def test_hints_lead_to_the_number():
    env = GuessEnv(turns=99)
    played(env, [])
    secret = int(env.solve())
    lower = [*range(9, secret, -1)]
    steps = played(GuessEnv(turns=99), [str(number) for number in (*range(secret), *lower, secret)])
    assert [step.observation for step in steps] == ["higher"] * secret + ["lower"] * len(lower) + ["right"]


@pytest.mark.parametrize("said", ["", "no idea", "-", "é"])
def test_what_is_no_number_is_told_so(said: str):
    (step,) = played(GuessEnv(), [said])
    assert (step.observation, step.reward, step.terminated) == ("say a number", 0.0, False)


def test_it_ends_after_its_turns_without_a_reward():
    steps = played(GuessEnv(turns=3), ["x", "x", "x"])
    assert [step.terminated for step in steps] == [False, False, True]
    assert sum(step.reward for step in steps) == 0


def test_a_very_long_number_is_only_too_large():
    env = GuessEnv()
    (step,) = played(env, ["9" * 5000])
    assert (step.observation, step.terminated) == ("lower", False)


def test_no_number_is_both_trained_on_and_held_out():
    train, held_out = (secrets(split) for split in ("train", "held_out"))
    assert train | held_out == set("0123456789")
    assert held_out == {"4", "9"}
    assert not train & held_out


def secrets(split: Split) -> set[str]:
    envs = [GuessEnv() for _ in range(200)]
    for seed, env in enumerate(envs):
        asyncio.run(env.start(Task(ordinal=0, seed=seed, split=split)))
    return {env.solve() for env in envs}


def test_the_number_is_told_at_the_end():
    env = GuessEnv(turns=2)
    steps = played(env, ["x", "x"])
    assert [step.info for step in steps] == [{}, {"problem": f"number {env.solve()}"}]


def test_a_wanderer_says_any_of_the_numbers():
    rng = Random(0)
    assert {GuessEnv().wander(rng) for _ in range(200)} == set("0123456789")


def test_an_unknown_environment_suggests_the_nearest():
    assert find("guess") is GuessEnv
    with pytest.raises(ConfigError, match=r"unknown environment 'gess'; did you mean guess\?"):
        find("gess")


@pytest.mark.parametrize("turns", [0, -3, "x", 1.5, None])
def test_turns_that_cannot_work_are_refused(turns: Any):
    with pytest.raises(ConfigError, match=r"guess.turns must be an integer.*, got"):
        GuessEnv(turns=turns)


@pytest.mark.parametrize("actions", [["x", "x"], ["right"]])
def test_it_is_played_once_from_its_start_to_its_end(actions: list[str]):
    env = GuessEnv(turns=2)
    with pytest.raises(EnvError, match="guess has not been started"):
        asyncio.run(env.step("1"))
    asyncio.run(env.start(Task(ordinal=0, seed=3)))
    for action in actions:
        asyncio.run(env.step(env.solve() if action == "right" else action))
    with pytest.raises(EnvError, match="guess is over"):
        asyncio.run(env.step(env.solve()))
    with pytest.raises(EnvError, match="guess was started twice"):
        asyncio.run(env.start(Task(ordinal=0)))


@pytest.mark.parametrize(
    ("env", "arg", "why"),
    [
        ("guess", "turn", r"unknown argument 'turn' of environment 'guess'; did you mean turns\?"),
        ("arithmetic", "operatons", r"did you mean operations\?"),
        ("guess_tools", "qqq", "known are smallest, largest"),
    ],
)
def test_an_unknown_argument_is_refused_at_once(env: str, arg: str, why: str):
    with pytest.raises(ConfigError, match=why):
        find(env, **{arg: 1})
