"""The whole rollout path with environments in processes of their own, of which some crash, hang or eat memory."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from windrow import Cluster, DataProto, EngineConfig, EnvManagerConfig, ResourceManager, RolloutConfig, RolloutScheduler
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.envs.protocol import Step
from windrow.rollout.env_config import RewardLimits
from windrow.text import ByteCodec
from windrow.trajectory import Task, Trajectory

TASKS = 60


class Moody:
    """Well behaved, unless its task says otherwise."""

    async def start(self, task: Task) -> str:
        self.seed = task.seed
        return f"task {task.seed}"

    async def step(self, action: str) -> Step:
        if self.seed % 20 == 3:
            os._exit(7)
        if self.seed % 20 == 7:
            while True:
                time.sleep(1)  # noqa: ASYNC251 -- it blocks on purpose
        if self.seed % 20 == 11:
            _ = [bytearray(1 << 20) for _ in range(1 << 20)]
        return Step(reward=1.0, terminated=True, info={"pid": os.getpid(), "seed": self.seed})

    async def close(self) -> None: ...


class Doubling:
    """An ordinary function, in a process."""

    def score(self, trajectory: Trajectory) -> float:
        assert trajectory.info["pid"] != os.getpid()
        return 2.0 * float(trajectory.info["seed"])


def scheduler(**manager: Any) -> RolloutScheduler:
    codec, devices = ByteCodec(), ResourceManager(1)
    settings = ScriptedSettings(vocabulary=257, token_s=0.001)

    def make(name: str, on: tuple[int, ...], _: EngineConfig) -> Engine:
        return ScriptedEngine(name, settings, devices=on, codec=codec)

    engines = Cluster("infer", make, devices, EngineConfig(codec=codec))
    config = RolloutConfig(rollout_batch_size=TASKS, breaker_share=1.0, env_retries=0, retry_after_s=0.0)
    usual: dict[str, Any] = {"isolation": "process", "memory_mb": 64, "max_tasks": TASKS, "group_size": 1}
    usual |= {"env": Moody, "num_env_groups": 16, "step_timeout_s": 3.0}
    envs = EnvManagerConfig(**usual | manager)
    return RolloutScheduler(config, envs, devices, engines, mode="train")


def children() -> set[int]:
    """Processes below this one."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize("reusable", [False, True])
def test_what_some_environments_do_to_themselves_costs_their_attempts_and_nothing_else(reusable: bool):
    before = children()

    async def body() -> tuple[list[float], RolloutScheduler]:
        async with asyncio.timeout(120), scheduler(reusable=reusable) as rollouts:
            batch = await rollouts.get_batch(DataProto(meta_info={"global_step": 0}), -1)
            assert batch is not None
            assert batch.batch is not None
            return batch.batch["episode_scores"].tolist(), rollouts

    scores, rollouts = asyncio.run(body())
    moody = TASKS // 20 * 3
    assert scores == [1.0] * (TASKS - moody)
    ledger = rollouts.ledger()["train"]
    assert ledger.attempts.dropped == {"failed": moody}
    assert ledger.attempts.balance == 0
    assert children() <= before


def test_environments_and_rewards_each_have_processes_of_their_own():
    before = children()

    async def body() -> list[float]:
        limits = RewardLimits(isolation="process", at_once=2)
        kinds = scheduler(env=Calm, reward=Doubling(), reward_limits=limits, max_tasks=12)
        async with asyncio.timeout(120), kinds as rollouts:
            batch = await rollouts.get_batch(DataProto(meta_info={"global_step": 0}), -1)
            assert batch is not None
            assert batch.batch is not None
            scores: list[float] = batch.batch["episode_scores"].tolist()
            return scores

    assert sorted(asyncio.run(body())) == [2.0 * seed for seed in range(12)]
    assert children() <= before


class Calm(Moody):
    """Never moody."""

    async def step(self, action: str) -> Step:
        return Step(reward=1.0, terminated=True, info={"pid": os.getpid(), "seed": self.seed})


class Deep:
    """Fails somewhere below its step."""

    async def start(self, task: Task) -> str:
        return "deep"

    async def step(self, action: str) -> Step:
        return self.open_the_door()

    def open_the_door(self) -> Step:
        raise KeyError("door")

    async def close(self) -> None: ...


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
def test_a_failed_attempt_tells_its_number_its_turn_and_its_traceback(isolation: str, caplog: pytest.LogCaptureFixture):
    async def body() -> None:
        async with asyncio.timeout(120), scheduler(env=Deep, isolation=isolation, max_tasks=1) as rollouts:
            assert await rollouts.get_batch(DataProto(meta_info={"global_step": 0}), -1) is None

    asyncio.run(body())
    assert "attempt failed: g0.a0 environment '' step 0" in caplog.text
    assert "KeyError: 'door'" in caplog.text
    assert "in open_the_door" in caplog.text
