"""Ordinary classes as environments: anything with `reset` and `step`, synchronous or not.

Promises: what such a class returns is read in the usual ways and in no other; what cannot be read is an `EnvError` that
says what came and what would do. What `reset` wants to know is decided by the names of its parameters.
It does not make a blocking class harmless: one that waits or computes for long belongs into a thread or a process.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import numpy as np

from windrow.envs.protocol import Briefing, EnvFactory, Observation, Rewritten, Solvable, Step, Wanderable
from windrow.errors import ConfigError, EnvError
from windrow.text import ASK, Message
from windrow.trajectory import Task

Render = Callable[[Any], Any]
"""Turns what a class calls an observation into one that a policy can read."""

HELD_OUT = 2**31
"""How much further the seeds of held-out tasks are, for environments that know nothing of parts."""

TOLD = ("task", "seed", "payload", "split")
"""What a `reset` may ask for by name."""


@runtime_checkable
class Playable(Protocol):
    """What a class needs to be adapted."""

    def reset(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: ANN401 -- the ways of writing it differ

    def step(self, action: str) -> Any: ...  # noqa: ANN401 -- as above


@runtime_checkable
class Closable(Protocol):
    """What a class may have as well."""

    def close(self) -> Any: ...  # noqa: ANN401 -- whatever it returns is awaited if it can be


def plain(make: Callable[..., Any], /, *, render: Render | None = None, **kwargs: object) -> EnvFactory:
    """Makes environments of a class with `reset` and `step`; other arguments are those of the class.

    `reset` is told what it has parameters for, by their names: `task`, `seed`, `payload`, `split`; one that takes
    `**kwargs` gets the seed. It returns an observation, or a pair of one and a dict. `step` takes the action's text and
    returns `(observation, reward, done)`, `(observation, reward, done, info)`, Gymnasium's five, or a `Step`.
    """
    if not callable(make):
        raise ConfigError(f"plain({make!r:.60}) needs a class or a function that makes an object")
    if isinstance(make, type) and not issubclass(make, Playable):
        raise ConfigError(_not_playable(make.__name__))
    return partial(PlainEnv, partial(make, **kwargs) if kwargs else make, render)


class PlainEnv:
    """One object of such a class, for one episode."""

    def __init__(self, make: Callable[[], Any], render: Render | None = None) -> None:
        self.inner: Any = make()
        """The object itself."""
        self._name = type(self.inner).__name__
        self._reading = Reading(self._name, render)
        if not isinstance(self.inner, Playable):
            raise ConfigError(_not_playable(self._name))
        lend_skills(self.inner, self)

    async def start(self, task: Task) -> Observation:
        return self._reading.first(await _awaited(self.inner.reset(**_wanted(self.inner.reset, task, self._name))))

    async def step(self, action: str) -> Step:
        return self._reading.step(await _awaited(self.inner.step(action)))

    async def close(self) -> None:
        if isinstance(self.inner, Closable):
            await _awaited(self.inner.close())


class Reading:
    """Reads what a class in Gymnasium's manner returns, one episode long."""

    def __init__(self, name: str, render: Render | None = None) -> None:
        self._name = name
        self._render = render
        self._info: dict[str, Any] = {}  # what `reset` said; steps may overrule it

    def first(self, said: object) -> Observation:
        """What `reset` returned: an observation, or one and a dict."""
        match said:
            case (observation, dict() as info) if isinstance(said, tuple):
                self._info = info
                return self._shown(observation, "reset")
            case _:
                return self._shown(said, "reset")

    def step(self, said: object) -> Step:
        """What `step` returned, in any of the usual ways."""
        if isinstance(said, Step):
            return said
        observation, reward, terminated, truncated, info = self._parts(said)
        over = self._flag(terminated, "terminated") | self._flag(truncated, "truncated")
        return Step(
            observation="" if over and observation is None else self._shown(observation, "step"),
            reward=as_number(reward, f"{self._name}.step"),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=self._info | self._told(info),
        )

    def _shown(self, observation: object, whose: str) -> Observation:
        return as_observation(observation if self._render is None else self._render(observation), self._name, whose)

    def _parts(self, said: object) -> tuple[object, object, object, object, object]:
        match said:
            case (observation, reward, done) if isinstance(said, tuple):
                return observation, reward, done, False, {}
            case (observation, reward, done, info) if isinstance(said, tuple):
                return observation, reward, done, False, info
            case (observation, reward, terminated, truncated, info) if isinstance(said, tuple):
                return observation, reward, terminated, truncated, info
            case _:
                pass
        what = f"a tuple of {len(said)}" if isinstance(said, tuple) else f"{said!r:.60}"
        raise EnvError(
            f"{self._name}.step returned {what}; return (observation, reward, done), with info as a fourth, "
            f"Gymnasium's (observation, reward, terminated, truncated, info), or a Step"
        )

    def _flag(self, value: object, which: str) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise EnvError(f"{self._name}.step returned {value!r:.60} for {which}; return True or False")
        return bool(value)

    def _told(self, info: object) -> dict[str, Any]:
        if not isinstance(info, Mapping):
            raise EnvError(f"{self._name}.step returned {info!r:.60} for info; return a dict")
        return dict(info)


def lend_skills(inner: object, outer: Any) -> None:  # noqa: ANN401 -- it gets what the inner one has
    """Let what stands around an environment prove itself as that one does, if that one can."""
    if isinstance(inner, Solvable):
        outer.solve = inner.solve
    if isinstance(inner, Wanderable):
        outer.wander = inner.wander


def as_observation(value: object, who: str, whose: str) -> Observation:
    """An observation, if it is one."""
    match value:
        case str() | Message() | Rewritten() | Briefing():
            return value
        case [*items]:
            messages = [item for item in items if isinstance(item, Message)]
            if messages and len(messages) == len(items):
                return tuple(messages)
        case _:
            pass
    raise EnvError(
        f"{who}.{whose} shows {value!r:.60}; show text, a Message or a list of them, or turn it into text with render="
    )


def as_messages(observation: Observation) -> tuple[Message, ...]:
    """The messages of an observation; text is the user's."""
    match observation:
        case str():
            return (Message(ASK, observation),)
        case Message():
            return (observation,)
        case Rewritten(messages=messages) | Briefing(messages=messages):
            return tuple(messages)
        case _:
            return tuple(observation)


def name_of(thing: Callable[..., Any]) -> str:
    """What a function, a class or an object that can be called is called itself."""
    while isinstance(thing, partial):
        thing = thing.func
    return thing.__qualname__ if inspect.isroutine(thing) or isinstance(thing, type) else type(thing).__name__


def apart(task: Task) -> int:
    """The seed for an environment that knows nothing of parts, which a held-out task does not share."""
    return task.seed if task.split == "train" else task.seed + HELD_OUT


def as_number(value: object, who: str) -> float:
    """A reward as a number; numpy's are numbers too."""
    if not isinstance(value, Real | np.bool_):
        raise EnvError(f"{who} returned {value!r:.60} as its reward; return a number")
    return float(value)


def _not_playable(name: str) -> str:
    return f"{name} has no reset and step; write both, or start, step and close, which need no adapter"


async def _awaited(value: Any) -> Any:  # noqa: ANN401 -- a foreign class returns what it likes
    return await value if inspect.isawaitable(value) else value


def _wanted(reset: Callable[..., Any], task: Task, name: str) -> dict[str, Any]:
    """What a `reset` has parameters for."""
    told = {"task": task, "seed": task.seed, "payload": task.payload, "split": task.split}
    given: dict[str, Any] = {}
    for parameter in inspect.signature(reset).parameters.values():
        match parameter.kind, parameter.name:
            case inspect.Parameter.VAR_KEYWORD, _:
                given.setdefault("seed", task.seed)
            case inspect.Parameter.VAR_POSITIONAL, _:
                continue
            case _, known if known in told:
                given[known] = told[known]
            case _, unknown if parameter.default is inspect.Parameter.empty:
                raise ConfigError(f"{name}.reset wants {unknown!r}; it can be told {', '.join(TOLD)}")
    return given
