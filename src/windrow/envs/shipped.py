"""The environments that come with Windrow, by the name a configuration gives them.

One is loaded when it is first asked for, because some need packages of their own.
"""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

from windrow.envs.protocol import EnvFactory
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.types import Value

Kind = Literal["multi-turn", "tools", "single-turn"]


class Shipped(Value, frozen=True, kw_only=True, gc=True):
    """One of them."""

    name: str
    kind: Kind
    tag: str
    """The domain it stands for in a mixture."""
    about: str
    """One line for people."""
    load: Callable[[], Callable[..., Any]]
    """Imports its class."""
    reward: str = ""
    """The reward that scores it (`windrow.rewards.shipped`); empty if its own rewards are the score."""
    preload: tuple[str, ...] = ()
    """Modules that it imports late, and that its processes should have from the beginning."""


def _guess() -> Callable[..., Any]:
    from windrow.envs.guess import GuessEnv

    return GuessEnv


def _frozen_lake() -> Callable[..., Any]:
    from windrow.envs.frozen_lake import FrozenLakeEnv, ice

    ice()  # if gymnasium is missing it is said before anything is played
    return FrozenLakeEnv


def _sokoban() -> Callable[..., Any]:
    from windrow.envs.sokoban import SokobanEnv

    return SokobanEnv


def _shop() -> Callable[..., Any]:
    from windrow.envs.shop import ShopEnv

    return ShopEnv


def _guess_tools() -> Callable[..., Any]:
    from windrow.envs.guess_tools import GuessToolsEnv

    return GuessToolsEnv


def _arithmetic() -> Callable[..., Any]:
    from windrow.envs.arithmetic import ArithmeticEnv

    return ArithmeticEnv


def _word_problems() -> Callable[..., Any]:
    from windrow.envs.word_problems import WordProblemEnv

    return WordProblemEnv


def _programs() -> Callable[..., Any]:
    from windrow.envs.programs import ProgramEnv

    return ProgramEnv


def _instructions() -> Callable[..., Any]:
    from windrow.envs.instructions import InstructionEnv

    return InstructionEnv


SHIPPED: dict[str, Shipped] = {
    each.name: each
    for each in (
        Shipped(name="guess", kind="multi-turn", tag="guess", about="a number from 0 to 9, with hints", load=_guess),
        Shipped(
            name="frozen_lake",
            kind="multi-turn",
            tag="frozen_lake",
            about="over the ice to the goal, on random maps (Gymnasium's FrozenLake)",
            load=_frozen_lake,
            preload=("gymnasium.envs.toy_text.frozen_lake",),
        ),
        Shipped(
            name="sokoban",
            kind="multi-turn",
            tag="sokoban",
            about="boxes to push onto targets, in rooms made at random",
            load=_sokoban,
        ),
        Shipped(
            name="shop",
            kind="multi-turn",
            tag="shop",
            about="search, look, choose options, buy (after WebShop)",
            load=_shop,
        ),
        Shipped(
            name="guess_tools",
            kind="tools",
            tag="guess_tools",
            about="a hidden number, found by calling tools",
            load=_guess_tools,
        ),
        Shipped(
            name="arithmetic",
            kind="single-turn",
            tag="math",
            about="sums to be worked out",
            load=_arithmetic,
            reward="math",
        ),
        Shipped(
            name="word_problems",
            kind="single-turn",
            tag="math",
            about="little stories with numbers in them",
            load=_word_problems,
            reward="math",
        ),
        Shipped(
            name="programs",
            kind="single-turn",
            tag="code",
            about="small Python functions, checked by hidden tests",
            load=_programs,
            reward="code",
        ),
        Shipped(
            name="instructions",
            kind="single-turn",
            tag="general",
            about="instructions that a rule can check",
            load=_instructions,
            reward="instructions",
        ),
    )
}


def describe(name: str) -> Shipped:
    """The shipped environment of a name."""
    if ":" in name:
        raise ConfigError(f"environment {name!r} is none of ours; windrow.envs.own.own_envs makes your own")
    if name not in SHIPPED:
        raise ConfigError(f"unknown environment {name!r}{did_you_mean(name, SHIPPED)}")
    return SHIPPED[name]


def find(name: str, **args: object) -> EnvFactory:
    """What makes the shipped environment of a name; arguments are those of its class."""
    make = describe(name).load()
    _check_known(name, make, args)
    return partial(make, **args) if args else make


def _check_known(name: str, make: Callable[..., Any], args: Iterable[str]) -> None:
    known = signature(make).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return  # it looks itself
    for arg in args:
        if arg not in known:
            raise ConfigError(f"unknown argument {arg!r} of environment {name!r}{did_you_mean(arg, known)}")
