"""Environments of GEM, the real ones that need no network."""

import asyncio
import random
import re
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from tests.envs.adapters.playing import Played, error_of, play, play_with

from windrow.envs.gem import Chance, gem_env
from windrow.envs.protocol import Env, Observation, Step, Wanderable
from windrow.trajectory import Task

GUESS, HANOI, SUM, MASTERMIND = (
    "game:GuessTheNumber-v0-easy",
    "game:TowerofHanoi-v0-easy",
    "rg:chain_sum",
    "game:Mastermind-v0-easy",
)


def task(seed: int) -> Task:
    return Task(ordinal=0, seed=seed)


def test_a_number_is_found_by_its_hints():
    async def found(seed: int) -> float:
        env = gem_env(GUESS)()
        await env.start(task(seed))
        low, high, step = 1, 10, Step()
        while not step.terminated:
            guess = (low + high) // 2
            step = await env.step(f"I say \\boxed{{{guess}}}")
            low, high = (guess + 1, high) if "higher" in str(step.observation) else (low, guess - 1)
        await env.close()
        return step.reward

    async def all_of_them() -> list[float]:
        return [await found(seed) for seed in range(20)]

    assert asyncio.run(all_of_them()) == [1.0] * 20


def test_the_tower_of_hanoi_is_moved():
    moves = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
    played = asyncio.run(play(gem_env(HANOI), [f"\\boxed{{{move}}}" for move in moves], task(1)))
    assert isinstance(played.first, str)
    assert played.first.endswith(
        "Here is the current state of the tower of hanoi:\nA: [3, 2, 1]\nB: []\nC: []\n\nEnter your move."
    )
    assert "A: [3, 2]\nB: []\nC: [1]" in str(played.shown[0])
    assert (played.steps[-1].reward, played.steps[-1].terminated, played.steps[-1].truncated) == (1.0, True, False)
    assert len(played.steps) == len(moves)


def test_a_sum_of_reasoning_gym_is_answered_in_one_turn():
    async def answered(seed: int) -> Played:
        env = gem_env(SUM)()
        first = await env.start(task(seed))
        (terms,) = re.findall(r": (.+) =", str(first))
        total = sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]? ?\d+", terms))
        return Played(first, (await env.step(f"\\boxed{{{total}}}"),))

    for seed in range(10):
        (step,) = asyncio.run(answered(seed)).steps
        assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert asyncio.run(play(gem_env(SUM), ["\\boxed{x}"], task(0))).score < 0.1


@pytest.mark.parametrize("name", [GUESS, "game:GuessTheNumber-v0-random", MASTERMIND, "game:Minesweeper-v0-easy"])
def test_an_episode_follows_from_its_seed_however_others_are_mixed_in(name: str):
    """GEM draws from global chance, in steps as well; two episodes that take turns must not notice each other."""

    async def mixed(seeds: list[int]) -> list[list[Observation]]:
        envs = [gem_env(name)() for _ in seeds]
        seen = [[await env.start(task(seed))] for env, seed in zip(envs, seeds, strict=True)]
        wandering = random.Random(4)
        words = [wander(env, wandering) for env in envs[:1] for _ in range(3)]
        for word in words:
            for env, shown in zip(envs, seen, strict=True):
                shown.append((await env.step(word)).observation)
                random.random()  # the rest of the program uses chance too
        return seen

    alone = asyncio.run(mixed([7]))[0]
    together = asyncio.run(mixed([7, 8, 7]))
    assert together[0] == together[2] == alone
    assert together[1] != alone


def wander(env: Env, rng: random.Random) -> str:
    assert isinstance(env, Wanderable)
    return env.wander(rng)


def test_the_programs_own_chance_is_left_alone():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 -- it is this one that GEM seeds
    expected = (random.random(), np.random.random())  # noqa: NPY002 -- as above
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 -- as above
    rng = random.Random(1)
    asyncio.run(play_with(gem_env(GUESS), lambda env: wander(env, rng), task(3)))
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002 -- as above


def test_a_stream_of_chance_goes_on_where_it_was():
    chance, expected = Chance(9), random.Random(9)
    drawn = []
    for _ in range(3):
        with chance.in_force():
            drawn.append(random.random())
        random.random()
    assert drawn == [expected.random() for _ in range(3)]


def test_the_root_logger_is_left_alone():
    """Only the first import touches it, so a fresh program looks."""
    look = "import logging; import windrow.envs.gem as it; it._gem(); print(logging.getLogger().handlers)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_chance_plays_what_knows_how_to():
    rng = random.Random(2)
    ends = [asyncio.run(play_with(gem_env(GUESS), lambda env: wander(env, rng), task(seed))) for seed in range(20)]
    assert all(played.steps[-1].terminated for played in ends)
    assert 0.0 < sum(played.score for played in ends) / 20 < 1.0

    async def started(name: str) -> bool:
        env = gem_env(name)()
        await env.start(task(0))
        return isinstance(env, Wanderable)

    assert not asyncio.run(started(SUM))


def test_arguments_are_the_environments_own_and_large_seeds_will_do():
    played = asyncio.run(play(gem_env(GUESS, max_number=99), [], task(2**40 + 1)))
    assert "between 1 and 99" in str(played.first)


def test_a_name_that_is_none_suggests_the_nearest():
    said = asyncio.run(error_of(play(gem_env("game:GuesTheNumber-v0-easy"), [], task(0))))
    assert said.startswith("ConfigError: gem has no environment 'game:GuesTheNumber-v0-easy'; did you mean game:Guess")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (LookupError("\n****\n  Resource words not found.\n  Download it.\n"), "Resource words not found."),
        (ImportError("no module named pylatexenc"), "no module named pylatexenc"),
        (TypeError(""), "TypeError"),
    ],
)
def test_what_lacks_something_is_refused_with_what_it_lacks(error: Exception, why: str):
    import gem
    from gem.envs.registration import ENV_REGISTRY

    def broken() -> object:
        raise error

    gem.register("windrow:Broken-v0", broken)
    try:
        said = asyncio.run(error_of(play(gem_env("windrow:Broken-v0"), [], task(0))))
    finally:
        del ENV_REGISTRY["windrow:Broken-v0"]
    assert said == f"ConfigError: gem cannot make 'windrow:Broken-v0': {why}"


def test_it_travels_to_another_process():
    make = cloudpickle.loads(cloudpickle.dumps(gem_env(GUESS, max_number=99)))
    assert "between 1 and 99" in str(asyncio.run(play(make, [], task(1))).first)
