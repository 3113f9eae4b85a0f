"""With a bound of 0 the asynchronous machinery makes the very batches of a loop that does one thing after another."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.pipelines.kit import LAKE, LESSON, Notes, exact, small

from windrow.engines.torch import TorchEngine
from windrow.envs.frozen_lake import FrozenLakeEnv
from windrow.envs.places import PlaceSettings, open_place
from windrow.envs.protocol import Step
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic, Saving, Validation
from windrow.pipelines.learning import Learning, learning
from windrow.pipelines.playing import plain
from windrow.pipelines.training import Training
from windrow.protocol import DataProto
from windrow.rollout.batching import make_batch
from windrow.rollout.env_config import EnvTimes
from windrow.rollout.episodes import Episode, EpisodeSettings
from windrow.rollout.orders import Lease
from windrow.rollout.router import Route
from windrow.store.run import RunFolder
from windrow.train.estimate import estimate
from windrow.train.weights import engine_weights
from windrow.trajectory import Task, Trajectory
from windrow.types import AttemptId, but

STEPS = 3
COMPARED = ("input_ids", "policy_versions", "scores", "advantages")


class Dawdler(FrozenLakeEnv):
    """A lake whose steps take a while, now and then a long one, so that episodes overtake each other."""

    def __init__(self, pace_s: float = 0.0, **settings: object) -> None:
        super().__init__(**settings)
        self._pace_s = pace_s
        self._chance = Random(0)

    async def start(self, task: Task) -> str:
        self._chance = Random(task.seed)
        return await super().start(task)

    async def step(self, action: str) -> Step:
        await asyncio.sleep(self._pace_s * self._chance.paretovariate(1.0))
        return await super().step(action)


class Watched(Training):
    """A run that keeps what it trains on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.trained: list[DataProto] = []

    async def train(self, step: int, batch: DataProto) -> None:
        self.trained.append(batch)
        await super().train(step, batch)


class OneByOne:
    """The same algorithm without a scheduler: plays one episode after another, then trains, then loads."""

    def __init__(self, file: Agentic, made: Learning) -> None:
        self._file = file
        self._made = made
        self._config = file.collecting
        self._env = self._config.train_env_manager
        self._source = self._env.source(file.seed, "train")
        self._engine = TorchEngine("engine", plain(made.model, engine_weights(made.model)), made.codec, file.engine)

    async def batches(self) -> list[DataProto]:
        await self._engine.start()
        trained = []
        for step in range(STEPS):
            if step:
                self._made.pack(step)
                assert self._made.packed is not None
                await self._engine.load(step, self._made.packed.weights)
            batch = await self._batch(step)
            batch = estimate(self._made.look_back(batch), self._file.train.estimator, self._file.train.loss)
            trained.append(batch)
            self._made.train(batch)
        await self._engine.close()
        return trained

    async def _batch(self, version: int) -> DataProto:
        size = self._env.group_size
        tasks = await self._source.next("", self._config.rollout_batch_size // size)
        played = [await self._play(task, seat, version) for task in tasks for seat in range(size)]
        batch = make_batch(played, group_ids=[each.attempt.group for each in played])
        batch.meta_info["temperature"] = self._env.sampling.temperature
        batch.meta_info["version"] = version
        return batch

    async def _play(self, task: Task, seat: int, version: int) -> Trajectory:
        attempt = AttemptId(task.ordinal, seat)
        codec, sampling = self._made.codec, self._env.sampling
        context = self._engine.traits.context_tokens
        settings = EpisodeSettings(
            codec=codec,
            sampling=but(sampling, stop_token_ids=tuple(sorted(codec.stop_token_ids))),
            max_turns=None,
            limit_tokens=context,
            limit_is="context",
            seed=self._file.seed,
        )
        lease = Lease(
            attempt=attempt, seat=seat, task=task, mode="train", engine="engine", version=version, deadline=inf
        )
        route = Route(attempt, "engine", {"engine": self._engine}, lambda *_: None)
        episode = Episode(lease, settings, EnvTimes(start_s=60, step_s=60, close_s=60), route)
        place = open_place(self._env.factory(), PlaceSettings(name="lake"))
        try:
            return await episode.play(place, lambda _: None)
        finally:
            await episode.close()
            await place.close()


def asynchronous(file: Agentic, root: Path) -> list[DataProto]:
    with RunFolder.create(root, file.name, "pipeline: agentic\n") as folder:
        run = Watched(file, folder, Notes())
        asyncio.run(train_agent(run))
        return run.trained


def one_by_one(file: Agentic) -> list[DataProto]:
    async def main() -> list[DataProto]:
        with ThreadPoolExecutor(1) as thread:

            def off_loop(work: Any, *args: Any) -> Any:
                return asyncio.get_running_loop().run_in_executor(thread, work, *args)

            made = await learning(file, Notes(), None, off_loop, lambda _: None)
            return await OneByOne(file, made).batches()

    return asyncio.run(main())


def dawdling(pace_s: float, **rollout: Any) -> Agentic:
    """A run to the bit, whose environment takes its time."""
    file = exact(small(steps=STEPS, validate=Validation(tasks=4, every=0, greedy=False), save=Saving(every=0)))
    env = but(LAKE, env=Dawdler, env_args={**LAKE.env_args, "pace_s": pace_s})
    return but(
        file,
        rollout=but(file.rollout, train_env_manager=env, **rollout),
        warm_start=but(LESSON, env_args={"pace_s": 0.0}),
    )


@pytest.fixture(scope="module")
def expected() -> list[DataProto]:
    return one_by_one(dawdling(0.0))


def column(batch: DataProto, key: str) -> torch.Tensor:
    assert batch.batch is not None
    found = batch.batch[key]
    assert isinstance(found, torch.Tensor)
    return found


def test_bound_zero_in_asynchronous_code_gives_the_batches_of_a_loop_that_does_one_thing_after_another(
    expected: list[DataProto], tmp_path: Path
):
    ours = asynchronous(dawdling(0.001, staleness=0.0), tmp_path)
    assert len(ours) == len(expected) == STEPS
    for step, (batch, wanted) in enumerate(zip(ours, expected, strict=True)):
        for key in COMPARED:
            assert torch.equal(column(batch, key), column(wanted, key)), f"step {step}: {key}"
    assert any(column(batch, "advantages").any() for batch in expected), "nothing was learnt, so nothing was compared"


def test_a_bound_above_zero_gives_other_batches_so_the_comparison_can_tell(expected: list[DataProto], tmp_path: Path):
    ours = asynchronous(dawdling(0.001, staleness=1.0), tmp_path)
    pairs = [(column(one, "input_ids"), column(other, "input_ids")) for one, other in zip(ours, expected, strict=True)]
    assert not all(torch.equal(one, other) for one, other in pairs)
