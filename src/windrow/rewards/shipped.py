"""The rewards that come with Windrow, by the name a configuration gives them.

One is loaded when it is first asked for, because some need packages of their own.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.rewards.protocol import Reward
from windrow.rewards.sums import WeightedSum


def _code() -> Callable[..., Any]:
    from windrow.rewards.code import CodeReward

    return CodeReward


def _env() -> Callable[..., Any]:
    from windrow.rewards.shaping import EnvReward

    return EnvReward


def _format() -> Callable[..., Any]:
    from windrow.rewards.shaping import FormatReward

    return FormatReward


def _instructions() -> Callable[..., Any]:
    from windrow.rewards.instructions import InstructionReward

    return InstructionReward


def _length() -> Callable[..., Any]:
    from windrow.rewards.shaping import LengthReward

    return LengthReward


def _math() -> Callable[..., Any]:
    from windrow.rewards.math import MathReward

    return MathReward


def _model() -> Callable[..., Any]:
    from windrow.rewards.model import ModelReward

    return ModelReward


SHIPPED: dict[str, Callable[[], Callable[..., Any]]] = {
    "code": _code,
    "env": _env,
    "format": _format,
    "instructions": _instructions,
    "length": _length,
    "math": _math,
    "model": _model,
}
"""What imports the class of each."""


def find(what: str | Mapping[str, float], **args: object) -> Reward:
    """The reward of a name, with the arguments of its class; or, from names with weights, their weighted sum."""
    if isinstance(what, str):
        return _made(what, args)
    if args:
        raise ConfigError(
            f"arguments {', '.join(args)} for a weighted sum; make its parts yourself: WeightedSum({{…}})"
        )
    return make(what, {})


def make(what: str | Mapping[str, float], args: Mapping[str, Mapping[str, Any]]) -> Reward:
    """The same, with arguments by the name of the reward that they are for."""
    strangers = sorted(set(args) - ({what} if isinstance(what, str) else set(what)))
    if strangers:
        raise ConfigError(f"reward_args names {strangers[0]!r}, which is no part of the reward; leave it out")
    if isinstance(what, str):
        return _made(what, args.get(what, {}))
    return WeightedSum({name: _made(name, args.get(name, {})) for name in what}, what)


def _made(name: str, args: Mapping[str, Any]) -> Reward:
    kind = _load(name)
    try:
        signature(kind).bind(**args)
    except TypeError as error:
        known = ", ".join(signature(kind).parameters) or "nothing"
        raise ConfigError(f"reward {name!r}: {error}; reward_args.{name} takes {known}") from error
    reward: Reward = kind(**args)
    return reward


def _load(name: str) -> Callable[..., Any]:
    if name not in SHIPPED:
        raise ConfigError(f"unknown reward {name!r}{did_you_mean(name, SHIPPED)}")
    return SHIPPED[name]()
