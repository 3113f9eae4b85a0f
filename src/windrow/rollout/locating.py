"""Where the environments of somebody's own and the reward models are that a configuration file names.

Promises: `FILE.py:Class` and the folder of a reward model are looked for in the working directory and then beside the
configuration, and are absolute paths from then on: the run can go on from anywhere, and every process finds the same.
What is in neither is left as it was written, for whoever loads it to complain about.
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
    env = _located_model(env, beside)
    named = env.env if isinstance(env.env, str) else ""
    file, _, name = named.rpartition(":")
    if not file.endswith(".py"):
        return env
    there = [path for path in (Path(file), beside / file) if path.is_file()]
    return but(env, env=f"{there[0].resolve()}:{name}") if there else env


def _located_model(env: E, beside: Path) -> E:
    args = env.reward_args.get("model", {})
    path = args.get("path")
    if not isinstance(path, str):
        return env
    there = [folder for folder in (Path(path).expanduser(), beside / path) if folder.is_dir()]
    found = {**args, "path": str(there[0].resolve())} if there else args
    return but(env, reward_args={**env.reward_args, "model": found})


def _manager(manager: EnvManagerConfig, beside: Path) -> EnvManagerConfig:
    if not manager.tags:
        return located_env(manager, beside)
    return but(manager, tags={tag: located_env(env, beside) for tag, env in manager.tags.items()})
