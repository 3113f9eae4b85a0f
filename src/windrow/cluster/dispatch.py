"""Methods of workers that are called through their cluster.

```
class Actor(Worker[WorkerConfig]):
    @register(Dispatch.DP_MP_COMPUTE, timeout_s=600)
    def score(self, batch: DataProto) -> DataProto: ...

cluster.score(batch)                         waits, and returns one batch
cluster.score(batch, blocking=False)         returns a Call: `.result(timeout)`, or `await` it
```

Promises: a method that was not registered cannot be called through a cluster. What a rule cannot mean is refused when
the class is made.

What it does not do: splitting and collecting is in `splitting`.
"""

import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from inspect import Parameter
from types import MethodType
from typing import Any, TypeVar, cast

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.types import Value

F = TypeVar("F", bound=Callable[..., Any])  # whatever a worker can do

RESERVED = "blocking"
"""What a cluster's method understands itself."""


class Dispatch(Enum):
    """Who is called with what, and whose answers come back."""

    ONE_TO_ALL = "one_to_all"
    """Everybody with the same; a list of all answers, by rank."""
    ONE_TO_ALL_ONE = "one_to_all_one"
    """Everybody with the same; the answer of rank 0."""
    RANK_ZERO = "rank_zero"
    """Rank 0 alone; its answer."""
    ALL_TO_ALL = "all_to_all"
    """Each with its item of every argument, which is a list by rank; a list of all answers, by rank."""
    DP_MP_COMPUTE = "dp_mp_compute"
    """Each with its rows, those that hold a model together with the same; all answers as one, in the order of rows.

    Batches, lists, tensors and arrays are cut into rows, everything else goes to everybody.
    """


class Rule(Value, frozen=True, kw_only=True):
    """How a method is dispatched."""

    mode: Dispatch
    timeout_s: float | None = None
    """None: as long as it takes."""
    whole: tuple[str, ...] = ()
    """Arguments that are not cut into rows."""
    pad: bool = False
    """Rows from the beginning are repeated where data-parallel ranks do not divide a batch, and cut off the answer."""


class Registered:
    """A method with a rule; on an object of its class it is the method."""

    def __init__(self, function: Callable[..., Any], rule: Rule) -> None:
        self.function = function
        self.rule = rule
        self.signature = inspect.signature(function)
        self.__doc__ = function.__doc__

    @property
    def name(self) -> str:
        return self.function.__name__

    def __get__(self, worker: object, kind: type[object] | None = None) -> Any:  # noqa: ANN401 -- as functions do
        return self if worker is None else MethodType(self.function, worker)

    def names(self, arguments: Sequence[object], options: dict[str, object]) -> list[str]:
        """What the positional arguments of a call are called; raises TypeError if it does not fit."""
        try:
            self.signature.bind(None, *arguments, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from error
        named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        plain = [each.name for each in [*self.signature.parameters.values()][1:] if each.kind in named]
        known = min(len(arguments), len(plain))
        return [*plain[:known], *(f"argument {place}" for place in range(known, len(arguments)))]


def register(
    dispatch_mode: Dispatch,
    *,
    timeout_s: float | None = None,
    whole: Sequence[str] = (),
    pad: bool = False,
) -> Callable[[F], F]:
    """Make a method of a worker one of its cluster."""
    rule = Rule(mode=dispatch_mode, timeout_s=timeout_s, whole=tuple(whole), pad=pad)

    def registered(function: F) -> F:
        _check(function, rule)
        return cast("F", Registered(function, rule))

    return registered


def methods_of(kind: object) -> dict[str, Registered]:
    """All and only the registered methods of a class; none of anything else that makes workers."""
    if not isinstance(kind, type):
        return {}
    return {name: value for name, value in inspect.getmembers_static(kind) if isinstance(value, Registered)}


def _check(function: Callable[..., Any], rule: Rule) -> None:
    name = function.__name__
    parameters = [*inspect.signature(function).parameters]
    if rule.timeout_s is not None and rule.timeout_s <= 0:
        raise ConfigError(f"{name}: timeout_s must be above 0, got {rule.timeout_s:g}; leave it out to wait for ever")
    if (rule.whole or rule.pad) and rule.mode is not Dispatch.DP_MP_COMPUTE:
        raise ConfigError(f"{name}: whole and pad are for DP_MP_COMPUTE, which cuts into rows, got {rule.mode.name}")
    if RESERVED in parameters:
        raise ConfigError(f"{name}: a cluster's methods have {RESERVED} themselves; call that argument something else")
    for argument in rule.whole:
        if argument not in parameters[1:]:
            raise ConfigError(f"{name}: whole names no argument {argument}{did_you_mean(argument, parameters[1:])}")
