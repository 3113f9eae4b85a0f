"""The settings of one kind of environment: what it is, where it lives, how long it may take, what scores it."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Annotated, Any, Literal

from windrow.core.settings import Count, Natural, Seconds, Weight
from windrow.envs.own import own_envs
from windrow.envs.places import PlaceSettings
from windrow.envs.protocol import EnvFactory, Isolation
from windrow.envs.shipped import Shipped, describe, find
from windrow.errors import ConfigError, blame
from windrow.loading.code import is_own
from windrow.nearest import did_you_mean
from windrow.rewards.protocol import AnyReward, GroupReward, Reward
from windrow.rewards.shipped import SHIPPED
from windrow.rewards.shipped import make as make_reward
from windrow.types import Meta, Value

Anything = Any
"""A value that only Python can give: a class, a function, an object; a file gives its name."""

Retry = Literal["never", "transient", "always"]
"""Which failures of a reward are tried again: none, those of a service or a deadline, all."""

NO_REWARD = "none"
"""The name that stands for the sum of the steps' rewards."""


class RewardLimits(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reward is asked."""

    at_once: Annotated[Count, Meta(description="episodes that are scored at the same time")] = 16
    timeout_s: Annotated[Seconds, Meta(description="longest time one score may take")] = 60.0
    retries: Annotated[Natural, Meta(description="times that a failed score is tried again")] = 2
    retry: Annotated[
        Retry, Meta(description="which failures are tried again: never, transient (services, deadlines), always")
    ] = "transient"
    retry_after_s: Annotated[float, Meta(ge=0.0, description="wait before the first retry; doubles with each")] = 0.5
    isolation: Annotated[
        Isolation | None,
        Meta(description="where it runs: inline, thread, process; none: where it says, or in a thread if it may block"),
    ] = None
    device: Annotated[Natural | None, Meta(description="on Ray: the device that its host has; none: anywhere")] = None


class EnvTimes(Value, frozen=True, kw_only=True):
    """How long an environment may take."""

    start_s: float
    step_s: float
    close_s: float


class EnvKind(Value, frozen=True, kw_only=True, gc=True):
    """What a worker needs to play the environments of one tag."""

    make: EnvFactory
    place: PlaceSettings
    times: EnvTimes
    is_scored: bool = False
    """By a reward, when it was played."""


class EnvConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """One kind of environment."""

    env: Annotated[
        Anything,
        Meta(
            description="name of a shipped environment, or FILE.py:Class or module:Class of your own; in Python also "
            "whatever makes one"
        ),
    ] = "guess"
    env_args: Annotated[dict[str, Any], Meta(description="arguments of the environment's class")] = {}
    isolation: Annotated[
        Isolation, Meta(description="inline: on the event loop; thread: may block; process: may hang or crash as well")
    ] = "inline"
    reusable: Annotated[bool, Meta(description="a process may play one episode after another")] = False
    ahead: Annotated[Natural, Meta(description="processes that are started before they are needed")] = 2
    memory_mb: Annotated[Count | None, Meta(description="memory that one process may use; none: no limit")] = None
    max_at_once: Annotated[Count | None, Meta(description="environments of this kind at once; none: all slots")] = None
    start_timeout_s: Annotated[Seconds, Meta(description="longest time the start of an environment may take")] = 60.0
    step_timeout_s: Annotated[Seconds, Meta(description="longest time one step of an environment may take")] = 60.0
    close_timeout_s: Annotated[Seconds, Meta(description="longest time an environment may take to close")] = 5.0
    reward: Annotated[
        Anything,
        Meta(
            description="name of a shipped reward, or names with weights; in Python also a reward; not set: that of "
            "the environment, if it has one; none: the sum of its steps"
        ),
    ] = None
    reward_args: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="arguments of shipped rewards, by their names: {model: {path: FOLDER}}"),
    ] = {}
    reward_limits: Annotated[RewardLimits, Meta(description="how it is asked")] = RewardLimits()
    success_at: Annotated[float, Meta(description="score from which on an episode counts as a success")] = 1.0

    def __post_init__(self) -> None:
        env: object = self.env
        if not callable(env) and not isinstance(env, str):
            raise ConfigError(f"env must be a name or something that makes an environment, got {env!r}")
        _check_maker(env, self.env_args)
        if isinstance(self.reward, type):
            raise ConfigError(
                f"reward is the class {self.reward.__name__}; give an object of it: {self.reward.__name__}()"
            )
        if isinstance(self.reward, Mapping):
            _check_weights(self.reward)
        if self.reward is not None and not isinstance(self.reward, str | Mapping | Reward | GroupReward):
            raise ConfigError(
                f"reward must be a name, names with weights, or have score or score_group, got {self.reward!r:.60}"
            )

    def factory(self) -> EnvFactory:
        """What makes the environments."""
        if isinstance(self.env, str) and is_own(self.env):
            return own_envs(self.env, self.env_args)
        if isinstance(self.env, str):
            named = find(self.env, **self.env_args)
            with blame(ConfigError, f"environment {self.env!r}"):
                named()  # arguments that it refuses are refused before anything is played
            return named
        make: EnvFactory = self.env
        return partial(make, **self.env_args) if self.env_args else make

    def reward_maker(self) -> Callable[[], AnyReward] | None:
        """What makes its reward; None if its steps are the score."""
        reward = self.reward
        if reward is None:
            reward = "" if self._ours is None else self._ours.reward
        if reward in ("", NO_REWARD):
            if self.reward_args:
                named = next(iter(self.reward_args))
                raise ConfigError(f"reward_args names {named!r}, and there is no reward; set reward")
            return None
        if isinstance(reward, str | Mapping):
            check_names(reward)
            return partial(make_reward, reward, self.reward_args)
        if self.reward_args:
            raise ConfigError("reward_args stands beside a reward that is made already; give it to its class")
        return lambda: reward

    def check_reward(self) -> None:
        """Refuse what its reward cannot be made with; none of those that come with us is costly to make."""
        make = self.reward_maker()
        if make is not None:
            make()

    @property
    def owns_reward(self) -> bool:
        """The reward is made here, from its name, so it is closed here as well."""
        return self.reward is None or isinstance(self.reward, str | Mapping)

    @property
    def _ours(self) -> Shipped | None:
        """What it is, if it comes with Windrow."""
        return describe(self.env) if isinstance(self.env, str) and not is_own(self.env) else None

    def kind(self, name: str) -> EnvKind:
        """The same for a worker."""
        place = PlaceSettings(
            name=name,
            isolation=self.isolation,
            reusable=self.reusable,
            ahead=self.ahead,
            memory_mb=self.memory_mb,
            preload=() if self._ours is None else self._ours.preload,
        )
        times = EnvTimes(start_s=self.start_timeout_s, step_s=self.step_timeout_s, close_s=self.close_timeout_s)
        return EnvKind(make=self.factory(), place=place, times=times, is_scored=self.reward_maker() is not None)


def check_names(reward: str | Mapping[str, float]) -> None:
    """Refuse rewards that nobody knows, before anything begins."""
    for name in [reward] if isinstance(reward, str) else reward:
        if name not in SHIPPED:
            raise ConfigError(f"unknown reward {name!r}{did_you_mean(name, SHIPPED)}")


def _check_maker(env: object, args: Mapping[str, object]) -> None:
    """Refuse what cannot make an environment, as far as that can be seen without making one."""
    if inspect.iscoroutinefunction(env):
        raise ConfigError(
            f"env is the function {env.__name__}, which plays by itself; give windrow.agent({env.__name__})"
        )
    if not isinstance(env, type):
        return
    if "start" not in dir(env):
        raise ConfigError(
            f"{env.__name__} has no start, so it is no environment; "
            f"a class with reset and step becomes one by windrow.plain({env.__name__})"
        )
    for name in ("start", "step", "close"):
        method = inspect.getattr_static(env, name, None)
        if method is None:
            raise ConfigError(f"{env.__name__} has no {name}, so it is no environment; write async def {name}")
        if inspect.isfunction(method) and not inspect.iscoroutinefunction(method):
            raise ConfigError(f"{env.__name__}.{name} is an ordinary function; write async def {name}")
    try:
        inspect.signature(env).bind(**args)
    except TypeError as error:
        raise ConfigError(f"{env.__name__} cannot be made with env_args {dict(args)!r:.80}: {error}") from error


def _check_weights(weights: Mapping[str, object]) -> None:
    if not weights:
        raise ConfigError("reward names no part; give names with weights, or none")
    for name, weight in weights.items():
        if not isinstance(weight, int | float) or not isfinite(weight):
            raise ConfigError(f"reward.{name} must be a finite number, got {weight!r}")


class TagConfig(EnvConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """One of several kinds of environments in a run."""

    weight: Annotated[Weight, Meta(description="share of the groups, honoured over a window")] = 1.0
