"""What is to be checked or played: a shipped environment by its name, or somebody's own by file or module.

Promises: whatever cannot be loaded, found or made is a `ConfigError` of one line that says what would do. A class with
`start`, `step` and `close` is taken as it is, one with `reset` and `step` and an `async def rollout(task, policy)` are
adapted, and anything else that can be called is taken for what makes an environment.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from windrow.envs import own
from windrow.envs.own import adapted, try_out
from windrow.envs.protocol import EnvFactory
from windrow.errors import ConfigError, WindrowError, blame
from windrow.loading.code import filed, find, is_own
from windrow.loading.words import shown
from windrow.types import Value

Form = Literal["shipped"] | own.Form
"""What it is written as: one of ours, or some form of somebody's own."""

TOLD = "--args NAME=VALUE"
"""Where arguments can be given."""


class Subject(Value, frozen=True, kw_only=True, gc=True):
    """An environment that can be made."""

    name: str
    form: Form
    make: EnvFactory
    reward: Any = None  # whatever has `score`; none: the sum of the environment's own rewards
    module: str = ""
    """Of somebody's own: where it was defined."""


def load(target: str, args: Mapping[str, object], reward: str = "") -> Subject:
    """The environment of a name, of `path.py:Name` or of `package.module:Name`, and the reward it is scored with."""
    subject = _own(target, args) if is_own(target) else _shipped(target, args)
    if not reward:
        return subject
    return Subject(
        name=subject.name, form=subject.form, make=subject.make, module=subject.module, reward=_reward(reward)
    )


def _shipped(name: str, args: Mapping[str, object]) -> Subject:
    from windrow.envs import shipped as ours

    if name not in ours.SHIPPED and Path(name).suffix:
        raise ConfigError(f"there is no environment {name!r}; one of your own is path.py:Class or package.module:Class")
    shipped = ours.describe(name)
    with blame(ConfigError, f"environment {name} cannot be loaded"):
        make = ours.find(name, **args)
    try_out(make, name, TOLD)
    return Subject(name=name, form="shipped", make=make, reward=_reward(shipped.reward) if shipped.reward else None)


def _own(target: str, args: Mapping[str, object]) -> Subject:
    module, found = find(target)
    make, form = adapted(found, target, args)
    try_out(make, target, TOLD)
    return Subject(name=target, form=form, make=make, module=module.__name__)


def _reward(target: str) -> Any:  # noqa: ANN401 -- whatever has `score`
    if is_own(target):
        _, found = find(target)
        with filed(ConfigError, f"reward {target} cannot be made"):
            made = found() if isinstance(found, type) else found
    else:
        made = _shipped_reward(target)
    if not {"score", "score_group"} & {*dir(made)}:
        raise ConfigError(f"reward {target} is {shown(made)}, which has no score(trajectory)")
    return made


def _shipped_reward(name: str) -> Any:  # noqa: ANN401 -- as above
    from windrow.rewards import shipped

    try:
        with blame(ConfigError, f"reward {name} cannot be made"):
            return shipped.find(name)
    except WindrowError as error:
        raise ConfigError(str(error)) from error
