"""Answers that mean something else than they seem to, and judges that write their verdict in their own way."""

import asyncio

import pytest
from tests.rewards.given import said
from tests.rewards.test_judge import TEMPLATE, Watched, length_of_answer

from windrow.errors import JudgeError
from windrow.rewards.judge import Judge
from windrow.rewards.math import MathReward
from windrow.rewards.verdicts import out_of
from windrow.rollout.virtual_time import run
from windrow.text import ByteCodec


def value(right: str, response: str) -> float:
    return MathReward().score(said(response, {"answer": right})).value


@pytest.mark.parametrize(
    ("right", "response"),
    [
        ("5", r"\boxed{5 million}"),
        ("5", "the answer is 5 million"),
        ("5", r"\boxed{5 \text{ thousand}}"),
        ("5", r"\boxed{5 dozen}"),
        ("5", r"\boxed{5 pi}"),
        ("5", r"\boxed{5 squared}"),
        ("5 million", r"\boxed{5}"),
        ("5 pi", r"\boxed{5}"),
    ],
)
def test_a_word_that_changes_a_number_is_no_unit(right: str, response: str):
    assert value(right, response) == 0.0


@pytest.mark.parametrize(
    ("right", "response"),
    [
        ("7", r"\boxed{x=5, x=7}"),
        ("7", r"\boxed{x=5 \text{ or } x=7}"),
        ("7", "answer: x = 5 or x = 7"),
        ("5", r"\boxed{x >= 5}"),
        ("5", r"\boxed{x <= 5}"),
        ("5", r"\boxed{x != 5}"),
    ],
)
def test_what_stands_behind_the_last_sign_is_not_all_that_was_said(right: str, response: str):
    assert value(right, response) == 0.0


def test_one_equation_is_an_answer():
    assert value("5", r"\boxed{x = 5}") == value("5", "answer: x=5") == value("5", r"\boxed{2+3=5}") == 1.0


@pytest.mark.parametrize("response", ["the answer is not 3", "answer: not 3", "answer: less than 3"])
def test_a_number_that_is_ruled_out_is_not_the_answer(response: str):
    assert value("3", response) == 0.0


def test_half_of_a_number_with_a_comma_is_not_a_number():
    assert value("23", "answer: 1,23") == 0.0


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("Score (0-10): 8", 0.8),
        ("Score (1–10): 8", 0.8),
        ("Score (out of 10): 8", 0.8),
        ("**Score** [0 to 10]: 8", 0.8),
        ("score: 3 of 5", None),
        ("score: 3/5", None),
        ("score: 7,5", None),
    ],
)
def test_the_scale_is_not_the_score(text: str, mark: float | None):
    read = out_of(10)(text)
    assert read is None or read == mark


def test_a_judge_that_was_closed_does_not_start_its_engine_again():
    async def body() -> int:
        engine = Watched(length_of_answer, token_s=0.1)
        judge = Judge(engine, ByteCodec(), template=TEMPLATE, at_once=1)
        await judge.start()
        async with asyncio.TaskGroup() as group:
            for place in range(3):
                group.create_task(refused(judge, place))
            await asyncio.sleep(0.35)
            await judge.close()
        await refused(judge, 3)
        return engine.starts

    async def refused(judge: Judge, place: int) -> None:
        with pytest.raises(JudgeError):
            await judge.score(said("a" * (place + 1), index=place))

    assert run(body()) == 1
