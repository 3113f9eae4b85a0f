"""What the shipped games have in common: settings, words that mean a direction, and a course of steps.

Promises: a setting that cannot work is refused by its name with the way out, whether it came with the class or with a
task; of several directions in one text the last one counts, and what stands in `<think>` does not; a game is played
once, ends once, and is never both terminated and truncated.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from windrow.config.kinds import wording
from windrow.envs.protocol import Step
from windrow.errors import ConfigError, EnvError
from windrow.nearest import did_you_mean

S = TypeVar("S", bound=msgspec.Struct)

Direction = Literal["up", "down", "left", "right"]

DIRECTIONS: tuple[Direction, ...] = ("up", "down", "left", "right")

ASK_FOR_DIRECTION = "say up, down, left or right"

_MEANING: dict[str, Direction] = {
    **{word: word for word in DIRECTIONS},
    "north": "up",
    "south": "down",
    "west": "left",
    "east": "right",
}
_LETTERS: dict[str, Direction] = {word[0]: word for word in DIRECTIONS}
_WORD = re.compile(rf"\b({'|'.join(_MEANING)})\b")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)


def settled(kind: type[S], game: str, given: Mapping[str, object]) -> S:
    """The settings of a game, from what was given of them."""
    kinds = _KINDS.get(kind) or _kinds(kind)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in kinds:
            raise ConfigError(f"unknown setting {game}.{name}{did_you_mean(name, kinds)}")
        try:
            fields[name] = msgspec.convert(value, kinds[name])
        except msgspec.ValidationError:
            raise ConfigError(f"{game}.{name} must be {wording(kinds[name])}, got {value!r}") from None
    return kind(**fields)


_KINDS: dict[type[msgspec.Struct], dict[str, Any]] = {}  # of games that were settled before


def _kinds(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each setting; finding that out takes longer than all the rest of a start."""
    return _KINDS.setdefault(kind, {field.name: field.type for field in msgspec.structs.fields(kind)})


def settled_for_task(settings: S, game: str, payload: object) -> S:
    """The same with what a task wants otherwise."""
    if payload is None:
        return settings
    if not isinstance(payload, dict):
        raise ConfigError(f"a task of {game} has settings as its payload, a dict or nothing, got {payload!r:.60}")
    return settled(type(settings), game, msgspec.structs.asdict(settings) | payload)


def spoken(action: str) -> str:
    """The part of a response that is meant: without thoughts, and inside the last `<answer>` if there is one."""
    aloud = _THOUGHT.sub(" ", action)
    marked = _ANSWER.findall(aloud)
    return str(marked[-1]) if marked else aloud


def direction(action: str) -> Direction | None:
    """The last direction in a response; None if there is none."""
    text = spoken(action).lower()
    found = _WORD.findall(text)
    return _MEANING[found[-1]] if found else _LETTERS.get(text.strip())


class Course:
    """The steps of one episode, counted."""

    def __init__(self, game: str) -> None:
        self._game = game
        self._left: int | None = None
        self._over = False

    @property
    def left(self) -> int:
        """Steps that may still be taken."""
        return self._left or 0

    def begin(self, steps: int) -> None:
        if self._left is not None:
            raise EnvError(f"{self._game} was started twice; make a new environment for every episode")
        self._left = steps

    def take(self) -> None:
        """One step; refused before the start and after the end."""
        if self._left is None:
            raise EnvError(f"{self._game} has not been started; call start first")
        if self._over:
            raise EnvError(f"{self._game} is over; make a new environment for the next episode")
        self._left -= 1

    def step(self, said: str, info: dict[str, Any], *, reward: float = 0.0, ended: bool = False) -> Step:
        """What the step led to; `info` is told at the end."""
        cut = not ended and self.left == 0
        self._over = ended or cut
        return Step(
            observation=f"{said}\nno steps left" if cut else said,
            reward=reward,
            terminated=ended,
            truncated=cut,
            info=info if self._over else {},
        )
