"""Sums."""

import asyncio
import re

import pytest

from windrow.envs.arithmetic import ArithmeticEnv, is_digit_by_digit, worked_out
from windrow.errors import ConfigError
from windrow.trajectory import Task


def asked(seed: int, env: ArithmeticEnv) -> str:
    return str(asyncio.run(env.start(Task(ordinal=0, seed=seed))))


@pytest.mark.parametrize(
    ("numbers", "signs", "value"),
    [
        ([2, 3], "+", 5),
        ([2, 3], "-", -1),
        ([2, 3, 4], "+*", 14),
        ([2, 3, 4], "*+", 10),
        ([2, 3, 4], "--", -5),
        ([8, 4, 2], "/*", 4),
        ([10, 8, 4], "-/", 8),
        ([1, 2, 3, 4], "-*+", -1),
    ],
)
def test_products_come_before_sums(numbers: list[int], signs: str, value: int):
    assert worked_out(numbers, signs) == value


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("operations", ["+", "-", "*", "/", "+-*/"])
@pytest.mark.parametrize("smallest", [0, -20, 3])
def test_only_what_the_settings_allow_is_asked(operations: str, terms: int, smallest: int):
    negative = smallest < 0
    for seed in range(60):
        env = ArithmeticEnv(operations=operations, terms=terms, smallest=smallest, largest=50, negative=negative)
        text = asked(seed, env).removesuffix(" = ?")
        numbers = [int(number) for number in re.findall(r"(?<!\d)-?\d+", text.replace("- ", "~ "))]
        assert len(numbers) == terms
        assert all(smallest <= number <= 50 for number in numbers), text
        assert set(re.findall(r" ([-+*/]) ", text)) <= set(operations)
        assert int(env.solve()) == eval(text)  # noqa: S307 -- a sum of our own
        assert negative or int(env.solve()) >= 0


def test_the_default_is_two_numbers_of_two_digits():
    assert re.fullmatch(r"\d{1,2} [-+*] \d{1,2} = \?", asked(5, ArithmeticEnv()))


def test_every_operation_that_is_allowed_comes_up():
    signs = {asked(seed, ArithmeticEnv(operations="+-*/")).split()[1] for seed in range(60)}
    assert signs == {"+", "-", "*", "/"}


@pytest.mark.parametrize(
    ("numbers", "signs", "digit_by_digit"),
    [
        ([23, 41], "+", True),
        ([23, 46], "+", True),
        ([23, 47], "+", False),
        ([5, 95], "+", False),
        ([64, 3], "-", True),
        ([64, 5], "-", False),
        ([104, 10], "-", False),
        ([7, 2, 9], "+-", True),
        ([7, 2, 1], "++", False),
        ([7, 8, 9], "-+", False),
    ],
)
def test_a_sum_goes_digit_by_digit_if_no_column_carries_or_borrows(
    numbers: list[int], signs: str, digit_by_digit: bool
):
    assert is_digit_by_digit(numbers, signs) is digit_by_digit


def test_without_carries_every_sum_goes_digit_by_digit():
    for seed in range(200):
        first, sign, second, *_ = asked(seed, ArithmeticEnv(operations="+-", largest=999, carries=False)).split()
        assert is_digit_by_digit([int(first), int(second)], sign)


@pytest.mark.parametrize("operations", ["+", "-", "*", "/", "+-*/"])
@pytest.mark.parametrize("terms", [2, 3])
def test_numbers_after_the_first_may_lie_elsewhere(operations: str, terms: int):
    for seed in range(100):
        env = ArithmeticEnv(operations=operations, smallest=10, largest=50, later=(2, 7), terms=terms, negative=True)
        text = asked(seed, env).removesuffix(" = ?")
        first, *later = map(int, re.findall(r"\d+", text))
        assert 10 <= first <= 50
        assert all(2 <= number <= 7 for number in later), text
        assert int(env.solve()) == eval(text)  # noqa: S307 -- a sum of our own


@pytest.mark.parametrize(
    "args",
    [
        {"operations": ()},
        {"operations": ("%",)},
        {"smallest": 5, "largest": 4},
        {"terms": 1},
        {"terms": 9},
        {"largest": 10**10},
        {"largest": "9"},
        {"later": (5, 4)},
        {"later": (1,)},
        {"later": (1, 10**10)},
        {"carries": False},
        {"operations": "+", "smallest": -1, "carries": False},
        {"operations": "+", "later": (-1, 1), "carries": False},
        {"operations": "-", "negative": True, "carries": False},
    ],
)
def test_settings_that_cannot_work_are_refused(args: dict[str, object]):
    with pytest.raises(ConfigError):
        ArithmeticEnv(**args)  # type: ignore[arg-type]  # that is the point


def test_settings_that_allow_no_sum_say_so():
    env = ArithmeticEnv(operations="-", smallest=5, largest=9, terms=4)
    with pytest.raises(ConfigError, match="allows too little"):
        asked(0, env)
