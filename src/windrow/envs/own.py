"""Environments of somebody's own, by file or module.

Promises: a class with `start`, `step` and `close` is taken as it is, one with `reset` and `step` and an `async def
rollout(task, policy)` are adapted, and anything else that can be called is taken for what makes an environment. What
makes them can be sent to any process that sees the same file or module, and loads it there once.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from windrow.envs.protocol import Env, EnvFactory
from windrow.errors import ConfigError
from windrow.loading.code import filed, find, reach
from windrow.loading.words import shown

Form = Literal["env", "plain", "agent", "factory"]
"""What it is written as: the protocol; `reset` and `step`; a rollout function; what makes one."""

PROTOCOL = ("start", "step", "close")


class OwnEnvs:
    """Makes the environments of `path.py:Name` or `package.module:Name`."""

    def __init__(self, target: str, args: Mapping[str, object], folder: str = "") -> None:
        """`folder` is where files and modules are looked for; empty: here."""
        self._target = target
        self._args = dict(args)
        self._folder = folder or str(Path.cwd())
        self._make, _ = adapted(_found(target, folder), target, args)

    def __call__(self) -> Env:
        return self._make()

    def __reduce__(self) -> "tuple[Callable[..., OwnEnvs], tuple[object, ...]]":
        """What has been loaded is loaded again wherever it goes."""
        return OwnEnvs, (self._target, self._args, self._folder)


def _found(target: str, folder: str) -> Any:  # noqa: ANN401 -- whatever stands there
    file = target.rpartition(":")[0]
    if folder and file.endswith(".py"):
        target = f"{Path(folder) / target}"
    elif folder:
        reach(Path(folder))
    return find(target)[1]


def own_envs(target: str, args: Mapping[str, object]) -> OwnEnvs:
    """What makes them, after it has made one, to see that it is an environment at all."""
    found = OwnEnvs(target, args)
    try_out(found, target, "env_args")
    return found


def try_out(make: EnvFactory, target: str, where: str) -> None:
    """Make one, to see that it is an environment at all; `where` arguments can be given."""
    try:
        with filed(ConfigError, f"{target} cannot be made"):
            made = make()
    except ConfigError as error:
        if isinstance(error.__cause__, TypeError) and "argument" in str(error):
            raise ConfigError(f"{error}; give arguments with {where}") from error
        raise
    missing = [name for name in PROTOCOL if name not in dir(made)]
    if missing:
        hint = "; wrap it in windrow.envs.plain.plain" if "reset" in dir(made) else ""
        raise ConfigError(f"{target} makes {shown(made)}, which has no {' and no '.join(missing)}{hint}")


def adapted(found: Any, target: str, args: Mapping[str, object]) -> tuple[EnvFactory, Form]:  # noqa: ANN401 -- unknown yet
    """What makes environments of something that was found, and as what that is written."""
    given = dict(args)
    if isinstance(found, type):
        return _of_class(found, target, given)
    if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        raise ConfigError(f"{target} is a generator; write `async def rollout(task, policy)` that returns its reward")
    if inspect.iscoroutinefunction(found):
        from windrow.envs.agents import agent

        return agent(found, **given), "agent"
    if not callable(found):
        raise ConfigError(
            f"{target} is {shown(found)}; name a class with start, step and close or with reset and step, "
            f"an `async def rollout(task, policy)`, or a function that makes an environment"
        )
    return (partial(found, **given) if given else found), "factory"


def _of_class(found: type, target: str, given: dict[str, Any]) -> tuple[EnvFactory, Form]:
    has = set(dir(found))
    if has.issuperset(PROTOCOL):
        return (partial(found, **given) if given else found), "env"
    if has.issuperset(("reset", "step")):
        from windrow.envs.plain import plain

        return plain(found, **given), "plain"
    missing = [name for name in PROTOCOL if name not in has]
    raise ConfigError(f"{target} has no {' and no '.join(missing)}; an environment has start, step and close")
