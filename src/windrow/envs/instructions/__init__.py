"""Instructions to be followed, of kinds that a rule can check.

Promises: the instructions of one question can be followed together, and `solve` shows how; what only forbids, or
says how, never stands alone. The same set of instructions is the same problem, in whatever order it is said.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Any

from windrow.envs.instructions import rules as kinds_of
from windrow.envs.instructions.rules import FILLERS, AnyRule, mended, read_rules, to_plain
from windrow.envs.questions import QUESTION, Question, QuestionEnv, known_only, settled, text_of
from windrow.errors import ConfigError, EnvError
from windrow.types import Meta, Value, to_json

VOCABULARY = (
    "apple", "bird", "blue", "boat", "bread", "cat", "cloud", "dog", "door", "fire", "fish", "garden", "gold", "grass",
    "green", "hill", "home", "house", "king", "lake", "leaf", "light", "milk", "moon", "mouse", "music", "night",
    "ocean", "paper", "rain", "river", "road", "salt", "silver", "snow", "song", "star", "stone", "summer", "table",
    "tiger", "tree", "water", "wind", "winter", "wolf", "wood", "yellow",
)  # fmt: skip
VOWELS = "aeiou"
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

    def __post_init__(self) -> None:
        if self.kinds:
            known_only("kinds", self.kinds, [*KINDS])
        if self.fewest > self.most:
            raise ConfigError(f"fewest is {self.fewest} and most {self.most}; fewest must not be above most")


class InstructionEnv(QuestionEnv[Instructions]):
    """Some instructions, one text that follows them."""

    Settings = Instructions

    def __init__(self, *, kinds: Sequence[str] = (), fewest: int = 1, most: int = 2, longest: int = 8) -> None:
        super().__init__(settled(Instructions, kinds=tuple(kinds), fewest=fewest, most=most, longest=longest))

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
    return [KINDS[kind](rng, settings.longest) for kind in rng.sample(kinds, count)]


def _words(rng: Random, least: int, most: int) -> tuple[str, ...]:
    return tuple(rng.sample(VOCABULARY, rng.randint(least, max(least, min(most, 6)))))


def _length(rng: Random, longest: int) -> AnyRule:
    how = rng.choice(("exactly", "exactly", "at least"))
    return kinds_of.Length(count=rng.randint(2, longest), how="at least" if how == "at least" else "exactly")


def _repeat(rng: Random, longest: int) -> AnyRule:
    return kinds_of.Repeat(text=" ".join(_words(rng, 2, longest)))


def _times(rng: Random, longest: int) -> AnyRule:
    return kinds_of.Times(given=rng.choice(VOCABULARY), count=rng.randint(2, max(2, min(longest, 5))))


def _count_letter(rng: Random, longest: int) -> AnyRule:
    del longest  # one word, whatever the settings
    word = rng.choice(VOCABULARY) + rng.choice(VOCABULARY)
    return kinds_of.CountLetter(given=word, letter=rng.choice(word))


KINDS: dict[str, Callable[[Random, int], AnyRule]] = {
    "repeat": _repeat,
    "sort": lambda rng, longest: kinds_of.Sort(given=_words(rng, 3, longest)),
    "reverse": lambda rng, longest: kinds_of.Reverse(given=_words(rng, 3, longest)),
    "initials": lambda rng, longest: kinds_of.Initials(given=_words(rng, 3, longest)),
    "count_letter": _count_letter,
    "json": lambda rng, _: kinds_of.Json(keys=_words(rng, 1, 3)),
    "include": lambda rng, longest: kinds_of.Include(given=_words(rng, 1, min(longest, 3))),
    "times": _times,
    "begin": lambda rng, _: kinds_of.Begin(given=rng.choice(VOCABULARY)),
    "end": lambda rng, _: kinds_of.End(given=rng.choice(VOCABULARY)),
    "length": _length,
    "avoid": lambda rng, _: kinds_of.Avoid(letter=rng.choice(VOWELS)),
    "lines": lambda rng, longest: kinds_of.Lines(count=rng.randint(2, min(longest, 6))),
    "bullets": lambda rng, longest: kinds_of.Bullets(count=rng.randint(2, min(longest, 6))),
    "case": lambda rng, _: kinds_of.Case(case=rng.choice(("upper", "lower"))),
    "quoted": lambda _, __: kinds_of.Quoted(),
}
"""What makes a rule of each kind up."""
