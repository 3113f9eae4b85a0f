"""A rollout path on real time, in this process or on Ray, seen from outside alone.

What is sampled follows from seeds, so two runs of the same tasks say the same, whatever happens between them. Engines
are looked at through their hosts where they have one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
from tests.rollout.toys import talk

from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.cluster.ray.resources import RayResourceManager
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.envs.protocol import Observation, Step
from windrow.protocol import DataProto
from windrow.requests import Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.scheduler import RolloutScheduler
from windrow.text import ByteCodec
from windrow.trajectory import Task
from windrow.types import Mode

Runtime = Literal["local", "ray"]
LIMIT_S = 120.0
"""A test that takes longer hangs."""


class Plain:
    """Shows its task, then what was said, for some turns; each is worth the length of what was said."""

    def __init__(self, turns: int = 2) -> None:
        self._left = turns

    async def start(self, task: Task) -> Observation:
        return f"task {task.ordinal}"

    async def step(self, action: str) -> Step:
        self._left -= 1
        return Step(observation="and", reward=float(len(action)), terminated=self._left == 0)

    async def close(self) -> None:
        pass


def engine(
    name: str, devices: tuple[int, ...], config: EngineConfig, token_s: float = 0.0, low: int = 4, high: int = 24
) -> Engine:
    settings = ScriptedSettings(vocabulary=257, token_s=token_s, capacity=64)
    return ScriptedEngine(name, settings, script=talk(low, high), devices=devices, codec=config.codec)


class Stage:
    """A cluster of scripted engines and schedulers on it."""

    def __init__(self, runtime: Runtime, engines: int = 1, **pace: Any) -> None:
        self.runtime = runtime
        self.devices = ResourceManager(engines) if runtime == "local" else RayResourceManager(engines)
        made = partial(engine, **pace)
        self.cluster = Cluster("infer", made, self.devices, EngineConfig(codec=ByteCodec()))
        self.schedulers: list[RolloutScheduler] = []

    def scheduler(
        self, mode: Mode = "train", collator: Callable[[DataProto], DataProto] | None = None, **given: Any
    ) -> RolloutScheduler:
        config = {"rollout_batch_size": 8, "breaker_share": 1.0, "retry_after_s": 0.05} | given.pop("config", {})
        usual: dict[str, Any] = {"group_size": 2, "num_env_groups": 4, "sampling": Sampling(max_tokens=64)}
        env = EnvManagerConfig(**usual | {"env": Plain} | given)
        made = RolloutScheduler(RolloutConfig(**config), env, self.devices, self.cluster, mode, collator)
        self.schedulers.append(made)
        return made

    def of_engine(self, name: str, what: str) -> Any:
        """Something about an engine."""
        if self.runtime == "ray":
            return self.cluster.hosts[name].look(f"worker.{what}", within_s=30)
        return getattr(self.cluster.workers[name], what)

    def sampled(self) -> int:
        """Tokens that all engines have sampled."""
        names = [f"infer-{rank}" for rank in range(self.cluster.world_size)]
        return sum(self.of_engine(name, "sampled") for name in names)

    async def end(self) -> None:
        for scheduler in self.schedulers:
            await scheduler.shutdown()
        self.cluster.shutdown()
        self.devices.close()


@asynccontextmanager
async def staged(runtime: Runtime, engines: int = 1, **pace: Any) -> AsyncIterator[Stage]:
    """A stage that ends in bounded time, and is cleared then."""
    stage = Stage(runtime, engines, **pace)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield stage
    finally:
        await stage.end()


def at(step: int) -> DataProto:
    return DataProto(meta_info={"global_step": step})


async def full(scheduler: RolloutScheduler, step: int, n: int = 8) -> Any:
    batch = await scheduler.get_batch(at(step), n)
    assert batch is not None, f"no batch for step {step}"
    return batch


def said(batches: list[Any]) -> list[list[int]]:
    """All that was sampled in some batches, in an order that does not depend on when it came."""
    rows = [
        batch.batch["input_ids"][row][batch.batch["response_mask"][row]].tolist()
        for batch in batches
        for row in range(len(batch))
    ]
    return sorted(rows)


def versions(batch: Any) -> set[int]:
    """Of all sampled tokens."""
    return {*np.unique(batch.batch["policy_versions"][batch.batch["response_mask"]]).tolist()}
