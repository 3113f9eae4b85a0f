"""Where the reward models of a run sit.

Promises: each reward model has one of the devices of `roles.reward`, dealt out in turn: training's first, then
validation's. In this process device i is GPU i where the run computes on GPUs, on Ray its host is placed there and sees
no other. A `reward_args.model.device` that says something else is refused by name.
"""

from collections.abc import Mapping
from itertools import cycle
from typing import Protocol, TypeVar

from windrow.cluster.mapping import on_this_machine
from windrow.cluster.worker import Runtime
from windrow.errors import ConfigError
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.env_config import EnvConfig
from windrow.types import but

E = TypeVar("E", bound=EnvConfig)


class Place(Protocol):
    """Gives a kind of environment with a reward model its device."""

    def __call__(self, env: E) -> E: ...


MODEL = "model"
"""The name of the reward that is a model."""


def reward_models(rollout: RolloutConfig) -> int:
    """How many there are, in training and validation together."""
    managers = rollout.train_env_manager, rollout.val_env_manager
    return sum(_has_model(env) for manager in managers for env in manager.by_tag().values())


def placed(rollout: RolloutConfig, devices: tuple[int, ...], usual: str, runtime: Runtime) -> RolloutConfig:
    """The same with every reward model on one of these devices; `usual` is what the run computes on: cpu or cuda."""
    turn = cycle(devices)

    def place(env: E) -> E:
        return _placed(env, next(turn), usual, runtime) if _has_model(env) else env

    return but(
        rollout,
        train_env_manager=_manager(rollout.train_env_manager, place),
        val_env_manager=_manager(rollout.val_env_manager, place),
    )


def device_of(said: object, device: int, usual: str) -> str:
    """What torch calls the device of a reward model in this process; `said` is its own setting, None if it has none."""
    found = on_this_machine("cuda" if said == "cuda" else usual, (device,))
    if said not in (None, "cuda", found):
        raise ConfigError(
            f"reward_args.model.device is {said} and roles.reward.device_mapping gives the reward model device "
            f"{device}, which is {found}; leave one of them out"
        )
    return found


def _has_model(env: EnvConfig) -> bool:
    return env.reward == MODEL or (isinstance(env.reward, Mapping) and MODEL in env.reward)


def _manager(manager: EnvManagerConfig, place: Place) -> EnvManagerConfig:
    if not manager.tags:
        return place(manager)
    return but(manager, tags={tag: place(env) for tag, env in manager.tags.items()})


def _placed(env: E, device: int, usual: str, runtime: Runtime) -> E:
    args = env.reward_args.get(MODEL, {})
    named = device_of(args.get("device"), device, usual)
    if runtime != "ray":
        return but(env, reward_args={**env.reward_args, MODEL: {**args, "device": named}})
    seen = {**args, "device": named.partition(":")[0]}  # a host sees what it was given, and calls it the first
    limits = but(env.reward_limits, device=device)
    return but(env, reward_args={**env.reward_args, MODEL: seen}, reward_limits=limits)
