"""The whole rollout path with a real language model: what is sampled is what the model says, disturbed or not."""

import asyncio
from collections.abc import Awaitable, Callable

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

LIMIT_S = 300.0
"""Of a whole test, so that a hang is a failure."""


class Talk:
    """Some turns, each worth the length of what was said."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def start(self, task: Task) -> str:
        return f"task {task.ordinal}: " + "talk " * (task.ordinal % 5)

    async def step(self, action: str) -> Step:
        self._left -= 1
        return Step(observation="go on", reward=float(len(action)), terminated=self._left == 0)

    async def close(self) -> None:
        pass


Disturb = Callable[[RolloutScheduler], Awaitable[None]]


async def collect(
    *,
    groups: int,
    size: int,
    turns: int,
    tokens: int,
    disturb: Disturb | None = None,
    engines: int = 1,
    **settings: object,
) -> DataProto:
    """One batch of `groups` groups, all in flight at once, disturbed meanwhile."""
    from windrow.engines.torch import TorchEngine

    codec, devices = ChatCodec(tiny_tokenizer()), ResourceManager(engines)

    def make(name: str, on: tuple[int, ...], _: EngineConfig) -> TorchEngine:
        return TorchEngine(name, tiny_model(layers=2), codec, devices=on, **settings)  # type: ignore[arg-type]

    cluster = Cluster("infer", make, devices, EngineConfig(codec=codec))
    envs = EnvManagerConfig(
        env=lambda: Talk(turns), num_env_groups=groups, group_size=size, sampling=Sampling(max_tokens=tokens)
    )
    config = RolloutConfig(rollout_batch_size=groups * size)
    async with asyncio.timeout(LIMIT_S), RolloutScheduler(config, envs, devices, cluster, mode="train") as scheduler:  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(scheduler.get_batch(DataProto(meta_info={"global_step": 0}), groups * size))
            if disturb is not None:
                await disturb(scheduler)
        batch = asked.result()
    assert batch is not None
    return batch


def by_seat(batch: DataProto) -> dict[tuple[int, int], np.ndarray]:
    """The tokens of each trajectory, by task and seat."""
    tensors = batch.batch
    assert tensors is not None
    groups, seats = tensors["traj_group_id"].tolist(), tensors["env_ids"].tolist()
    lengths = tensors["attention_mask"].sum(1).tolist()
    rows = tensors["input_ids"].numpy()
    return {(g, s): row[:n] for g, s, n, row in zip(groups, seats, lengths, rows, strict=True)}


async def in_flight(scheduler: RolloutScheduler, requests: int) -> None:
    """Until so many requests are with the engines."""
    engines = scheduler.infer_cluster.workers.values()
    while True:
        reports = [await engine.load_report() for engine in engines]
        if sum(report.running + report.waiting for report in reports) >= requests:
            return
        await asyncio.sleep(0.001)


async def stop_and_go(scheduler: RolloutScheduler) -> None:
    await in_flight(scheduler, 1000)
    for _ in range(3):
        await scheduler.suspend()
        assert all([(await e.load_report()).running == 0 for e in scheduler.infer_cluster.workers.values()])
        await scheduler.resume()
        await asyncio.sleep(0.3)


@pytest.mark.slow
def test_a_thousand_requests_interrupted_three_times_say_what_they_would_have_said():
    shape = {"groups": 125, "size": 8, "turns": 1, "tokens": 8, "deterministic": True, "capacity": 256}
    calm = by_seat(asyncio.run(collect(**shape)))  # type: ignore[arg-type]
    batch = asyncio.run(collect(**shape, disturb=stop_and_go))
    disturbed = by_seat(batch)
    assert len(calm) == 1000
    assert batch.meta_info["metrics"]["episode/requests/max"] > 1, "some were interrupted"
    assert calm.keys() == disturbed.keys()
    assert all(np.array_equal(calm[key], disturbed[key]) for key in calm)


async def shrink_and_grow(scheduler: RolloutScheduler) -> None:
    await in_flight(scheduler, 16)
    await scheduler.update_weights(1)
    await scheduler.shrink_sampler([0])
    await asyncio.sleep(0.05)
    await scheduler.suspend()
    await scheduler.resume()
    await scheduler.expand_sampler([0])
    await scheduler.update_weights(2)


@pytest.mark.parametrize("keys", [{}, {"deterministic": True}], ids=["fast", "deterministic"])
def test_log_probabilities_are_the_models_own_across_turns_and_interruptions(keys: dict[str, object]):
    batch = asyncio.run(collect(groups=4, size=4, turns=3, tokens=24, engines=2, disturb=shrink_and_grow, **keys))
    tensors = batch.batch
    assert tensors is not None
    model = tiny_model(layers=2)
    with torch.inference_mode():
        logits = model(input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]).logits
    said = torch.log_softmax(logits[:, :-1], -1).gather(-1, tensors["input_ids"][:, 1:, None])[..., 0]
    mask = tensors["response_mask"][:, 1:]
    difference = (said - tensors["infer_logprobs"][:, 1:]).abs()[mask]
    assert mask.sum() > 16 * 3
    assert difference.max() <= 1e-4
    assert set(tensors["policy_versions"].unique().tolist()) - {-1} <= {0, 1, 2}
    assert (tensors["policy_versions"] >= 0).equal(tensors["response_mask"])
