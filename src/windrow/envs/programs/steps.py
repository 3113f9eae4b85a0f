"""What small programs are made of: steps that change a list, a text or a number, and ends that say what is returned.

Promises: each says itself in words, as a line of Python and as a function, and the three mean the same. Everything is
defined for empty input and for numbers below 0, and takes time in proportion to its input.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from windrow.types import Value

Kind = Literal["list", "text", "number"]

LETTERS = ("a", "b", "e", "n", "o", "t")
NONE = ("",)
SMALL = ("2", "3", "4", "5")
FEW = ("2", "3")
BY = ("2", "3", "4", "5")
ANY = tuple(map(str, range(-3, 13)))
ADDED = tuple(map(str, [*range(-9, 0), *range(1, 10)]))
FACTORS = ("-2", "-1", "2", "3", "4", "5", "6")
DIGITS = tuple(map(str, range(1, 10)))
FROM_TWO = DIGITS[1:]


class Part(Value, frozen=True, gc=True):
    """A step or an end, before its number or letter is chosen."""

    words: str
    code: str
    """An expression of `v`, what there is so far; `{n}` stands for the number or letter."""
    run: Callable[[Any, Any], Any]
    """The same as a function of both."""
    choices: tuple[str, ...] = NONE


class Chosen(Value, frozen=True, gc=True):
    """A step or an end with its number or letter."""

    part: Part
    choice: str

    def words(self) -> str:
        return self.part.words.format(n=self.choice)

    def code(self, variable: str) -> str:
        """As Python, of a variable."""
        return self.part.code.format(v=variable, n=self.choice)

    def run(self, value: Any) -> Any:  # noqa: ANN401 -- a list, a text or what an end makes of it
        chosen = self.choice
        return self.part.run(value, int(chosen) if chosen.lstrip("-").isdigit() else chosen)


def run_all(parts: Sequence[Chosen], value: Any) -> Any:  # noqa: ANN401 -- as above
    """What a program returns."""
    for part in parts:
        value = part.run(value)
    return value


STEPS: dict[Kind, tuple[Part, ...]] = {
    "list": (
        Part("adds {n} to each", "[x + {n} for x in {v}]", lambda v, n: [x + n for x in v], ADDED),
        Part("multiplies each by {n}", "[x * {n} for x in {v}]", lambda v, n: [x * n for x in v], FACTORS),
        Part("subtracts each from {n}", "[{n} - x for x in {v}]", lambda v, n: [n - x for x in v], ANY),
        Part("squares each", "[x * x for x in {v}]", lambda v, _: [x * x for x in v]),
        Part("takes each without its sign", "[abs(x) for x in {v}]", lambda v, _: [abs(x) for x in v]),
        Part("keeps those of at least {n}", "[x for x in {v} if x >= {n}]", lambda v, n: [x for x in v if x >= n], ANY),
        Part("keeps those below {n}", "[x for x in {v} if x < {n}]", lambda v, n: [x for x in v if x < n], ANY),
        Part("raises those below {n} to {n}", "[max(x, {n}) for x in {v}]", lambda v, n: [max(x, n) for x in v], ANY),
        Part("lowers those above {n} to {n}", "[min(x, {n}) for x in {v}]", lambda v, n: [min(x, n) for x in v], ANY),
        Part("keeps multiples of {n}", "[x for x in {v} if not x % {n}]", lambda v, n: [x for x in v if not x % n], BY),
        Part("drops multiples of {n}", "[x for x in {v} if x % {n}]", lambda v, n: [x for x in v if x % n], BY),
        Part("keeps the first {n}", "{v}[:{n}]", lambda v, n: v[:n], SMALL),
        Part("drops the first {n}", "{v}[{n}:]", lambda v, n: v[n:], SMALL),
        Part("keeps the last {n}", "{v}[-{n}:]", lambda v, n: v[-n:], SMALL),
        Part("drops the last {n}", "{v}[:-{n}]", lambda v, n: v[:-n], SMALL),
        Part("keeps one in {n}, beginning with the first", "{v}[::{n}]", lambda v, n: v[::n], FEW),
        Part("reverses the order", "{v}[::-1]", lambda v, _: v[::-1]),
        Part("sorts, smallest first", "sorted({v})", lambda v, _: sorted(v)),
        Part("sorts, largest first", "sorted({v}, reverse=True)", lambda v, _: sorted(v, reverse=True)),
        Part("drops repeats, keeping the first of each", "list(dict.fromkeys({v}))", lambda v, _: [*dict.fromkeys(v)]),
        Part("repeats the list {n} times", "{v} * {n}", lambda v, n: v * n, FEW),
    ),
    "text": (
        Part("makes it upper case", "{v}.upper()", lambda v, _: v.upper()),
        Part("reverses it", "{v}[::-1]", lambda v, _: v[::-1]),
        Part("sorts its letters", "''.join(sorted({v}))", lambda v, _: "".join(sorted(v))),
        Part("drops every '{n}'", "{v}.replace('{n}', '')", lambda v, n: v.replace(n, ""), LETTERS),
        Part("replaces every '{n}' by 'x'", "{v}.replace('{n}', 'x')", lambda v, n: v.replace(n, "x"), LETTERS),
        Part("doubles every '{n}'", "{v}.replace('{n}', '{n}{n}')", lambda v, n: v.replace(n, n + n), LETTERS),
        Part("puts '{n}' in front", "'{n}' + {v}", lambda v, n: n + v, LETTERS),
        Part("puts '{n}' at the end", "{v} + '{n}'", lambda v, n: v + n, LETTERS),
        Part("doubles every letter", "''.join(c + c for c in {v})", lambda v, _: "".join(c + c for c in v)),
        Part("keeps the first {n} letters", "{v}[:{n}]", lambda v, n: v[:n], SMALL),
        Part("drops the first {n} letters", "{v}[{n}:]", lambda v, n: v[n:], SMALL),
        Part("keeps the last {n} letters", "{v}[-{n}:]", lambda v, n: v[-n:], SMALL),
        Part("drops the last {n} letters", "{v}[:-{n}]", lambda v, n: v[:-n], SMALL),
        Part("keeps one letter in {n}, beginning with the first", "{v}[::{n}]", lambda v, n: v[::n], FEW),
        Part("repeats it {n} times", "{v} * {n}", lambda v, n: v * n, FEW),
        Part("drops repeated letters, keeping the first of each", "''.join(dict.fromkeys({v}))",
             lambda v, _: "".join(dict.fromkeys(v))),
    ),
    "number": (
        Part("adds {n}", "{v} + {n}", lambda v, n: v + n, DIGITS),
        Part("takes {n} away", "{v} - {n}", lambda v, n: v - n, DIGITS),
        Part("multiplies it by {n}", "{v} * {n}", lambda v, n: v * n, FROM_TWO),
        Part("divides it by {n}, rounding down", "{v} // {n}", lambda v, n: v // n, FROM_TWO),
        Part("keeps what is left over after sharing by {n}", "{v} % {n}", lambda v, n: v % n, FROM_TWO),
        Part("subtracts it from {n}", "{n} - {v}", lambda v, n: n - v, DIGITS),
        Part("raises it to {n} if it is below", "max({v}, {n})", max, DIGITS),
        Part("lowers it to {n} if it is above", "min({v}, {n})", min, DIGITS),
    ),
}  # fmt: skip
"""What may happen on the way."""

ENDS: dict[Kind, tuple[Part, ...]] = {
    "list": (
        Part("returns the list", "{v}", lambda v, _: v),
        Part("returns the sum", "sum({v})", lambda v, _: sum(v)),
        Part("returns how many are left", "len({v})", lambda v, _: len(v)),
        Part("returns the largest, or 0 if none is left", "max({v}, default=0)", lambda v, _: max(v, default=0)),
        Part("returns the smallest, or 0 if none is left", "min({v}, default=0)", lambda v, _: min(v, default=0)),
        Part("returns how many are above {n}", "sum(x > {n} for x in {v})", lambda v, n: sum(x > n for x in v), ANY),
    ),
    "text": (
        Part("returns the text", "{v}", lambda v, _: v),
        Part("returns its length", "len({v})", lambda v, _: len(v)),
        Part("returns how many '{n}' it has", "{v}.count('{n}')", lambda v, n: v.count(n), LETTERS),
    ),
    "number": (Part("returns the result", "{v}", lambda v, _: v),),
}
"""What may be returned."""
