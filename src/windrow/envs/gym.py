"""Environments of Gymnasium that a policy can read and speak to.

Promises: what is shown is text: the observation itself, what the environment renders as text, or what `observe` makes
of it; an environment that has none of these is refused with the way out. What a policy says is looked through for an
action; if there is none the policy is told what it can say, and the environment does not move. Seeds, rewards and flags
are passed on; a seed means another problem in the held-out part. Gymnasium's own checker is off, because what it looks
at is checked here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any

from windrow.envs.plain import Reading, Render, apart, as_messages, name_of
from windrow.envs.protocol import Env, EnvFactory, Observation, Step
from windrow.errors import ConfigError
from windrow.text import ASK, Message
from windrow.trajectory import Task
from windrow.types import Value

if TYPE_CHECKING:
    import gymnasium

Names = Sequence[str] | Mapping[str, int]
"""What the actions are called: one name for each in their order, or some names and the action that each means."""

Parse = Callable[[str], Any]
"""The action in what a policy says; None, or a ValueError, if there is none."""

PAINTED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0m", re.DOTALL)
ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
LISTED = 50
"""More actions than this are not listed one by one."""


class Manner(Value, frozen=True, kw_only=True, gc=True):
    """How an environment is shown and spoken to."""

    prompt: str | None = None
    actions: Any = None  # Names | None
    parse: Any = None  # Parse | None
    observe: Any = None  # Render | None
    penalty: float = 0.0


def gymnasium_env(
    made: "str | Callable[..., gymnasium.Env[Any, Any]]",
    /,
    *,
    prompt: str | None = None,
    actions: Names | None = None,
    parse: Parse | None = None,
    observe: Render | None = None,
    penalty: float = 0.0,
    **kwargs: object,
) -> EnvFactory:
    """Makes environments of Gymnasium, by their id or with a function; other arguments are those of the environment.

    `prompt` stands before the first observation, instead of a list of the actions. `penalty` is the reward of saying
    nothing that is an action. A task's payload, if it is a dict, is handed to `reset` as its `options`.
    """
    if actions is not None and parse is not None:
        raise ConfigError("gymnasium_env takes actions= or parse=, not both")
    manner = Manner(prompt=prompt, actions=actions, parse=parse, observe=observe, penalty=penalty)
    return GymMaker(made, manner, kwargs)


class GymMaker:
    """Makes them, and remembers whether this kind has to be asked for text."""

    def __init__(self, made: Any, manner: Manner, kwargs: dict[str, Any]) -> None:  # noqa: ANN401 -- id or function
        self._made = made
        self._manner = manner
        self._kwargs = kwargs
        self._name = made if isinstance(made, str) else name_of(made)

    def __call__(self) -> Env:
        env = self._make()
        if self._manner.observe is None and not _speaks(env) and env.render_mode != "ansi":
            if "ansi" not in env.metadata.get("render_modes", ()) or "render_mode" in self._kwargs:
                raise ConfigError(self._no_text(env))
            env.close()
            self._kwargs = self._kwargs | {"render_mode": "ansi"}
            env = self._make()
        return GymEnv(env, self._name, self._manner)

    def __reduce__(self) -> "tuple[Any, ...]":
        return _arrived, (self._made, self._manner, self._kwargs)

    def _make(self) -> "gymnasium.Env[Any, Any]":
        if not isinstance(self._made, str):
            return self._made(**self._kwargs)  # type: ignore[no-any-return]  # a function of the user's own
        import gymnasium

        try:
            return gymnasium.make(self._made, disable_env_checker=True, **self._kwargs)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {self._made!r}: {error}") from error

    def _no_text(self, env: "gymnasium.Env[Any, Any]") -> str:
        modes = ", ".join(env.metadata.get("render_modes", ())) or "none"
        return (
            f"{self._name} shows {env.observation_space!s:.80}, which is no text, and cannot render text (its render "
            f"modes: {modes}); give observe= that turns an observation into words"
        )


class GymEnv:
    """One environment of Gymnasium, for one episode."""

    def __init__(self, env: "gymnasium.Env[Any, Any]", name: str, manner: Manner) -> None:
        self.inner = env
        """The environment itself."""
        self._manner = manner
        self._reading = Reading(name, manner.observe or (None if _speaks(env) else self._rendered))
        self._names = _names(env, name, manner)
        self._pattern = _pattern(self._names)
        if self._names:
            self.wander = self._wander

    async def start(self, task: Task) -> Observation:
        options = task.payload if isinstance(task.payload, dict) else None
        first = self._reading.first(self.inner.reset(seed=apart(task), options=options))
        before = self._possible() if self._manner.prompt is None else self._manner.prompt
        if not before:
            return first
        return f"{before}\n\n{first}" if isinstance(first, str) else (Message(ASK, before), *as_messages(first))

    async def step(self, action: str) -> Step:
        try:
            meant = self._meant(action)
        except ValueError:
            meant = None
        if meant is None or not self.inner.action_space.contains(meant):
            way = self._possible() or "say it as it was told at first"
            return Step(observation=f"this is no action; {way}", reward=self._manner.penalty)
        return self._reading.step(self.inner.step(meant))

    async def close(self) -> None:
        self.inner.close()

    def _wander(self, rng: Random) -> str:
        return rng.choice([*self._names])

    def _meant(self, action: str) -> Any:  # noqa: ANN401 -- whatever the environment takes
        if self._manner.parse is not None:
            return self._manner.parse(action)
        if not self._names:
            return action
        said = self._pattern.findall(action)
        return self._names[said[-1].lower()] if said else None

    def _possible(self) -> str:
        if not self._names:
            return ""
        names = [*self._names]
        some = names if len(names) <= LISTED else [*names[:3], "…", names[-1]]
        return f"say one of: {', '.join(some)}"

    def _rendered(self, _: object) -> object:
        said = self.inner.render()
        return without_paint(said) if isinstance(said, str) else said


def _arrived(made: Any, manner: Manner, kwargs: dict[str, Any]) -> GymMaker:  # noqa: ANN401 -- id or function
    """A maker in another process, which imports what is slow once for all that it will make there."""
    import_module("gymnasium")
    return GymMaker(made, manner, kwargs)


def without_paint(text: str) -> str:
    """Text for a terminal as plain text; what was painted is put in words, because it often is what matters.

    A painted ground becomes brackets, painted letters are followed by their colour.
    """
    return ESCAPE.sub("", PAINTED.sub(_in_words, text))


def _in_words(painted: "re.Match[str]") -> str:
    codes = [int(code) for code in painted[1].split(";") if code]
    if any(40 <= code <= 47 for code in codes):
        return f"[{painted[2]}]"
    colour = next((COLOURS[code - 30] for code in codes if 30 <= code <= 37), "")
    return f"{painted[2]}({colour})" if colour else painted[2]


def _speaks(env: "gymnasium.Env[Any, Any]") -> bool:
    """Its observations are text already."""
    import gymnasium

    return isinstance(env.observation_space, gymnasium.spaces.Text)


def _names(env: "gymnasium.Env[Any, Any]", name: str, manner: Manner) -> dict[str, int]:
    """What its actions are called, in lower case; none if they are read in another way."""
    import gymnasium

    space = env.action_space
    if manner.parse is not None:
        return {}
    if isinstance(space, gymnasium.spaces.Text) and manner.actions is None:
        return {}
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ConfigError(f"{name} takes {space!s:.80}, which nobody can name; give parse= that reads an action")
    numbers = range(int(space.start), int(space.start + space.n))
    given: Names = [str(number) for number in numbers] if manner.actions is None else manner.actions
    if isinstance(given, Mapping):
        wrong = [each for each, number in given.items() if number not in numbers]
        if wrong:
            raise ConfigError(
                f"{name} has no action {given[wrong[0]]} for {wrong[0]!r}; it has {numbers[0]} to {numbers[-1]}"
            )
        return {each.lower(): number for each, number in given.items()}
    if len(given) != len(numbers):
        raise ConfigError(f"{name} has {len(numbers)} actions and actions= has {len(given)} names; give as many")
    return {each.lower(): number for each, number in zip(given, numbers, strict=True)}


def _pattern(names: Mapping[str, int]) -> "re.Pattern[str]":
    """Finds whole names, the longest that fits; a number is no part of another one."""
    longest_first = sorted(names, key=len, reverse=True)
    whole = "|".join(re.escape(name) for name in longest_first)
    return re.compile(rf"(?<![\w.-])(?:{whole})(?!\w|\.\d)", re.IGNORECASE)
