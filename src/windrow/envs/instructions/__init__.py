"""Instructions to be followed, of kinds that a rule can check.

Promises: the instructions of one question can be followed together, and `solve` shows how; what only forbids, or
says how, never stands alone. The same set of instructions is the same problem, in whatever order it is said.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Protocol

from windrow.envs.instructions import rules as kinds_of
from windrow.envs.instructions.rules import FILLERS, AnyRule, mended, read_rules, to_plain
from windrow.envs.questions import QUESTION, Levels, Question, QuestionEnv, known_only, settled, text_of
from windrow.errors import ConfigError, EnvError
from windrow.types import Meta, Value, to_json

VOCABULARY = (
    "apple", "bird", "blue", "boat", "bread", "cat", "cloud", "dog", "door", "fire", "fish", "garden", "gold", "grass",
    "green", "hill", "home", "house", "king", "lake", "leaf", "light", "milk", "moon", "mouse", "music", "night",
    "ocean", "paper", "rain", "river", "road", "salt", "silver", "snow", "song", "star", "stone", "summer", "table",
    "tiger", "tree", "water", "wind", "winter", "wolf", "wood", "yellow",
)  # fmt: skip
VOWELS = "aeiou"
MOST_GIVEN = 6
"""Words that one instruction is about, at most."""
TRIES = 1000


class Instructions(Value, frozen=True, kw_only=True):
    """Which instructions are given."""

    kinds: tuple[str, ...] = ()
    """None: all of them."""
    fewest: Annotated[int, Meta(ge=1, le=5)] = 1
    most: Annotated[int, Meta(ge=1, le=5)] = 2
    """Instructions in one question."""
    longest: Annotated[int, Meta(ge=2, le=60)] = 8
    """Words, lines and the like that may be asked for."""
    shortest: Annotated[int, Meta(ge=2, le=MOST_GIVEN)] | None = None
    """Words that are to be repeated, sorted, reversed or taken by their first letters; None: 2 or 3."""
    words: Annotated[int, Meta(ge=MOST_GIVEN, le=len(VOCABULARY))] = len(VOCABULARY)
    """Different words that instructions are about."""

    def __post_init__(self) -> None:
        if self.kinds:
            known_only("kinds", self.kinds, [*KINDS])
        if self.shortest is not None and self.shortest > self.longest:
            raise ConfigError(f"shortest is {self.shortest} and longest {self.longest}; there must be lists between")
        if self.fewest > self.most:
            raise ConfigError(f"fewest is {self.fewest} and most {self.most}; fewest must not be above most")


class InstructionEnv(QuestionEnv[Instructions]):
    """Some instructions, one text that follows them."""

    Settings = Instructions

    def __init__(
        self,
        *,
        kinds: Sequence[str] = (),
        fewest: int = 1,
        most: int = 2,
        longest: int = 8,
        shortest: int | None = None,
        words: int = len(VOCABULARY),
        levels: Levels = (),
    ) -> None:
        chosen = {"fewest": fewest, "most": most, "longest": longest, "shortest": shortest, "words": words}
        super().__init__(settled(Instructions, kinds=tuple(kinds), **chosen), levels)

    def make(self, rng: Random, settings: Instructions) -> Question:
        for _ in range(TRIES):
            rules = _some(rng, settings)
            solution = mended("", rules)
            if any(rule.alone for rule in rules) and all(rule.holds(solution) for rule in rules):
                return _asked(rules, solution)
        raise ConfigError(f"no instructions in {TRIES} draws go together; {settings} allows too little")

    def given(self, payload: Mapping[str, Any]) -> Question:
        question = text_of(payload, QUESTION)
        try:
            rules = read_rules(payload.get("rules"))
        except ValueError as error:
            raise EnvError(f"rules of {question!r:.60}: {error}") from error
        if not rules:
            raise EnvError(f"{question!r:.60} has no rules; give at least one under 'rules'")
        solution = mended("", rules)
        works = all(rule.holds(solution) for rule in rules)
        return Question(
            text=question, key=question, solution=solution if works else None, info={"rules": to_plain(rules)}
        )

    def wander(self, rng: Random) -> str:
        """Some words."""
        return " ".join(rng.choice(VOCABULARY + FILLERS) for _ in range(rng.randint(1, self._settings.longest)))


def _asked(rules: Sequence[AnyRule], solution: str) -> Question:
    plain = to_plain(rules)
    key = " ".join(sorted(to_json(rule).decode() for rule in plain))
    text = " ".join(rule.words() for rule in sorted(rules, key=lambda rule: (not rule.alone, rule.stage)))
    return Question(text=text, key=key, solution=solution, info={"rules": plain})


def _some(rng: Random, settings: Instructions) -> list[AnyRule]:
    """Some rules, each of another kind, and no two about the same thing."""
    kinds = [*(settings.kinds or KINDS)]
    count = min(rng.randint(settings.fewest, settings.most), len(kinds))
    stock = Stock(VOCABULARY[: settings.words], settings.shortest)
    return [KINDS[kind](rng, settings.longest, stock) for kind in rng.sample(kinds, count)]


class Stock(Value, frozen=True):
    """The words that instructions are about."""

    words: tuple[str, ...] = VOCABULARY
    shortest: int | None = None
    """Words of a list; None: as few as make sense."""

    def one(self, rng: Random) -> str:
        return rng.choice(self.words)

    def some(self, rng: Random, least: int, most: int) -> tuple[str, ...]:
        return tuple(rng.sample(self.words, rng.randint(least, max(least, min(most, MOST_GIVEN)))))

    def list(self, rng: Random, least: int, longest: int) -> tuple[str, ...]:
        return self.some(rng, least if self.shortest is None else self.shortest, longest)


class Maker(Protocol):
    """Makes a rule up; `longest` is how many words, lines or the like it may be about."""

    def __call__(self, rng: Random, longest: int, stock: Stock = ..., /) -> AnyRule: ...


ALL = Stock()


def _length(rng: Random, longest: int, _: Stock = ALL) -> AnyRule:
    how = rng.choice(("exactly", "exactly", "at least"))
    return kinds_of.Length(count=rng.randint(2, longest), how="at least" if how == "at least" else "exactly")


def _repeat(rng: Random, longest: int, stock: Stock = ALL) -> AnyRule:
    return kinds_of.Repeat(text=" ".join(stock.list(rng, 2, longest)))


def _times(rng: Random, longest: int, stock: Stock = ALL) -> AnyRule:
    return kinds_of.Times(given=stock.one(rng), count=rng.randint(2, max(2, min(longest, 5))))


def _count_letter(rng: Random, _: int, stock: Stock = ALL) -> AnyRule:
    word = stock.one(rng) + stock.one(rng)
    return kinds_of.CountLetter(given=word, letter=rng.choice(word))


KINDS: dict[str, Maker] = {
    "repeat": _repeat,
    "sort": lambda rng, longest, stock=ALL: kinds_of.Sort(given=stock.list(rng, 3, longest)),
    "reverse": lambda rng, longest, stock=ALL: kinds_of.Reverse(given=stock.list(rng, 3, longest)),
    "initials": lambda rng, longest, stock=ALL: kinds_of.Initials(given=stock.list(rng, 3, longest)),
    "count_letter": _count_letter,
    "json": lambda rng, _, stock=ALL: kinds_of.Json(keys=stock.some(rng, 1, 3)),
    "include": lambda rng, longest, stock=ALL: kinds_of.Include(given=stock.some(rng, 1, min(longest, 3))),
    "times": _times,
    "begin": lambda rng, _, stock=ALL: kinds_of.Begin(given=stock.one(rng)),
    "end": lambda rng, _, stock=ALL: kinds_of.End(given=stock.one(rng)),
    "length": _length,
    "avoid": lambda rng, _, __=ALL: kinds_of.Avoid(letter=rng.choice(VOWELS)),
    "lines": lambda rng, longest, _=ALL: kinds_of.Lines(count=rng.randint(2, min(longest, 6))),
    "bullets": lambda rng, longest, _=ALL: kinds_of.Bullets(count=rng.randint(2, min(longest, 6))),
    "case": lambda rng, _, __=ALL: kinds_of.Case(case=rng.choice(("upper", "lower"))),
    "quoted": lambda _, __, ___=ALL: kinds_of.Quoted(),
}
"""What makes a rule of each kind up."""
