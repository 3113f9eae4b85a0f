"""Instructions that a program can check, each a small value.

Promises: every rule says itself in words (`words`), knows whether a text keeps it (`holds`), and can change a text so
that it does (`mend`), on its own at least; together with others that may fail, which is why whoever combines rules
checks them all. Case and punctuation matter only where a rule is about them. No rule takes long on any text.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from windrow.types import Meta, Value

FILLERS = (
    "sun",
    "day",
    "old",
    "cup",
    "big",
    "red",
    "in",
    "my",
    "hot",
    "lamp",
    "up",
    "kind",
    "fox",
    "we",
    "joy",
    "quiet",
)
"""Words that a text is filled up with; for every letter there are some without it."""
BULLET = "- "

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_FENCE = "```"

Count = Annotated[int, Meta(ge=1, le=200)]
Word = Annotated[str, Meta(min_length=1, max_length=40, pattern=r"^[^\W_]+$")]
Letter = Annotated[str, Meta(pattern="^[a-z]$")]
Words = Annotated[tuple[Word, ...], Meta(min_length=1, max_length=50)]


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case, without what stands around them."""
    return [word.lower() for word in _WORD.findall(text)]


class Rule(Value, frozen=True, kw_only=True, tag_field="kind"):
    """One instruction."""

    stage: ClassVar[int] = 5
    """Rules are mended in the order of their stages."""
    alone: ClassVar[bool] = True
    """It says what to write; one that only forbids or says how makes no sense alone."""

    def words(self) -> str:
        """Itself, in words."""
        raise NotImplementedError

    def holds(self, text: str) -> bool:
        """Whether a text keeps it."""
        raise NotImplementedError

    def mend(self, text: str) -> str:
        """A text that keeps it, as much like this one as may be."""
        raise NotImplementedError


# what to write


class Repeat(Rule, frozen=True, kw_only=True, tag="repeat"):
    """Say something again."""

    stage = 0
    text: Annotated[str, Meta(min_length=1)]

    def words(self) -> str:
        return f'Repeat this: "{self.text}"'

    def holds(self, text: str) -> bool:
        return words_of(text) == words_of(self.text)

    def mend(self, text: str) -> str:  # noqa: ARG002 -- there is one such text
        return self.text


class Sort(Rule, frozen=True, kw_only=True, tag="sort"):
    """Put words in the order of the alphabet."""

    stage = 0
    given: Words

    def words(self) -> str:
        return f"Sort these words by the alphabet: {' '.join(self.given)}."

    def holds(self, text: str) -> bool:
        return words_of(text) == sorted(words_of(" ".join(self.given)))

    def mend(self, text: str) -> str:  # noqa: ARG002 -- as above
        return " ".join(sorted(self.given))


class Reverse(Rule, frozen=True, kw_only=True, tag="reverse"):
    """Put words in reverse order."""

    stage = 0
    given: Words

    def words(self) -> str:
        return f"Write these words in reverse order: {' '.join(self.given)}."

    def holds(self, text: str) -> bool:
        return words_of(text) == words_of(" ".join(self.given))[::-1]

    def mend(self, text: str) -> str:  # noqa: ARG002 -- as above
        return " ".join(self.given[::-1])


class Initials(Rule, frozen=True, kw_only=True, tag="initials"):
    """Write the first letters of words, as one word."""

    stage = 0
    given: Words

    def words(self) -> str:
        return f"Write the first letters of these words as one word: {' '.join(self.given)}."

    def holds(self, text: str) -> bool:
        return words_of(text) == ["".join(word[0].lower() for word in self.given)]

    def mend(self, text: str) -> str:  # noqa: ARG002 -- as above
        return "".join(word[0].lower() for word in self.given)


class CountLetter(Rule, frozen=True, kw_only=True, tag="count_letter"):
    """Say how often a letter occurs in a word."""

    stage = 0
    letter: Letter
    given: Word

    def words(self) -> str:
        return f'How many times is the letter {self.letter} in "{self.given}"? Say only the number.'

    def holds(self, text: str) -> bool:
        return words_of(text) == [self._count()]

    def mend(self, text: str) -> str:  # noqa: ARG002 -- as above
        return self._count()

    def _count(self) -> str:
        return str(self.given.lower().count(self.letter))


class Json(Rule, frozen=True, kw_only=True, tag="json"):
    """Write a JSON object with just these keys."""

    stage = 0
    keys: Words

    def words(self) -> str:
        return f"Write a JSON object with just the keys {_listed(self.keys)}."

    def holds(self, text: str) -> bool:
        bare = text.strip()
        if bare.startswith(_FENCE) and bare.endswith(_FENCE):
            bare = bare.strip("`").removeprefix("json")
        try:
            said: Any = json.loads(bare)
        except (ValueError, RecursionError):
            return False
        return isinstance(said, dict) and sorted(said) == sorted(self.keys)

    def mend(self, text: str) -> str:  # noqa: ARG002 -- any values will do
        return json.dumps(dict.fromkeys(self.keys, 1))


# how to write it


class Include(Rule, frozen=True, kw_only=True, tag="include"):
    """Use some words."""

    stage = 1
    given: Words

    def words(self) -> str:
        return f"Use the word{'s' if len(self.given) > 1 else ''} {_listed(self.given)}."

    def holds(self, text: str) -> bool:
        return set(words_of(" ".join(self.given))) <= set(words_of(text))

    def mend(self, text: str) -> str:
        said = words_of(text)
        return " ".join([text, *(word for word in self.given if word.lower() not in said)]).strip()


class Times(Rule, frozen=True, kw_only=True, tag="times"):
    """Use a word so many times."""

    stage = 2
    given: Word
    count: Count

    def words(self) -> str:
        return f'Use the word "{self.given}" exactly {_times(self.count)}.'

    def holds(self, text: str) -> bool:
        return words_of(text).count(self.given.lower()) == self.count

    def mend(self, text: str) -> str:
        others = [word for word in text.split() if self.given.lower() not in words_of(word)]
        return " ".join([*others, *[self.given] * self.count])


class Begin(Rule, frozen=True, kw_only=True, tag="begin"):
    """Begin with a word."""

    stage = 3
    given: Word

    def words(self) -> str:
        return f'Begin with the word "{self.given}".'

    def holds(self, text: str) -> bool:
        return words_of(text)[:1] == [self.given.lower()]

    def mend(self, text: str) -> str:
        return text if self.holds(text) else f"{self.given} {text}".strip()


class End(Rule, frozen=True, kw_only=True, tag="end"):
    """End with a word."""

    stage = 4
    given: Word

    def words(self) -> str:
        return f'End with the word "{self.given}".'

    def holds(self, text: str) -> bool:
        return words_of(text)[-1:] == [self.given.lower()]

    def mend(self, text: str) -> str:
        return text if self.holds(text) else f"{text} {self.given}".strip()


class Length(Rule, frozen=True, kw_only=True, tag="length"):
    """Write so many words."""

    stage = 5
    count: Count
    how: Literal["exactly", "at least", "at most"] = "exactly"

    def words(self) -> str:
        return f"Write {self.how} {self.count} word{'s' if self.count > 1 else ''}."

    def holds(self, text: str) -> bool:
        count = len(words_of(text))
        match self.how:
            case "exactly":
                return count == self.count
            case "at least":
                return count >= self.count
            case "at most":
                return 0 < count <= self.count

    def mend(self, text: str) -> str:
        if self.holds(text):
            return text
        said = text.split()
        missing = self.count - len(words_of(text))
        if missing < 0:
            return " ".join([*said[:1], *said[1 - self.count :]] if self.count > 1 else said[:1])
        return " ".join([*said[:1], *_fill(missing), *said[1:]])  # in the middle, where no rule looks


class Avoid(Rule, frozen=True, kw_only=True, tag="avoid"):
    """Do without a letter."""

    stage = 6
    alone = False
    letter: Letter

    def words(self) -> str:
        return f"Do not use the letter {self.letter}."

    def holds(self, text: str) -> bool:
        return bool(text.strip()) and self.letter not in text.lower()

    def mend(self, text: str) -> str:
        spare = next(word for word in FILLERS if self.letter not in word)
        return " ".join(spare if self.letter in word.lower() else word for word in text.split()) or spare


class Lines(Rule, frozen=True, kw_only=True, tag="lines"):
    """Write so many lines."""

    stage = 7
    count: Annotated[int, Meta(ge=2, le=50)]

    def words(self) -> str:
        return f"Write exactly {self.count} lines."

    def holds(self, text: str) -> bool:
        lines = text.strip().split("\n")
        return len(lines) == self.count and all(words_of(line) for line in lines)

    def mend(self, text: str) -> str:
        return "\n".join(_in_lines(text, self.count))


class Bullets(Rule, frozen=True, kw_only=True, tag="bullets"):
    """Write a list of so many bullets."""

    stage = 7
    count: Annotated[int, Meta(ge=1, le=50)]

    def words(self) -> str:
        return f'Write a list of {self.count} lines, each of which begins with "{BULLET}".'

    def holds(self, text: str) -> bool:
        lines = text.strip().split("\n")
        return len(lines) == self.count and all(line.startswith(BULLET) and words_of(line) for line in lines)

    def mend(self, text: str) -> str:
        bare = text.replace(BULLET, " ")
        return "\n".join(f"{BULLET}{line}" for line in _in_lines(bare, self.count))


class Case(Rule, frozen=True, kw_only=True, tag="case"):
    """Write in upper or in lower case."""

    stage = 8
    alone = False
    case: Literal["upper", "lower"]

    def words(self) -> str:
        return f"Write everything in {self.case} case."

    def holds(self, text: str) -> bool:
        return text == self._cased(text) and any(letter.isalpha() for letter in text)

    def mend(self, text: str) -> str:
        return self._cased(text) if words_of(text) else self._cased(FILLERS[0])

    def _cased(self, text: str) -> str:
        return text.upper() if self.case == "upper" else text.lower()


class Quoted(Rule, frozen=True, kw_only=True, tag="quoted"):
    """Put everything between quotation marks."""

    stage = 9
    alone = False

    def words(self) -> str:
        return "Put all of it between double quotation marks."

    def holds(self, text: str) -> bool:
        said = text.strip()
        return len(said) > 2 and said[0] == said[-1] == '"' and '"' not in said[1:-1]

    def mend(self, text: str) -> str:
        return '"' + (text.replace('"', "").strip() or FILLERS[0]) + '"'


AnyRule = (
    Repeat | Sort | Reverse | Initials | CountLetter | Json | Include | Times | Begin | End | Length | Avoid | Lines
    | Bullets | Case | Quoted
)  # fmt: skip


def read_rules(written: object) -> list[AnyRule]:
    """Rules from plain data, as `to_plain` wrote them or as a dataset has them; raises ValueError."""
    try:
        return msgspec.convert(written, list[AnyRule])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def to_plain(rules: Sequence[AnyRule]) -> list[dict[str, Any]]:
    """Rules as data that can be written down."""
    plain: list[dict[str, Any]] = msgspec.to_builtins(list(rules))
    return plain


def mended(text: str, rules: Sequence[AnyRule]) -> str:
    """A text after each rule has had its way with it."""
    for rule in sorted(rules, key=lambda rule: rule.stage):
        text = rule.mend(text)
    return text


def _listed(words: Sequence[str]) -> str:
    quoted = [f'"{word}"' for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _fill(count: int) -> list[str]:
    return [FILLERS[place % len(FILLERS)] for place in range(count)]


def _in_lines(text: str, count: int) -> list[str]:
    """The words of a text in so many lines, none of them empty."""
    said = text.split()
    said = [*said[:1], *_fill(count - len(said)), *said[1:]]
    size, longer = divmod(len(said), count)
    ends = [size * place + min(place, longer) for place in range(count + 1)]
    return [" ".join(said[begin:end]) for begin, end in pairwise(ends)]
