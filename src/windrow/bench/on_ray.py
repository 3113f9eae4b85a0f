"""What the rollout path does on Ray, beside the usual layout, in one cluster on this machine.

Throughput: episodes of four turns and about 512 tokens, with engines that answer at once and an environment that does
nothing, so all that is left is what passes between processes. The alternative is the usual layout: every turn asks a
router for admission, an engine for tokens and the router again to give its place back; every episode asks a queue for
an id and puts its trajectory there, padded, one call each. It keeps no log-probabilities, versions, deadlines or
ledger, and nothing in it can be interrupted. Both have the same number of processes.

In turns each side waits while the other is measured, with its episodes where they are.

Control: how long `status` and `suspend` take while all of that goes on.

Overlap: four engines of limited speed, training on the devices of two of them for a third of a step, once with all
engines stopped meanwhile and once with the two others going on; beside it what is physically possible.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Self

import numpy as np

from windrow.bench import Result, Say, compared
from windrow.cluster.local import Cluster, EngineConfig
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.envs.protocol import Observation, Step
from windrow.protocol import DataProto
from windrow.requests import Chunk, Request, Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.scheduler import RolloutScheduler
from windrow.text import ByteCodec
from windrow.trajectory import Task
from windrow.types import Value

WHAT = "on Ray: trajectories, turns and control calls per second beside one call for everything; overlap of training"

SHAPES = ((8, 8), (64, 8), (256, 8))
"""Groups at once, and attempts in each."""
TURNS = 4
WIDTH = 512
"""Tokens of a trajectory, and what the alternative pads one to."""
SAID = 64
"""Tokens of a response, and of what the environment says to it."""
CLIENTS = 2
ENGINES = 2
ROUNDS = 3
LEAST = 1024
"""Trajectories of one measurement, at least."""
LOOKS = 200
"""Control calls of each kind."""
CODEC = ByteCodec()
WORDS = [ord("a")] * SAID
CPUS = 16
"""Of the Ray cluster: most processes wait most of the time."""
DEVICES = 4
CONTROL_SHAPE = (256, 8)
LIMIT_S = 0.1
"""What a control call may take."""
SETTLE_S = 0.05
"""Between two suspensions, so that something is under way at the next one."""
OVERLAP_ENGINES = 4
TRAINED_ON = (0, 1)
PLACES = 8
"""Requests that an engine of limited speed serves at once."""
TOKEN_S = 0.002
OVERLAP_BATCH = 128
TRAIN_S = 1.0
OVERLAP_STEPS = 10
OVERLAP_WARM = 3


class Talk:
    """An environment that answers with as much as it is told."""

    def __init__(self) -> None:
        self._left = TURNS

    async def start(self, task: Task) -> Observation:
        return f"task {task.ordinal}".ljust(SAID, ".")

    async def step(self, action: str) -> Step:
        self._left -= 1
        return Step(observation=action[:1].ljust(SAID, "."), reward=1.0, terminated=self._left == 0)

    async def close(self) -> None:
        pass


def same_words(_: Request) -> Sequence[int]:
    """What every turn says."""
    return WORDS


def quick_engine(name: str, devices: tuple[int, ...], config: EngineConfig) -> Engine:
    """Answers at once."""
    settings = ScriptedSettings(vocabulary=CODEC.vocabulary, capacity=4096, stream_every=SAID)
    return ScriptedEngine(name, settings, script=same_words, devices=devices, codec=config.codec)


class Measured(Value, frozen=True, kw_only=True):
    """One round of one shape."""

    trajectories: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.trajectories / self.seconds


def run(say: Say) -> list[Result]:
    return asyncio.run(_run(say, SHAPES, ROUNDS, LOOKS, OVERLAP_STEPS))


def run_quick(say: Say) -> list[Result]:
    return asyncio.run(_run(say, SHAPES[:1], 1, 20, OVERLAP_WARM + 3))


async def _run(say: Say, shapes: Sequence[tuple[int, int]], rounds: int, looks: int, steps: int) -> list[Result]:
    from windrow.cluster.ray.session import RayConfig, connect

    results = []
    with connect(RayConfig(cpus=CPUS), devices=DEVICES):
        for groups, size in shapes:
            results += await _throughput(say, groups, size, rounds)
        results += await _control(say, looks)
        results += await _overlap(say, rounds, steps)
    return results


# throughput


async def _throughput(say: Say, groups: int, size: int, rounds: int) -> list[Result]:
    """Both layouts in turns."""
    from windrow.bench.usual_layout import Usual

    wanted = max(LEAST, groups * size)
    ours: list[Measured] = []
    usual: list[Measured] = []
    async with _Ours(groups, size) as rollouts, Usual(groups * size, TURNS, SAID, WIDTH, CLIENTS, ENGINES) as layout:
        for _ in range(rounds + 1):  # the first one warms up
            ours.append(await _timed(rollouts.collect, wanted))
            await rollouts.pause()
            usual.append(await _timed(layout.collect, wanted))
            await layout.pause()
    fast, slow = (median(each.per_second for each in figures[1:]) for figures in (ours, usual))
    spread = ", ".join(
        f"{one.per_second / other.per_second:.1f}" for one, other in zip(ours[1:], usual[1:], strict=True)
    )
    say(f"{groups} x {size} episodes at once: {fast:.0f} against {slow:.0f} trajectories/s; rounds {spread} times")
    what = f"{groups} x {size} episodes: {{}} (alternative: one call per admission, generation, release, lease and put)"
    return [
        compared(what.format("trajectories per second"), fast, slow, "1/s"),
        compared(what.format("turns per second"), TURNS * fast, TURNS * slow, "1/s"),
    ]


async def _timed(collect: "Callable[[int], Coroutine[Any, Any, int]]", wanted: int) -> Measured:
    began = perf_counter()
    got = await collect(wanted)
    return Measured(trajectories=got, seconds=perf_counter() - began)


class _Ours:
    """A scheduler on a Ray cluster."""

    def __init__(self, groups: int, size: int) -> None:
        self._batch = groups * size
        self._step = 0
        env = EnvManagerConfig(
            env=Talk,
            num_env_groups=groups,
            group_size=size,
            num_workers=CLIENTS,
            sampling=Sampling(max_tokens=SAID),
        )
        config = RolloutConfig(rollout_batch_size=self._batch, staleness=1.0)
        self._cluster = engine_cluster(quick_engine, ENGINES)
        self.scheduler = RolloutScheduler(config, env, self._cluster.resource_manager, self._cluster, "train")

    async def __aenter__(self) -> Self:
        await self.scheduler.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.shutdown()
        self._cluster.shutdown()
        self._cluster.resource_manager.close()

    async def collect(self, wanted: int) -> int:
        """At least so many trajectories, batch after batch; how many there were."""
        got = 0
        while got < wanted:
            batch = await self.scheduler.get_batch(_at(self._step), self._batch)
            assert batch is not None
            got += len(batch)
            self._step += 1
        return got

    async def pause(self) -> None:
        """Let nothing go on while others are measured."""
        await self.scheduler.suspend()


def engine_cluster(make: "Callable[[str, tuple[int, ...], EngineConfig], Engine]", engines: int) -> Any:  # noqa: ANN401 -- one of engines
    """Engines in hosts, one on each device."""
    from windrow.cluster.ray.resources import RayResourceManager

    return Cluster("engine", make, RayResourceManager(engines), EngineConfig(codec=CODEC))


# control


async def _control(say: Say, looks: int) -> list[Result]:
    """Calls while everything goes on."""
    groups, size = CONTROL_SHAPE
    async with _Ours(groups, size) as rollouts:
        await rollouts.collect(groups * size)
        async with asyncio.TaskGroup() as group:
            load = group.create_task(_endless(rollouts), name="load")
            status = [await _took(rollouts.scheduler.survey) for _ in range(looks)]
            suspend = []
            for _ in range(looks):
                suspend.append(await _took(rollouts.scheduler.suspend))
                await rollouts.scheduler.resume()
                await asyncio.sleep(SETTLE_S)
            load.cancel()
    found = []
    for name, taken in (("status", status), ("suspend", suspend)):
        p50, p99 = median(taken), quantiles(taken, n=100)[98]
        say(f"{name} under full load, {len(taken)} calls: median {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms")
        what = f"p99 of {name} under full load of {groups} x {size} episodes (alternative: {1000 * LIMIT_S:.0f} ms)"
        found.append(compared(what, 1000 * p99, 1000 * LIMIT_S, "ms"))
    return found


async def _endless(rollouts: _Ours) -> None:
    while True:
        await rollouts.collect(1)


async def _took(call: "Callable[[], Coroutine[Any, Any, object]]") -> float:
    began = perf_counter()
    await call()
    return perf_counter() - began


# overlap


class Narrow(ScriptedEngine):
    """An engine of limited speed: so many requests at once, the others wait."""

    def __init__(self, name: str, settings: ScriptedSettings, devices: tuple[int, ...], config: EngineConfig) -> None:
        super().__init__(name, settings, script=same_words, devices=devices, codec=config.codec)
        self._free = settings.capacity
        self._line: dict[str, asyncio.Future[bool]] = {}  # all and only those that wait, in order

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if not await self._enter(request.id):
            nothing = np.empty(0, np.int32)
            yield Chunk(
                token_ids=nothing, logprobs=nothing.astype(np.float32), version=self.version, finish="interrupted"
            )
            return
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._leave()

    async def interrupt(self, requests: Sequence[str]) -> None:
        self._send_away(requests)
        await super().interrupt(requests)

    async def release(self) -> None:
        self._send_away([*self._line])
        await super().release()

    async def _enter(self, name: str) -> bool:
        """Wait for a free place; false if it is to go elsewhere."""
        if self._free > 0 and not self._line:
            self._free -= 1
            return True
        self._line[name] = asyncio.get_running_loop().create_future()
        try:
            return await self._line[name]
        finally:
            self._line.pop(name, None)

    def _leave(self) -> None:
        for name, waiting in self._line.items():
            if not waiting.done():
                waiting.set_result(True)
                del self._line[name]
                return
        self._free += 1

    def _send_away(self, requests: Sequence[str]) -> None:
        for name in requests:
            waiting = self._line.get(name)
            if waiting is not None and not waiting.done():
                waiting.set_result(False)


def narrow_engine(name: str, devices: tuple[int, ...], config: EngineConfig) -> Engine:
    """Of limited speed."""
    settings = ScriptedSettings(
        vocabulary=CODEC.vocabulary, capacity=PLACES, token_s=TOKEN_S, stream_every=SAID, context_tokens=4096
    )
    return Narrow(name, settings, devices, config)


async def _overlap(say: Say, rounds: int, steps: int) -> list[Result]:
    """Whole steps with training in them, in both ways."""
    stopped: list[float] = []
    overlapped: list[float] = []
    for _ in range(rounds):
        stopped.append(await _steps(_stop_the_world, steps))
        overlapped.append(await _steps(_share, steps))
    stop, share = median(stopped), median(overlapped)
    training = TRAIN_S / stop
    kept = 1 - len(TRAINED_ON) / OVERLAP_ENGINES
    limit = 1 / (1 - training * kept)
    say(
        f"a step of {OVERLAP_BATCH} trajectories: {stop:.2f} s with all engines stopped for training "
        f"({100 * training:.0f} % of it), {share:.2f} s with {100 * kept:.0f} % of them kept: "
        f"{stop / share:.2f} times; {limit:.2f} is possible, so {100 * stop / share / limit:.0f} % of that"
    )
    return [
        compared("whole steps per second with engines kept (alternative: all stopped)", 1 / share, 1 / stop, "1/s"),
        compared("gain by engines kept (alternative: what is physically possible)", stop / share, limit, "times"),
    ]


async def _steps(train: "Callable[[RolloutScheduler, int], Coroutine[Any, Any, None]]", steps: int) -> float:
    """Seconds per step once it goes evenly."""
    cluster = engine_cluster(narrow_engine, OVERLAP_ENGINES)
    env = EnvManagerConfig(
        env=Talk, num_env_groups=OVERLAP_BATCH // 8, group_size=8, num_workers=1, sampling=Sampling(max_tokens=SAID)
    )
    config = RolloutConfig(rollout_batch_size=OVERLAP_BATCH, staleness=1.0)
    times = []
    async with RolloutScheduler(config, env, cluster.resource_manager, cluster, "train") as scheduler:
        for step in range(steps):
            await scheduler.get_batch(_at(step), OVERLAP_BATCH)
            times.append(perf_counter())
            await train(scheduler, step + 1)
    cluster.shutdown()
    cluster.resource_manager.close()
    return (times[-1] - times[OVERLAP_WARM]) / (len(times) - 1 - OVERLAP_WARM)


async def _stop_the_world(scheduler: RolloutScheduler, version: int) -> None:
    await scheduler.suspend()
    await asyncio.sleep(TRAIN_S)
    await scheduler.update_weights(version)


async def _share(scheduler: RolloutScheduler, version: int) -> None:
    await scheduler.shrink_sampler([*TRAINED_ON])
    await asyncio.sleep(TRAIN_S)
    await scheduler.update_weights(version)
    await scheduler.expand_sampler([*TRAINED_ON])


def _at(step: int) -> DataProto:
    return DataProto(meta_info={"global_step": step})
