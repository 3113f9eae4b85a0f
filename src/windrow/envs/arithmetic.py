"""Sums to be worked out: `34 + 57 = ?`.

Promises: every answer is a whole number, and so is every quotient on the way to it; products and quotients come before
sums and differences. Nothing is asked that the settings do not allow.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import gcd
from random import Random
from typing import Annotated, Any

from windrow.envs.questions import Levels, Question, QuestionEnv, known_only, math_given, settled
from windrow.errors import ConfigError
from windrow.types import Meta, Value

OPERATIONS = ("+", "-", "*", "/")
TRIES = 5000
"""Draws after which settings are taken to allow no sum at all."""


class Arithmetic(Value, frozen=True, kw_only=True):
    """Which sums are asked."""

    operations: tuple[str, ...] = ("+", "-", "*")
    smallest: int = 0
    largest: Annotated[int, Meta(le=10**9)] = 99
    """Numbers in the question lie between these two."""
    later: tuple[int, int] | None = None
    """Between which two those after the first lie; None: as the first."""
    terms: Annotated[int, Meta(ge=2, le=8)] = 2
    """How many numbers there are in a question."""
    negative: bool = False
    """Whether an answer may be below 0."""
    carries: bool = True
    """Whether a column of digits may carry or borrow; without, sums and differences go digit by digit."""

    def __post_init__(self) -> None:
        known_only("operations", self.operations, OPERATIONS)
        if not -(10**9) <= self.smallest <= self.largest:
            raise ConfigError(f"smallest is {self.smallest} and largest {self.largest}; there must be numbers between")
        if not -(10**9) <= self.after[0] <= self.after[1] <= 10**9:
            raise ConfigError(f"later is {list(self.after)}; give the smallest and the largest, with numbers between")
        if not self.carries and (
            min(self.smallest, self.after[0]) < 0 or self.negative or not set(self.operations) <= {"+", "-"}
        ):
            raise ConfigError("carries is false; that makes sense for + and - and for numbers of 0 or more alone")

    @property
    def after(self) -> tuple[int, int]:
        """Between which two numbers after the first lie."""
        return (self.smallest, self.largest) if self.later is None else self.later


class ArithmeticEnv(QuestionEnv[Arithmetic]):
    """One sum, one answer."""

    Settings = Arithmetic

    def __init__(  # noqa: PLR0913 -- one for each setting
        self,
        *,
        operations: Sequence[str] = Arithmetic().operations,
        smallest: int = 0,
        largest: int = 99,
        later: Sequence[int] | None = None,
        terms: int = 2,
        negative: bool = False,
        carries: bool = True,
        levels: Levels = (),
    ) -> None:
        ops = tuple(operations)
        chosen = {"smallest": smallest, "largest": largest, "terms": terms, "negative": negative, "carries": carries}
        after = None if later is None else tuple(later)
        super().__init__(settled(Arithmetic, operations=ops, later=after, **chosen), levels)

    def make(self, rng: Random, settings: Arithmetic) -> Question:
        for _ in range(TRIES):
            made = _sum(rng, settings)
            if made is None or not (settings.carries or is_digit_by_digit(*made)):
                continue
            answer = worked_out(*made)
            if answer >= 0 or settings.negative:
                text = _written(*made)
                return Question(text=f"{text} = ?", key=text, solution=str(answer), info={"answer": str(answer)})
        raise ConfigError(f"no sum in {TRIES} draws has a whole answer of 0 or more; {settings} allows too little")

    def given(self, payload: Mapping[str, Any]) -> Question:
        return math_given(payload)

    def wander(self, rng: Random) -> str:
        """Some whole number of the size that answers have."""
        largest = self._settings.largest
        most = largest**2 if "*" in self._settings.operations else largest * self._settings.terms
        return str(rng.randint(-most if self._settings.negative else 0, max(most, 9)))


def worked_out(numbers: Sequence[int], signs: Sequence[str]) -> int:
    """The value of numbers with signs between them; every quotient must be whole."""
    total, product, add = 0, numbers[0], 1
    for sign, number in zip(signs, numbers[1:], strict=True):
        match sign:
            case "*":
                product *= number
            case "/":
                product //= number
            case _:
                total += add * product
                product, add = number, 1 if sign == "+" else -1
    return total + add * product


def is_digit_by_digit(numbers: Sequence[int], signs: Sequence[str]) -> bool:
    """Whether no column carries or borrows on the way, from left to right; for sums and differences."""
    total = numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        columns = zip_longest(_digits(total), _digits(number), fillvalue=0)
        if not all(0 <= (a + b if sign == "+" else a - b) <= 9 for a, b in columns):
            return False
        total += number if sign == "+" else -number
    return True


def _digits(number: int) -> list[int]:
    """From the last to the first."""
    return [int(digit) for digit in reversed(str(number))]


def _sum(rng: Random, settings: Arithmetic) -> tuple[list[int], list[str]] | None:
    """Numbers and the signs between them; None if no quotient came out that is allowed."""
    signs = [rng.choice(settings.operations) for _ in range(settings.terms - 1)]
    numbers = [rng.randint(settings.smallest, settings.largest)]
    least, most = settings.after
    alone = True  # the last number is no part of a product
    product = numbers[0]
    for place, sign in enumerate(signs):
        if sign == "/" and alone:
            product, number = _quotient(rng, settings)
            if product > (most if place else settings.largest):
                return None
            numbers[-1] = product
        elif sign == "/":
            number = gcd(product, rng.randint(least, most))
        else:
            number = rng.randint(least, most)
        if sign == "/" and not (max(2, least) <= number <= most and product % number == 0):
            return None
        alone = sign in "+-"
        product = number if alone else product * number if sign == "*" else product // number
        numbers.append(number)
    return numbers, signs


def _quotient(rng: Random, settings: Arithmetic) -> tuple[int, int]:
    """A number and one that divides it."""
    low, high = settings.after
    divisor = rng.randint(max(2, low), max(2, min(high, settings.largest // 2), low))
    least, most = max(1, -(-settings.smallest // divisor)), settings.largest // divisor
    return divisor * rng.randint(least, max(least, most)), divisor


def _written(numbers: Sequence[int], signs: Sequence[str]) -> str:
    rest = (f" {sign} {_in_brackets(number)}" for sign, number in zip(signs, numbers[1:], strict=True))
    return str(numbers[0]) + "".join(rest)


def _in_brackets(number: int) -> str:
    return f"({number})" if number < 0 else str(number)
