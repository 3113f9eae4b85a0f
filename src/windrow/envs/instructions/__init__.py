"""Instructions to be followed, of kinds that a rule can check.

Promises: the instructions of one question can be followed together, and `solve` shows how; what only forbids, or
says how, never stands alone. The same set of instructions is the same problem, in whatever order it is said.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Protocol

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
    words: Annotated[int, Meta(ge=MOST_GIVEN, le=len(VOCABULARY))] = len(VOCABULARY)
    """Different words that instructions are about."""

    def __post_init__(self) -> None:
        if self.kinds:
            known_only("kinds", self.kinds, [*KINDS])
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
        words: int = len(VOCABULARY),
    ) -> None:
        chosen = {"fewest": fewest, "most": most, "longest": longest, "words": words}
        super().__init__(settled(Instructions, kinds=tuple(kinds), **chosen))

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
    words = VOCABULARY[: settings.words]
    return [KINDS[kind](rng, settings.longest, words) for kind in rng.sample(kinds, count)]


Words = tuple[str, ...]


class Maker(Protocol):
    """Makes a rule up, about words or lines of which there may be so many."""

    def __call__(self, rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule: ...


def _words(rng: Random, words: Words, least: int, most: int) -> Words:
    return tuple(rng.sample(words, rng.randint(least, max(least, min(most, MOST_GIVEN)))))


def _repeat(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Repeat(text=" ".join(_words(rng, words, 2, longest)))


def _sort(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Sort(given=_words(rng, words, 3, longest))


def _reverse(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Reverse(given=_words(rng, words, 3, longest))


def _initials(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Initials(given=_words(rng, words, 3, longest))


def _count_letter(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest  # one word, whatever the settings
    word = rng.choice(words) + rng.choice(words)
    return kinds_of.CountLetter(given=word, letter=rng.choice(word))


def _json(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest  # few keys, whatever the settings
    return kinds_of.Json(keys=_words(rng, words, 1, 3))


def _include(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Include(given=_words(rng, words, 1, min(longest, 3)))


def _times(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    return kinds_of.Times(given=rng.choice(words), count=rng.randint(2, max(2, min(longest, 5))))


def _begin(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest
    return kinds_of.Begin(given=rng.choice(words))


def _end(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest
    return kinds_of.End(given=rng.choice(words))


def _length(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del words  # any will do
    how = rng.choice(("exactly", "exactly", "at least"))
    return kinds_of.Length(count=rng.randint(2, longest), how="at least" if how == "at least" else "exactly")


def _avoid(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest, words
    return kinds_of.Avoid(letter=rng.choice(VOWELS))


def _lines(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del words
    return kinds_of.Lines(count=rng.randint(2, min(longest, 6)))


def _bullets(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del words
    return kinds_of.Bullets(count=rng.randint(2, min(longest, 6)))


def _case(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del longest, words
    return kinds_of.Case(case=rng.choice(("upper", "lower")))


def _quoted(rng: Random, longest: int, words: Words = VOCABULARY) -> AnyRule:
    del rng, longest, words
    return kinds_of.Quoted()


KINDS: dict[str, Maker] = {
    "repeat": _repeat,
    "sort": _sort,
    "reverse": _reverse,
    "initials": _initials,
    "count_letter": _count_letter,
    "json": _json,
    "include": _include,
    "times": _times,
    "begin": _begin,
    "end": _end,
    "length": _length,
    "avoid": _avoid,
    "lines": _lines,
    "bullets": _bullets,
    "case": _case,
    "quoted": _quoted,
}
"""What makes a rule of each kind up."""
