"""Who plays: the environment's own solution, a player without a plan, one that says strange things, one that repeats.

The player without a plan asks the environment what makes sense (`wander`); where it does not say, the player makes
something up from what it was shown.
"""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from windrow.envs.protocol import Env, Solvable, Wanderable

STRANGE: tuple[str, ...] = (
    "",
    " \n\t ",
    "0",
    "-1",
    "9" * 5000,
    "1e999",
    "nan",
    "null",
    "{}",
    '{"name": null, "arguments": []}',
    "<tool_call>{</tool_call>",
    '<tool_call>{"name": "nothing", "arguments": {"x": 1}}</tool_call>',
    "<tool_call></tool_call>",
    "```python\nraise SystemExit\n```",
    "\\boxed{",
    "\x00\x1b[2J",
    "日本語 😀 ١٢",
    "a " * 3000,
    "(" * 3000,
    "search[", "click[]",
    "%s %d {0} {x}",
)  # fmt: skip
"""What a model may well say before it has learnt better."""


class Player(Protocol):
    """Says what comes next."""

    name: str

    def next(self, env: Env, shown: str, turn: int) -> object: ...


class Solver:
    """Plays as the environment says that a perfect player does."""

    name = "solve"

    def next(self, env: Env, shown: str, turn: int) -> object:
        del shown, turn
        assert isinstance(env, Solvable)
        return env.solve()


class Wanderer:
    """Has no plan."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"wander {seed}")

    def next(self, env: Env, shown: str, turn: int) -> object:
        del turn
        return env.wander(self._rng) if isinstance(env, Wanderable) else made_up(shown, self._rng)


class Stranger:
    """Says strange things, another first each time."""

    name = "strange"

    def __init__(self, first: int) -> None:
        self._first = first

    def next(self, env: Env, shown: str, turn: int) -> object:
        del env, shown
        return STRANGE[(self._first + turn) % len(STRANGE)]


class Repeater:
    """Says again what was said before."""

    name = "repeat"

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def next(self, env: Env, shown: str, turn: int) -> object:
        del env, shown
        return self._actions[turn]


def made_up(shown: str, rng: Random) -> str:
    """Some text that may have to do with what was shown."""
    words: list[str] = re.findall(r"\w+", shown)[-200:] or ["hello"]
    ways: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(words),
        lambda: " ".join(rng.choice(words) for _ in range(rng.randint(2, 6))),
        lambda: str(rng.randint(0, 100)),
        lambda: "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(rng.randint(1, 20))),
    )
    return rng.choice(ways)()
