"""Windrow collects trajectories from many environments at once and feeds them to a trainer.

Importing this package is quick: nothing heavy is loaded until it is used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
    from windrow.envs.protocol import Env, Rewritten, Step
    from windrow.protocol import DataProto
    from windrow.requests import Sampling
    from windrow.rollout.config import EnvManagerConfig, RolloutConfig
    from windrow.rollout.queue import GroupQueueManager
    from windrow.rollout.scheduler import RolloutScheduler
    from windrow.text import ChatCodec, Message
    from windrow.trajectory import Task, Trajectory

__version__ = "0.1.0"

__all__ = [
    "ChatCodec", "Cluster", "DataProto", "EngineConfig", "Env", "EnvManagerConfig", "GroupQueueManager", "Message",
    "ResourceManager", "Rewritten", "RolloutConfig", "RolloutScheduler", "Sampling", "Step", "Task", "Trajectory",
    "__version__",
]  # fmt: skip

_HOMES = {
    "ChatCodec": "windrow.text",
    "Cluster": "windrow.cluster.local",
    "DataProto": "windrow.protocol",
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
    "Step": "windrow.envs.protocol",
    "Task": "windrow.trajectory",
    "Trajectory": "windrow.trajectory",
}
"""Where each public name is loaded from when it is first used."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
