"""What was shown, said and given in an episode, so that it can be scored, and played again and compared."""

import hashlib
import itertools
from typing import Any, Literal

from windrow.checking.looks import text_of
from windrow.envs.plain import as_messages
from windrow.envs.protocol import Observation, Step
from windrow.text import Message
from windrow.trajectory import Task

Ending = Literal["terminated", "truncated", "cut", "broken"]
"""The environment said so (two ways); it went on for too long; something went wrong."""

WIDTH = 60
"""Characters that show a difference."""


class Played:
    """An episode so far."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen: list[tuple[Message, ...]] = []
        self.actions: list[str] = []
        self.rewards: list[float] = []
        self.info: dict[str, Any] = {}
        self.ending: Ending | None = None
        self.shown = ""
        """The text of the last observation."""
        self._flags: list[str] = []

    @property
    def score(self) -> float:
        """The sum of its rewards."""
        return sum(self.rewards)

    def see(self, observation: Observation) -> None:
        """The environment shows something."""
        self.seen.append(as_messages(observation))
        self.shown = text_of(observation)

    def take(self, action: str, step: Step) -> None:
        """A turn is over."""
        self.actions.append(action)
        self.see(step.observation)
        self.rewards.append(float(step.reward))
        self._flags.append((", terminated" if step.terminated else "") + (", truncated" if step.truncated else ""))
        self.info = step.info
        if step.terminated or step.truncated:
            self.ending = "terminated" if step.terminated else "truncated"

    def trace(self) -> list[str]:
        """What it showed and gave, turn by turn, without what was said."""
        shown = [_told(messages) for messages in self.seen]
        given = [f"reward {reward:g}{flags}" for reward, flags in zip(self.rewards, self._flags, strict=True)]
        return shown[:1] + [f"{said}, {gave}" for said, gave in zip(shown[1:], given, strict=True)]

    def key(self) -> str:
        """What makes it this problem and no other, as far as its player saw."""
        told = "\0".join([*self.trace(), *self.actions])
        return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def first_difference(one: list[str], other: list[str]) -> str:
    """In words, where two traces part; empty if they do not."""
    for turn, (was, now) in enumerate(itertools.zip_longest(one, other, fillvalue="nothing more")):
        if was != now:
            at = "at the start" if turn == 0 else f"after turn {turn - 1}"
            return f"{at} it was {_around(was, now)!r}, then {_around(now, was)!r}"
    return ""


def _around(text: str, other: str) -> str:
    """The part of a text where it begins to differ from another."""
    same = next((place for place, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    begin = max(0, same - WIDTH // 2)
    return ("…" if begin else "") + text[begin : begin + WIDTH]


def _told(messages: tuple[Message, ...]) -> str:
    plain = len(messages) == 1 and messages[0].role == "user"
    return messages[0].content if plain else " ".join(f"<{m.role} {m.name}> {m.content}" for m in messages)
