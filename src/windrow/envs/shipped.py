"""The environments that come with Windrow, by the name a configuration gives them.

One is loaded when it is first asked for, because some need packages of their own.
"""

from collections.abc import Callable
from functools import partial
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


def _guess() -> Callable[..., Any]:
    from windrow.envs.guess import GuessEnv

    return GuessEnv


SHIPPED: dict[str, Shipped] = {
    each.name: each
    for each in (
        Shipped(name="guess", kind="multi-turn", tag="guess", about="a number from 0 to 9, with hints", load=_guess),
    )
}


def describe(name: str) -> Shipped:
    """The shipped environment of a name."""
    if name not in SHIPPED:
        raise ConfigError(f"unknown environment {name!r}{did_you_mean(name, SHIPPED)}")
    return SHIPPED[name]


def find(name: str, **args: object) -> EnvFactory:
    """What makes the shipped environment of a name; arguments are those of its class."""
    make = describe(name).load()
    return partial(make, **args) if args else make
