"""Little stories with numbers in them: what school calls word problems.

Promises: every answer is a whole number of 0 or more, and follows from the story alone. Two stories with the same kind
and the same numbers are the same problem, whoever they are about, so nobody meets a held-out problem under another name
in training.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Any

from windrow.envs.questions import Levels, Question, QuestionEnv, known_only, math_given, settled
from windrow.types import Meta, Value

NAMES = ("Ann", "Ben", "Cem", "Dana", "Emil", "Fay", "Gus", "Hana", "Ivo", "Juno", "Kim", "Lou")
THINGS = ("apples", "books", "cards", "coins", "eggs", "nuts", "pens", "rings", "shells", "stamps")
SHARES = (10, 20, 25, 40, 50, 75)
"""Percentages that are easy to take."""


class WordProblems(Value, frozen=True, kw_only=True):
    """Which stories are told."""

    kinds: tuple[str, ...] = ()
    """None: all of them."""
    largest: Annotated[int, Meta(ge=4, le=10**6)] = 20
    """Numbers that are multiplied, shared or added lie below or at this."""

    def __post_init__(self) -> None:
        if self.kinds:
            known_only("kinds", self.kinds, [*KINDS])


class WordProblemEnv(QuestionEnv[WordProblems]):
    """One story, one answer."""

    Settings = WordProblems

    def __init__(self, *, kinds: Sequence[str] = (), largest: int = 20, levels: Levels = ()) -> None:
        super().__init__(settled(WordProblems, kinds=tuple(kinds), largest=largest), levels)

    def make(self, rng: Random, settings: WordProblems) -> Question:
        kind = rng.choice(settings.kinds or [*KINDS])
        one, other = rng.sample(NAMES, 2)
        told = KINDS[kind](_Teller(rng, settings.largest, one, other, rng.choice(THINGS)))
        numbers = " ".join(map(str, told.numbers))
        answer = str(told.answer)
        return Question(text=told.text, key=f"{kind} {numbers}", solution=answer, info={"answer": answer, "kind": kind})

    def given(self, payload: Mapping[str, Any]) -> Question:
        return math_given(payload)

    def wander(self, rng: Random) -> str:
        """Some whole number of the size that answers have."""
        return str(rng.randint(0, 4 * self._settings.largest))


class Story(Value, frozen=True):
    """A story, its answer, and the numbers that make it what it is."""

    text: str
    answer: int
    numbers: tuple[int, ...]


class _Teller:
    """What a story is told with."""

    def __init__(self, rng: Random, largest: int, one: str, other: str, things: str) -> None:
        self.rng = rng
        self.one, self.other, self.things = one, other, things
        self._largest = largest

    def some(self, least: int = 2) -> int:
        """A number of some size."""
        return self.rng.randint(least, self._largest)

    def few(self) -> int:
        """A small one, above 1."""
        return self.rng.randint(2, min(9, self._largest))

    def how_many(self, who: str, end: str = "have") -> str:
        return f"How many {self.things} does {who} {end}?"

    def how_many_together(self) -> str:
        return f"How many {self.things} do they have together?"


def _more(by: _Teller) -> Story:
    a, b = by.some(), by.some()
    return Story(f"{by.one} has {a} {by.things} and gets {b} more. {by.how_many(by.one)}", a + b, (a, b))


def _fewer(by: _Teller) -> Story:
    b, left = by.some(), by.some(0)
    text = f"{by.one} has {b + left} {by.things} and gives {b} to {by.other}. {by.how_many(by.one, 'keep')}"
    return Story(text, left, (b + left, b))


def _boxes(by: _Teller) -> Story:
    a, b = by.few(), by.some()
    text = f"There are {a} boxes with {b} {by.things} each. How many {by.things} are there?"
    return Story(text, a * b, (a, b))


def _share(by: _Teller) -> Story:
    a, b = by.few(), by.some()
    text = f"{a} children share {a * b} {by.things} equally. How many {by.things} does each get?"
    return Story(text, b, (a, a * b))


def _left_over(by: _Teller) -> Story:
    size, total = by.few(), by.some(4)
    text = f"{by.one} puts {total} {by.things} into bags of {size}. How many {by.things} are left over?"
    return Story(text, total % size, (size, total))


def _together(by: _Teller) -> Story:
    a, b = by.some(), by.some()
    text = f"{by.one} has {a} {by.things}. {by.other} has {b} more than {by.one}. {by.how_many_together()}"
    return Story(text, 2 * a + b, (a, b))


def _times(by: _Teller) -> Story:
    k, a = by.few(), by.some()
    text = f"{by.one} has {a} {by.things}. {by.other} has {k} times as many. {by.how_many_together()}"
    return Story(text, (k + 1) * a, (k, a))


def _change(by: _Teller) -> Story:
    price, count, change = by.few(), by.few(), by.some(0)
    paid = price * count + change
    text = f"{by.one} buys {count} {by.things} for {price} dollars each and pays with {paid} dollars. "
    return Story(text + "How many dollars are the change?", change, (price, count, paid))


def _journey(by: _Teller) -> Story:
    hours, speed = by.few(), by.some()
    text = f"A boat goes {speed} km in an hour. How many km does it go in {hours} hours?"
    return Story(text, hours * speed, (hours, speed))


def _ages(by: _Teller) -> Story:
    a, b, c = by.some(), by.few(), by.few()
    text = f"{by.one} is {a} years old. {by.other} is {b} years older. How old is {by.other} in {c} years?"
    return Story(text, a + b + c, (a, b, c))


def _fence(by: _Teller) -> Story:
    a, b = by.some(), by.some()
    text = f"A garden is {a} m long and {b} m wide. How many metres of fence go around it?"
    return Story(text, 2 * (a + b), (a, b))


def _percent(by: _Teller) -> Story:
    share, total = by.rng.choice(SHARES), 20 * by.some(1)
    text = f"{by.one} has {total} {by.things} and sells {share} percent of them. {by.how_many(by.one, 'keep')}"
    return Story(text, total - total * share // 100, (share, total))


def _boxes_and_more(by: _Teller) -> Story:
    a, b, c = by.few(), by.few(), by.some()
    text = f"{by.one} has {c} {by.things} and buys {a} boxes of {b}. {by.how_many(by.one)}"
    return Story(text, a * b + c, (a, b, c))


def _two_gifts(by: _Teller) -> Story:
    a, b, left = by.some(), by.some(), by.some(0)
    text = f"{by.one} has {a + b + left} {by.things}, gives {a} to {by.other} and loses {b}. {by.how_many(by.one)}"
    return Story(text, left, (a + b + left, a, b))


KINDS: dict[str, Callable[[_Teller], Story]] = {
    "more": _more,
    "fewer": _fewer,
    "boxes": _boxes,
    "share": _share,
    "left_over": _left_over,
    "together": _together,
    "times": _times,
    "change": _change,
    "journey": _journey,
    "ages": _ages,
    "fence": _fence,
    "percent": _percent,
    "boxes_and_more": _boxes_and_more,
    "two_gifts": _two_gifts,
}
"""Every kind of story by its name."""
