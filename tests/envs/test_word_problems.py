"""Little stories."""

import asyncio
import re
from collections.abc import Callable
from random import Random

import pytest

from windrow.envs.word_problems import KINDS, Story, WordProblemEnv, _Teller
from windrow.errors import ConfigError
from windrow.trajectory import Task

WORKED: dict[str, Callable[..., int]] = {
    "more": lambda a, b: a + b,
    "fewer": lambda has, gives: has - gives,
    "boxes": lambda boxes, each: boxes * each,
    "share": lambda children, total: total // children,
    "left_over": lambda total, size: total % size,
    "together": lambda a, more: a + (a + more),
    "times": lambda a, times: a + times * a,
    "change": lambda count, price, paid: paid - count * price,
    "journey": lambda speed, hours: speed * hours,
    "ages": lambda age, older, later: age + older + later,
    "fence": lambda long, wide: 2 * long + 2 * wide,
    "percent": lambda total, share: total - total * share // 100,
    "boxes_and_more": lambda has, boxes, each: has + boxes * each,
    "two_gifts": lambda has, gives, loses: has - gives - loses,
}
"""The answer from the numbers in the order in which the story tells them."""


def told(kind: str, seed: int, largest: int = 20) -> Story:
    return KINDS[kind](_Teller(Random(seed), largest, "Ann", "Ben", "nuts"))


def test_every_kind_is_worked_out_here():
    assert [*WORKED] == [*KINDS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [4, 20, 1000])
def test_the_answer_follows_from_the_story(kind: str, largest: int):
    for seed in range(100):
        story = told(kind, seed, largest)
        numbers = [int(number) for number in re.findall(r"\d+", story.text)]
        assert story.answer == WORKED[kind](*numbers), story.text
        assert story.answer >= 0
        assert sorted(numbers) == sorted(story.numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_comes_out_even(kind: str):
    if kind == "share":
        assert all(story.numbers[1] % story.numbers[0] == 0 for story in (told(kind, seed) for seed in range(50)))
    assert all(told(kind, seed).text.endswith("?") for seed in range(10))


def test_a_problem_is_the_same_under_another_name():
    async def problems() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for seed in range(800):
            env = WordProblemEnv(kinds=["more"], largest=6)
            shown = str(await env.start(Task(ordinal=0, seed=seed)))
            found.setdefault(str((await env.step("")).info["problem"]), set()).add(shown)
        return found

    found = asyncio.run(problems())
    assert len(found) <= 25, "two numbers from 2 to 6"
    assert max(map(len, found.values())) > 10


def test_only_the_kinds_that_are_wanted_are_told():
    async def kinds() -> set[str]:
        found = set()
        for seed in range(50):
            env = WordProblemEnv(kinds=["fence", "ages"])
            await env.start(Task(ordinal=0, seed=seed))
            found.add(str((await env.step("")).info["kind"]))
        return found

    assert asyncio.run(kinds()) == {"fence", "ages"}


def test_an_unknown_kind_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown 'fense' among kinds; did you mean fence\?"):
        WordProblemEnv(kinds=["fense"])
