"""A whole rollout path in one line, on virtual time, that is checked when the test is over.

A test is an `async def` under `@played`. Whatever `Rig`s it makes are looked at after every step of their machine and
once more at the end: the ledgers balance, nothing lives, every environment that was opened is closed, nothing lies on
the shelf that nobody waits for. A task, an async generator or a complaint of the event loop that is left over fails the
test, and so does a test that would never end.
"""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tests.rollout.toys import Echo, EnvLog, Watched, talk

from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.core.commands import AnyCommand
from windrow.core.events import AnyEvent
from windrow.core.ledger import Ledger
from windrow.core.machine import Machine
from windrow.engines.protocol import Engine
from windrow.engines.scripted import Script, ScriptedSettings
from windrow.envs.protocol import Env
from windrow.protocol import DataProto
from windrow.requests import Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.scheduler import RolloutScheduler
from windrow.rollout.tenancy import Tenancy
from windrow.rollout.virtual_time import run
from windrow.sources.lists import ListSource
from windrow.text import ByteCodec
from windrow.trajectory import Task, Trajectory
from windrow.types import MODES, Mode

CPU_LIMIT_S = 40.0
"""A test that computes for longer hangs; nothing is measured by it."""
MANY_GROUPS = 40
"""With more groups than this the promises are counted anew now and then, not after every step."""

Key = tuple[str, int, int]
"""Mode, ordinal of the task, seat: what a trajectory follows from."""

RIGS: list["Rig"] = []  # all and only those that the test in hand made

gc.freeze()  # what was imported is no garbage; the collections at the end of each test are quick


class Here:
    """Where rigs have everything: in this process."""

    devices = ResourceManager
    turns = 1
    """Of the event loop, for one step of a call."""
    buries = False
    """What is left of an engine that is lost is ended, so that its devices are free."""
    every = 1
    """Of several moments that are tried one after the other."""
    kills = False
    """What does not end is ended with its process, and closes nothing."""

    def engines(self, cluster: Cluster[Any, Any]) -> list[Watched]:
        return [engine for engine in cluster.workers.values() if isinstance(engine, Watched)]

    def queue(self, scheduler: RolloutScheduler) -> GroupQueueManager | None:
        place = scheduler._place
        assert isinstance(place, Tenancy)
        return place.queue

    def tasks(self) -> set[asyncio.Task[Any]]:
        """All tasks of the process that the scheduler is in."""
        return asyncio.all_tasks()

    def log(self) -> EnvLog:
        """Where environments say what became of them."""
        return EnvLog()

    def kept(self) -> "Kept":
        """A filter that keeps what it sees."""
        return Kept()

    def run(self, scene: Coroutine[Any, Any, None]) -> None:
        run(scene)

    async def end(self, cluster: Cluster[Any, Any]) -> None:
        """After the end of all schedulers."""


class Kept:
    """A filter that accepts every group, and keeps it."""

    def __init__(self) -> None:
        self._kept: dict[Key, Trajectory] = {}  # all complete groups

    def __call__(self, group: list[Trajectory]) -> bool:
        for trajectory in group:
            key = (trajectory.mode, trajectory.task.ordinal, trajectory.seat)
            assert key not in self._kept, f"{key} was played to its end twice"
            self._kept[key] = trajectory
        return True

    def all(self) -> dict[Key, Trajectory]:
        return self._kept


premises = Here()


class Rig:
    """A cluster of scripted engines and a scheduler on it."""

    def __init__(
        self,
        *,
        engines: int = 1,
        env: Callable[[EnvLog], Env] = Echo,
        script: Script | None = None,
        engine: dict[str, Any] | None = None,
        engine_class: Callable[..., Watched] = Watched,
        config: dict[str, Any] | None = None,
        mode: Mode = "train",
        tasks: int | None = None,
        keep: bool = False,
        collator: Callable[[DataProto], DataProto] | None = None,
        **manager: Any,
    ) -> None:
        self.log = premises.log()
        self._kept = premises.kept()
        self.schedulers: list[RolloutScheduler] = []
        self._config = {"rollout_batch_size": 8, "breaker_share": 1.0} | (config or {})
        codec = ByteCodec()
        settings = ScriptedSettings(**{"vocabulary": 257, "token_s": 0.1} | (engine or {}))
        says = script or talk()

        def make(name: str, devices: tuple[int, ...], _: EngineConfig) -> Engine:
            return engine_class(name, settings, script=says, devices=devices, codec=codec)

        self.devices = premises.devices(engines)
        self.cluster = Cluster("infer", make, self.devices, EngineConfig(codec=codec))
        if keep:
            manager["filter"] = self._kept
        if tasks is not None:
            manager["tasks"] = ListSource(Task(ordinal=0, seed=seed) for seed in range(tasks))
        self.scheduler: Any = self.join(mode, env, collator, **manager)
        RIGS.append(self)

    def join(
        self,
        mode: Mode,
        env: Callable[[EnvLog], Env] = Echo,
        collator: Callable[[DataProto], DataProto] | None = None,
        **manager: Any,
    ) -> RolloutScheduler:
        """One more scheduler on the same cluster."""
        usual: dict[str, Any] = {"group_size": 2, "num_env_groups": 4, "sampling": Sampling(max_tokens=64)}
        log = self.log
        alone = {} if "tags" in manager else {"env": lambda: env(log)}
        settings = EnvManagerConfig(**usual | alone | manager)
        config = RolloutConfig(**self._config)
        made = RolloutScheduler(config, settings, self.devices, self.cluster, mode, collator)
        self.schedulers.append(made)
        return made

    @property
    def kept(self) -> dict[Key, Trajectory]:
        """All complete groups, if it keeps them."""
        return self._kept.all()

    @property
    def engines(self) -> list[Watched]:
        return premises.engines(self.cluster)

    @property
    def engine(self) -> Watched:
        return self.engines[0]

    @property
    def queue(self) -> GroupQueueManager:
        queue = queue_of(self.scheduler)
        assert queue is not None, "nothing has begun"
        return queue

    @property
    def machine(self) -> Machine:
        return self.queue.machine

    @property
    def ledger(self) -> Ledger:
        return self.machine.ledgers["train"]

    @property
    def sampled(self) -> int:
        """Tokens that all engines have sampled."""
        return sum(engine.sampled for engine in self.engines)

    @property
    def in_flight(self) -> int:
        """Requests that the engines have now."""
        return sum(len(engine._runs) for engine in self.engines)

    async def batch(self, step: int = 0, n: int = 8, of: RolloutScheduler | None = None) -> DataProto | None:
        return await (of or self.scheduler).get_batch(at(step), n)

    async def full(self, step: int = 0, n: int = 8, of: RolloutScheduler | None = None) -> Any:
        """A batch that there must be, with tensors in it."""
        batch = await self.batch(step, n, of)
        assert batch is not None, f"no batch for step {step}"
        return batch

    def holders(self) -> set[str]:
        """Whoever holds the gate of some engine."""
        return {holder for engine in self.machine.status().engines for holder in engine.holders}

    # at the end

    def opened(self) -> list[GroupQueueManager]:
        """The queues of its schedulers: none or one."""
        queues = [queue_of(each) for each in self.schedulers]
        return [*{id(queue): queue for queue in queues if queue is not None}.values()]

    def check(self) -> None:
        for queue in self.opened():
            queue.machine.check()
            for ledger in queue.machine.ledgers.values():
                assert (ledger.attempts.balance, ledger.groups.balance) == (0, 0)

    async def end(self) -> None:
        for scheduler in self.schedulers:
            await scheduler.shutdown()
        await premises.end(self.cluster)

    def check_ended(self) -> None:
        self.check()
        for queue in self.opened():
            ledgers = queue.machine.ledgers
            alive = {mode: (ledgers[mode].attempts.alive, ledgers[mode].groups.alive) for mode in MODES}
            assert alive == {"train": (0, 0), "val": (0, 0)}, f"alive after shutdown: {alive}"
            delivered = sum(ledger.groups.delivered for ledger in ledgers.values())
            left = len(queue._dispatch.shelf) - delivered
            assert left == 0 or queue.crew.failure is not None, f"{left} groups on the shelf that nobody waits for"
        assert self.log.open == set(), f"{len(self.log.open)} environments were not closed"

    def __getstate__(self) -> dict[str, Any]:
        """All that is left of it in another process, if it comes there with a test's own function."""
        return {"log": self.log}


def queue_of(scheduler: RolloutScheduler) -> GroupQueueManager | None:
    """The queue of a scheduler; None if nothing has begun."""
    return premises.queue(scheduler)


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on virtual time, and look whether it left something behind."""

    @wraps(test)
    def on_virtual_time(**given: Any) -> None:
        play(test(**given))

    return on_virtual_time


def play(scene: Coroutine[Any, Any, None], limit_s: float = 1e5) -> None:
    """What `played` does, for scenes that are made in a test."""
    RIGS.clear()
    complaints: list[str] = []
    try:
        with _ends_some_day(), _checked_machines():
            premises.run(_watched(scene, complaints, limit_s))
    finally:
        RIGS.clear()
    gc.collect()  # an exception that nobody retrieved complains when its task goes
    assert complaints == [], f"the event loop complained: {complaints}"


async def _watched(scene: Coroutine[Any, Any, None], complaints: list[str], limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, said: complaints.append(_complaint(said)))
    async with asyncio.timeout(limit_s):
        await scene
        for rig in RIGS:
            rig.check()
        for rig in RIGS:
            await rig.end()
    for rig in RIGS:
        rig.check_ended()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left over: {sorted(task.get_name() for task in left)}"
    generators = [*loop._asyncgens]  # type: ignore[attr-defined]  # there is no other way to see them
    running = [generator for generator in generators if generator.ag_frame is not None]
    assert running == [], f"async generators are left over: {running}"


def _complaint(said: dict[str, Any]) -> str:
    return f"{said.get('message')}: {said.get('exception')!r}"


@contextmanager
def _checked_machines() -> Iterator[None]:
    """Count every machine's promises anew after each of its steps."""
    plain = Machine.step
    steps = 0

    def step(machine: Machine, event: AnyEvent, now: float) -> list[AnyCommand]:
        nonlocal steps
        commands = plain(machine, event, now)
        steps += 1
        if len(machine._books.groups) <= MANY_GROUPS or steps % 200 == 0:
            machine.check()
        return commands

    Machine.step = step  # type: ignore[method-assign, assignment]  # it does what it did
    try:
        yield
    finally:
        Machine.step = plain  # type: ignore[method-assign]


class HungError(BaseException):
    """Nobody catches it."""


@contextmanager
def _ends_some_day() -> Iterator[None]:
    """Break off a test that never gives the loop a chance to notice that it hangs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise HungError(f"still computing after {CPU_LIMIT_S} s")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def at(step: int) -> DataProto:
    """What a trainer says when it asks for a batch."""
    return DataProto(meta_info={"global_step": step})


def now() -> float:
    return asyncio.get_running_loop().time()


async def later(seconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)


def words(trajectory: Trajectory) -> tuple[Any, ...]:
    """Everything about a trajectory that does not depend on when and where it was played."""
    chains = tuple((chain.token_ids.tolist(), chain.logprobs.tolist(), authors(chain)) for chain in trajectory.chains)
    turns = tuple((turn.chain, turn.begin, turn.end, turn.reward, turn.finish) for turn in trajectory.turns)
    return chains, turns, trajectory.score, trajectory.ending


def authors(chain: Any) -> list[tuple[str, int]]:
    """Who wrote how much, versions aside."""
    runs: list[tuple[str, int]] = []
    for segment in chain.segments:
        if runs and runs[-1][0] == segment.author:
            runs[-1] = (segment.author, runs[-1][1] + segment.length)
        else:
            runs.append((segment.author, segment.length))
    return runs


def all_words(rig: Rig) -> dict[Key, tuple[Any, ...]]:
    return {key: words(trajectory) for key, trajectory in sorted(rig.kept.items())}
