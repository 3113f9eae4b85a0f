"""Training and validation on one cluster of real engines: weights, versions, and going on after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from windrow import (
    ChatCodec,
    Cluster,
    DataProto,
    EngineConfig,
    EnvManagerConfig,
    ResourceManager,
    RolloutConfig,
    RolloutScheduler,
    Sampling,
    Step,
    Task,
)
from windrow.tiny import tiny_model, tiny_tokenizer

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from torch import Tensor

LIMIT_S = 300.0
"""Of a whole test, so that a hang is a failure."""
WEIGHTS: dict[int, "dict[str, Tensor]"] = {}


def weights(version: int) -> "dict[str, Tensor]":
    """Those of another model for each version."""
    if version not in WEIGHTS:
        WEIGHTS[version] = dict(tiny_model(seed=version, layers=1).state_dict())
    return WEIGHTS[version]


class Talk:
    """Some turns, each worth the length of what was said."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def start(self, task: Task) -> str:
        return f"task {task.ordinal}"

    async def step(self, action: str) -> Step:
        self._left -= 1
        return Step(observation="go on", reward=float(len(action)), terminated=self._left == 0)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def run(engines: int = 1, **settings: Any) -> AsyncIterator[tuple[RolloutScheduler, RolloutScheduler]]:
    """A scheduler for training, whose bound is 0 or as it is given, and one for validation of long episodes."""
    from windrow.engines.torch import TorchEngine

    codec, devices = ChatCodec(tiny_tokenizer()), ResourceManager(engines)

    def make(name: str, on: tuple[int, ...], _: EngineConfig) -> TorchEngine:
        return TorchEngine(name, tiny_model(layers=1), codec, devices=on, deterministic=True, capacity=8)

    cluster: Any = Cluster("infer", make, devices, EngineConfig(codec=codec))
    config = RolloutConfig(rollout_batch_size=4, order_rows="task", **settings)
    sampling = Sampling(max_tokens=6)
    train = EnvManagerConfig(env=lambda: Talk(2), num_env_groups=2, group_size=2, sampling=sampling)
    val = EnvManagerConfig(env=lambda: Talk(12), num_env_groups=3, group_size=1, max_tasks=3, sampling=sampling)
    made = [RolloutScheduler(config, env, devices, cluster, mode) for env, mode in ((train, "train"), (val, "val"))]
    try:
        async with asyncio.timeout(LIMIT_S):
            yield made[0], made[1]
    finally:
        for scheduler in made:
            await scheduler.shutdown()


async def batch(scheduler: RolloutScheduler, step: int, n: int) -> Any:
    made = await scheduler.get_batch(DataProto(meta_info={"global_step": step}), n)
    assert made is not None
    return made.batch


def versions(tensors: Any) -> set[int]:
    return set(tensors["policy_versions"].flatten().tolist()) - {-1}


def exact(tensors: Any) -> list[Any]:
    names = ("input_ids", "infer_logprobs", "scores", "policy_versions", "turn_ids", "turn_states")
    return [tensors[name].tolist() for name in names]


def test_a_validation_aside_is_of_one_version_and_says_what_that_model_says():
    """Weights are updated twice while it is played; what it sampled is what it would have sampled alone."""

    async def scene() -> None:
        async with run() as (train, val):
            await train.update_weights(1, weights(1))
            alone = exact(await batch(val, 0, -1))
        async with run(engines=2, staleness=1.0) as (train, val):
            report = await train.update_weights(1, weights(1))
            assert report["bytes"] == sum(tensor.nbytes for tensor in weights(1).values())
            await batch(train, 0, 4)
            async with val.set_aside(1), asyncio.TaskGroup() as group:
                validation = group.create_task(batch(val, 0, -1))
                await asyncio.sleep(0)
                newest = set()
                for version in (2, 3):
                    await train.update_weights(version, weights(version))
                    newest |= versions(await batch(train, version - 1, 4))
            assert {2, 3} & newest
            assert versions(validation.result()) == {1}
            assert exact(validation.result()) == alone
            last = versions(await batch(train, 3, 4)) | versions(await batch(val, 3, -1))
            assert last <= {2, 3}

    asyncio.run(scene())


def test_a_run_that_is_restored_samples_the_same_tokens_as_one_that_never_stopped():
    async def steps(scheduler: RolloutScheduler, first: int) -> list[Any]:
        made = []
        for step in range(first, 3):
            await scheduler.update_weights(step + 1, weights(step + 1))
            made.append(exact(await batch(scheduler, step, 4)))
        return made

    async def scene() -> None:
        async with run() as (train, _):
            whole = await steps(train, 0)
        async with run() as (train, _):
            await train.update_weights(1, weights(1))
            before = exact(await batch(train, 0, 4))
            await train.update_weights(2, weights(2))
            asked = asyncio.ensure_future(batch(train, 1, 4))
            await asyncio.sleep(0.05)  # anything may have happened by now
            saved = train.snapshot()
            asked.cancel()
            await asyncio.wait({asked})
        async with run() as (train, _):
            train.restore(saved)
            assert [before, *await steps(train, 1)] == whole
        assert len({np.array(made[0]).tobytes() for made in whole}) == 3, "each version says something else"

    asyncio.run(scene())
