"""What the router and the queue cost per turn and per trajectory, beyond playing the same episodes without them.

The engines answer at once and the environment does nothing, so all that is left is the machinery. The floor is a plain
loop that plays the same episodes with the same engines and nothing in between. The alternative is the usual layout,
kept in one process to be kind to it: a central router through which every turn passes (claim, generate, release), and a
queue that takes padded trajectories one by one and concatenates them. It keeps no log-probabilities, versions,
deadlines or ledger, and nothing in it can be interrupted.

Suspending and shrinking are measured in real time with 1,000 requests in flight, beside the only thing that a system
without partial responses can do: wait until they end.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from windrow.bench import Result, Say, alternate, compared, cpu_s
from windrow.core.settings import ModeSettings, Settings
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.envs.protocol import Observation, Step
from windrow.requests import Request, Sampling, Tokens
from windrow.rollout.control import Control
from windrow.rollout.env_config import EnvConfig
from windrow.rollout.episodes import EpisodeSettings
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.workers import EnvWorker
from windrow.sources.lists import SeedSource
from windrow.text import ByteCodec, Message
from windrow.trajectory import Task

WHAT = "router and queue: overhead per turn and per trajectory at 1,000 concurrent episodes"

EPISODES = 1000
"""At once."""
BATCHES = 3
GROUP = 8
ENGINES = 4
FEW, MANY = 1, 9
"""Turns per episode; the difference tells what a turn costs."""
WIDTH = 512
"""What the alternative pads a trajectory to."""
ROUNDS = 3
HUNDRED = [1] * 100
"""What an engine says where its own time shall not count."""
CODEC = ByteCodec()
SAMPLING = Sampling(max_tokens=8)


class Idle:
    """An environment that only counts its turns."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def start(self, task: Task) -> Observation:
        return f"task {task.ordinal}"

    async def step(self, action: str) -> Step:
        self._left -= 1
        return Step(observation=action[:2], reward=1.0, terminated=self._left == 0)

    async def close(self) -> None:
        pass


def run(say: Say) -> list[Result]:
    say(f"{EPISODES} concurrent episodes, {BATCHES} batches, {ENGINES} engines that answer at once, {ROUNDS} rounds")
    plays: list[Play] = [_ours, _bare, _central]
    works = [_measured(play, turns) for play in plays for turns in (FEW, MANY)]
    seconds = alternate(ROUNDS, *works)
    ours, bare, central = (_Cost(seconds[2 * place], seconds[2 * place + 1]) for place in range(3))
    say(f"without any scheduling: {bare.turn_us:.0f} μs per turn, {bare.few_us:.0f} μs per episode of one turn")
    say(f"central router and padded queue: {central.turn_us:.0f} μs per turn")
    shrink_s, suspend_s, drain_s = alternate(ROUNDS, *(_timed(change) for change in (_shrink, _suspend, _drain)))
    return [
        compared("scheduling per turn (alternative: the turn itself, without any scheduling)",
                 ours.turn_us - bare.turn_us, bare.turn_us, "μs"),
        compared("scheduling per trajectory of one turn (alternative: the episode itself, without any)",
                 ours.few_us - bare.few_us, bare.few_us, "μs"),
        compared("a whole turn (alternative: central router)", ours.turn_us, central.turn_us, "μs"),
        compared("a whole episode of one turn (alternative: central router, padded queue)",
                 ours.few_us, central.few_us, "μs"),
        compared("suspend with 1,000 in flight (alternative: let them end)", 1000 * suspend_s, 1000 * drain_s, "ms"),
        compared("shrink by 1 of 4 engines with 1,000 in flight (alternative: let them end)",
                 1000 * shrink_s, 1000 * drain_s, "ms"),
    ]  # fmt: skip


Play = Callable[[int], Awaitable[None]]


class _Cost:
    """What a trajectory and a turn cost, from two lengths of episodes."""

    def __init__(self, few_s: float, many_s: float) -> None:
        trajectories = EPISODES * BATCHES
        self.few_us = few_s / trajectories * 1e6
        self.turn_us = (many_s / trajectories * 1e6 - self.few_us) / (MANY - FEW)


def _measured(play: Play, turns: int) -> Callable[[], float]:
    async def main() -> None:
        await play(turns)

    def measure() -> float:
        gc.collect()
        return cpu_s(lambda: asyncio.run(main()))

    return measure


def _engines() -> dict[str, Engine]:
    made: list[Engine] = [ScriptedEngine(f"e{rank}", ScriptedSettings(capacity=EPISODES)) for rank in range(ENGINES)]
    return {engine.name: engine for engine in made}


async def _ours(turns: int) -> None:
    """The queue, a worker and its routes."""
    queue = await _queue(_engines(), turns)
    for step in range(BATCHES):
        delivery = await queue.get_batch(EPISODES, step)
        assert delivery is not None
        assert len(delivery.trajectories) == EPISODES
        await queue.advance_step(step + 1)
    await queue.shutdown()


async def _queue(engines: dict[str, Engine], turns: int, sampling: Sampling = SAMPLING) -> GroupQueueManager:
    """A queue at work."""
    settings = Settings(train=ModeSettings(group_size=GROUP, batch_size=EPISODES))
    queue = GroupQueueManager(settings, {"train": SeedSource()}, engines)
    episodes = EpisodeSettings(
        codec=CODEC,
        sampling=sampling,
        max_turns=None,
        limit_tokens=4096,
        limit_is="context",
        seed=0,
    )
    await queue.start()
    envs = {"": EnvConfig(env=lambda: Idle(turns)).kind("train/")}
    worker = EnvWorker("w0", queue, engines, envs, episodes, slots=EPISODES, kinds=("train/",))
    queue.crew.spawn(worker.run(), "w0", ends_itself=True)
    return queue


# in real time, with everything in flight

Change = Callable[[GroupQueueManager], Awaitable[object]]


async def _shrink(queue: GroupQueueManager) -> object:
    return await Control(queue).shrink([0])


async def _suspend(queue: GroupQueueManager) -> None:
    await Control(queue).suspend("interrupt")


async def _drain(queue: GroupQueueManager) -> None:
    await Control(queue).suspend("drain")


def _timed(change: Change) -> Callable[[], float]:
    return lambda: asyncio.run(_time_to(change))


async def _time_to(change: Change) -> float:
    """Seconds that a change takes when 1,000 requests of about a second are in flight."""
    slow = ScriptedSettings(capacity=EPISODES, token_s=0.01, stream_every=200)
    made: list[Engine] = [
        ScriptedEngine(f"e{rank}", slow, script=lambda _: HUNDRED, devices=(rank,)) for rank in range(ENGINES)
    ]
    engines = {engine.name: engine for engine in made}
    queue = await _queue(engines, 1, Sampling(max_tokens=100))
    async with asyncio.TaskGroup() as group:
        group.create_task(_wait(queue))
        while sum([(await engine.load_report()).running for engine in made]) < EPISODES:  # noqa: ASYNC110 -- a bench
            await asyncio.sleep(0)
        began = perf_counter()
        await change(queue)
        taken = perf_counter() - began
        await queue.shutdown()
    return taken


async def _wait(queue: GroupQueueManager) -> None:
    await queue.get_batch(EPISODES, 0)


async def _bare(turns: int) -> None:
    """Every episode a plain loop: nothing decides, nothing can be interrupted."""
    engines = [*_engines().values()]
    for engine in engines:
        await engine.start()
    for _ in range(BATCHES):
        async with asyncio.TaskGroup() as group:
            for number in range(EPISODES):
                group.create_task(_play_alone(Idle(turns), number, engines[number % ENGINES]))


async def _play_alone(env: Idle, number: int, engine: Engine) -> Tokens:
    async def ask(request: Request) -> list[Tokens]:
        async with aclosing(engine.generate(request)) as chunks:
            return [chunk.token_ids async for chunk in chunks]

    return await _turns(env, number, ask)


async def _turns(env: Idle, number: int, ask: Callable[[Request], Awaitable[list[Tokens]]]) -> Tokens:
    observation = await env.start(Task(ordinal=number))
    tokens = CODEC.begin([Message("user", str(observation))])
    for turn in count():
        request = Request(id=f"{number}.{turn}", prompt=tokens, sampling=SAMPLING, seed=number)
        answer = np.concatenate(await ask(request))
        step = await env.step(CODEC.decode(answer))
        tokens = np.concatenate([tokens, answer])
        if step.terminated:
            break
        tokens = np.concatenate([tokens, CODEC.extend(answer, [Message("user", str(step.observation))])])
    return tokens


class _Central:
    """One router for all turns and one queue for all trajectories."""

    def __init__(self, engines: list[Engine]) -> None:
        self.finished: asyncio.Queue[dict[str, np.ndarray[Any, Any]]] = asyncio.Queue()
        self._engines = engines
        self._load = [0] * len(engines)
        self._calls: asyncio.Queue[tuple[str, int, asyncio.Future[int]]] = asyncio.Queue()

    async def route(self) -> None:
        """Answer claims and releases, one after the other."""
        while True:
            what, engine, answer = await self._calls.get()
            if what == "claim":
                engine = self._load.index(min(self._load))
                self._load[engine] += 1
            else:
                self._load[engine] -= 1
            answer.set_result(engine)

    async def ask(self, request: Request) -> list[Tokens]:
        engine = await self._call("claim", -1)
        try:
            async with aclosing(self._engines[engine].generate(request)) as chunks:
                return [chunk.token_ids async for chunk in chunks]
        finally:
            await self._call("release", engine)

    async def _call(self, what: str, engine: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._calls.put((what, engine, answer))
        return await answer


async def _central(turns: int) -> None:
    engines = [*_engines().values()]
    for engine in engines:
        await engine.start()
    central = _Central(engines)
    for _ in range(BATCHES):
        async with asyncio.TaskGroup() as group:
            router = group.create_task(central.route())
            for number in range(EPISODES):
                group.create_task(_play_centrally(Idle(turns), number, central))
            rows = [await central.finished.get() for _ in range(EPISODES)]
            router.cancel()
        {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}


async def _play_centrally(env: Idle, number: int, central: _Central) -> None:
    tokens = await _turns(env, number, central.ask)
    row: dict[str, np.ndarray[Any, Any]] = {key: np.zeros((1, WIDTH), kind) for key, kind in COLUMNS.items()}
    for values in row.values():
        values[0, : len(tokens)] = tokens[:WIDTH]
    await central.finished.put(row)


COLUMNS = {
    "input_ids": np.int64,
    "attention_mask": np.int64,
    "position_ids": np.int64,
    "response_mask": np.bool_,
    "prompt_mask": np.bool_,
    "scores": np.float32,
}
"""The six tensors that such a queue carries."""
