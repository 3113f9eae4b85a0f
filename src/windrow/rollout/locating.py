"""Where the environments of somebody's own are that a configuration file names.

Promises: `FILE.py:Class` is looked for in the working directory and then beside the configuration, and is an absolute
path from then on: the run can go on from anywhere, and every process finds the same file. What is in neither is left
as it was written, for whoever loads it to complain about.
"""

from pathlib import Path
from typing import TypeVar

from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.env_config import EnvConfig
from windrow.types import but

E = TypeVar("E", bound=EnvConfig)


def located(rollout: RolloutConfig, beside: Path) -> RolloutConfig:
    """The same with environments that can be found from anywhere; `beside` is the folder of the configuration."""
    return but(
        rollout,
        train_env_manager=_manager(rollout.train_env_manager, beside),
        val_env_manager=_manager(rollout.val_env_manager, beside),
    )


def located_env(env: E, beside: Path) -> E:
    """The same for one kind of environment."""
    named = env.env if isinstance(env.env, str) else ""
    file, _, name = named.rpartition(":")
    if not file.endswith(".py"):
        return env
    there = [path for path in (Path(file), beside / file) if path.is_file()]
    return but(env, env=f"{there[0].resolve()}:{name}") if there else env


def _manager(manager: EnvManagerConfig, beside: Path) -> EnvManagerConfig:
    if not manager.tags:
        return located_env(manager, beside)
    return but(manager, tags={tag: located_env(env, beside) for tag, env in manager.tags.items()})
