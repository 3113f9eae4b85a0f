"""Windrow collects trajectories from many environments at once and feeds them to a trainer.

Importing this package is quick: nothing heavy is loaded until it is used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.cluster.dispatch import Dispatch, register
    from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
    from windrow.cluster.worker import Worker
    from windrow.envs.agents import agent
    from windrow.envs.plain import plain
    from windrow.envs.protocol import Briefing, Env, Rewritten, Step
    from windrow.envs.tools import with_tools
    from windrow.protocol import DataProto
    from windrow.requests import Sampling
    from windrow.rewards.protocol import Score
    from windrow.rollout.config import EnvManagerConfig, RolloutConfig
    from windrow.rollout.env_config import TagConfig
    from windrow.rollout.queue import GroupQueueManager
    from windrow.rollout.scheduler import RolloutScheduler
    from windrow.text import ChatCodec, Message
    from windrow.trajectory import Task, Trajectory

__version__ = "0.1.0"

__all__ = [
    "Briefing", "ChatCodec", "Cluster", "DataProto", "Dispatch", "EngineConfig", "Env", "EnvManagerConfig",
    "GroupQueueManager", "Message", "ResourceManager", "Rewritten", "RolloutConfig", "RolloutScheduler", "Sampling",
    "Score", "Step", "TagConfig", "Task", "Trajectory", "Worker", "__version__", "agent", "plain", "register",
    "with_tools",
]  # fmt: skip

_HOMES = {
    "Briefing": "windrow.envs.protocol",
    "ChatCodec": "windrow.text",
    "Cluster": "windrow.cluster.local",
    "DataProto": "windrow.protocol",
    "Dispatch": "windrow.cluster.dispatch",
    "EngineConfig": "windrow.cluster.local",
    "Env": "windrow.envs.protocol",
    "EnvManagerConfig": "windrow.rollout.config",
    "GroupQueueManager": "windrow.rollout.queue",
    "Message": "windrow.text",
    "ResourceManager": "windrow.cluster.local",
    "Rewritten": "windrow.envs.protocol",
    "RolloutConfig": "windrow.rollout.config",
    "RolloutScheduler": "windrow.rollout.scheduler",
    "Sampling": "windrow.requests",
    "Score": "windrow.rewards.protocol",
    "Step": "windrow.envs.protocol",
    "TagConfig": "windrow.rollout.env_config",
    "Task": "windrow.trajectory",
    "Trajectory": "windrow.trajectory",
    "Worker": "windrow.cluster.worker",
    "agent": "windrow.envs.agents",
    "plain": "windrow.envs.plain",
    "register": "windrow.cluster.dispatch",
    "with_tools": "windrow.envs.tools",
}
"""Where each public name is loaded from when it is first used."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
