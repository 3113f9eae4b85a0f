"""The rollout scheduler as its users know it: ask for batches, be quiet, go on, lend devices, end.

Promises: nothing runs before the first call; `get_batch` returns as soon as enough trajectories of complete, usable
groups exist anywhere, or says why not; every call ends in bounded time, apart from `get_batch`, which waits for what it
was asked for and says what that is when it takes long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from windrow.cluster.local import ResourceManager
from windrow.core.ledger import Ledger
from windrow.core.status import Status
from windrow.errors import ConfigError, Refused, blame
from windrow.nearest import did_you_mean
from windrow.observe.metrics import Meter
from windrow.protocol import DataProto
from windrow.requests import Sampling
from windrow.rollout.batching import make_batch
from windrow.rollout.config import EnvManagerConfig, RolloutConfig, kind_name
from windrow.rollout.dispatch import Delivery
from windrow.rollout.episodes import EpisodeSettings
from windrow.rollout.passes import Asked, Progress, one_version, read_asked, whole
from windrow.rollout.queue import STOP_S, GroupQueueManager
from windrow.rollout.reward_workers import RewardWorker
from windrow.rollout.sharing import InferCluster, commons_of
from windrow.rollout.summary import note_batch, note_state
from windrow.rollout.workers import EnvWorker, Sighting
from windrow.trajectory import Trajectory
from windrow.types import MODES, AttemptId, Mode, Value, but, checked

if TYPE_CHECKING:
    from torch import Tensor

C = TypeVar("C", RolloutConfig, EnvManagerConfig)

Collator = Callable[[DataProto], DataProto]
"""Applied to the trajectories of a batch before it is returned."""


Listener = Callable[[Sequence[Trajectory]], object]
"""Looks at trajectories; what it returns does not matter."""


class RolloutStatus(Value, frozen=True, kw_only=True):
    """Everything at one moment."""

    mode: Mode
    scheduling: Status | None
    """What the machine knows; None before the first call."""
    episodes: tuple[Sighting, ...]
    """Who is in flight, on which engine, in which stage, since when."""
    stalled: str
    """What a batch waits for, once it has waited long."""
    lost_engines: dict[str, str]
    version_is: str
    """Where the version comes from: what engines acknowledged, or the step number because nobody told us."""


class RolloutScheduler:
    """Collects trajectories and hands them out in batches."""

    def __init__(
        self,
        config: RolloutConfig,
        env_manager_config: EnvManagerConfig,
        resource_manager: ResourceManager,
        infer_cluster: InferCluster,
        mode: str,
        collator: Collator | None = None,
    ) -> None:
        self.mode = _checked_mode(mode)
        self.resource_manager = resource_manager
        self.infer_cluster = infer_cluster
        self._config = _checked(config, "config")
        self._env = _checked(env_manager_config, "env_manager_config")
        self.listeners: list[Listener] = []
        """Told the trajectories of every batch that is handed out."""
        self._collator = collator
        self._envs = self._env.kinds(self.mode)
        self._commons = commons_of(infer_cluster)
        self._commons.move_in(self.mode, self._config, self._env)
        self._queue: GroupQueueManager | None = None
        self._workers: list[EnvWorker] = []
        self._reward_workers: list[RewardWorker] = []
        self._asking = ""  # who waits for a batch now
        self._is_pinned = self.mode == "val" and self._config.pin_validation
        self._meter = Meter()
        self._closed = False
        self._has_left = False  # everything that it started has ended

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def initialize(self) -> None:
        """Start engines and workers; optional, and nothing the second time."""
        await self._ready()

    async def get_batch(self, data: DataProto, batch_size: int) -> DataProto | None:
        """The next `batch_size` trajectories (-1: all there will be); None if nothing more comes.

        For validation `data.meta_info` may have, beside `global_step`, a `pass`, which names one of several passes of a
        step, and `sampling`, settings in place of the configured ones in that pass.
        """
        asked = read_asked(data, self.mode, self._env.sampling)
        n = whole(batch_size, "batch size must be a whole number, or -1 for everything")
        began = _now()
        try:
            queue = await self._ready()
        except Refused:
            if self._closed:
                return None
            raise
        self._check(queue, asked, n)
        await queue.advance_step(asked.step)
        self._commons.control.let_go()
        delivery = await self._wait(queue, asked, n)
        if delivery is None:
            return None
        self._meter.observe("batch/wait_s", [_now() - began])
        return await self._made(delivery, asked.step, asked.sampling)

    async def stream(self) -> AsyncIterator[DataProto]:
        """Complete groups, one by one, as they form; each counts as trained when the next one is asked for."""
        progress = self._progress
        while not self._closed:
            queue = await self._ready()
            size = queue.machine.settings.of(self.mode).group_size
            step = progress.streamed
            delivery = await queue.get_batch(size, step, self.mode, f"{self.mode} stream")
            if delivery is None:
                return
            progress.streamed += 1
            yield await self._made(delivery, step, self._env.sampling)

    async def mark_trained(self, batch_id: int) -> None:
        """A batch was used; it will not be asked for again."""
        await (await self._ready()).mark_trained(batch_id)

    async def suspend(self) -> None:
        """Returns when no request is generating on any engine; half-generated turns are kept."""
        if not self._closed:
            await self._ready()
            await self._commons.control.suspend(self._config.suspend_mode)

    async def resume(self) -> None:
        """Generation goes on."""
        if not self._closed:
            await self._ready()
            await self._commons.control.resume()

    async def update_weights(
        self, version: int, weights: "Mapping[str, Tensor] | Path | None" = None
    ) -> dict[str, object]:
        """Bring all engines to new weights; they serve when they have confirmed version and checksum.

        Tensors must stay as they are until the next update, because an engine that is away loads them when it comes
        back; give a folder or a copy if they change in place.
        """
        await self._ready()
        return await self._commons.control.update_weights(version, weights, self._config.suspend_mode)

    @asynccontextmanager
    async def set_aside(self, engines: int | Sequence[str]) -> AsyncIterator[tuple[str, ...]]:
        """Inside, so many engines, or these, play validation alone and keep their weights; yields their names.

        New weights that come meanwhile go to the others, which play training alone. At the end all engines have the
        newest weights and play everything.
        """
        if self.mode != "val":
            raise ConfigError("engines are set aside for validation; call set_aside of the val scheduler")
        await self._ready()
        chosen = await self._commons.control.set_aside(engines)
        before, self._is_pinned = self._is_pinned, True
        try:
            yield chosen
        finally:
            self._is_pinned = before
            await self._commons.control.bring_back()

    async def shrink_sampler(self, target_gpus: list[int]) -> dict[str, object]:
        """Engines on these devices give them back; their requests go on elsewhere."""
        await self._ready()
        return await self._commons.control.shrink(target_gpus)

    async def expand_sampler(self, target_gpus: list[int], skip_load: bool = False) -> dict[str, object]:  # noqa: FBT001, FBT002 -- a public name that users know
        """Engines on these devices serve again."""
        await self._ready()
        return await self._commons.control.expand(target_gpus, skip_load=skip_load)

    async def shutdown(self) -> None:
        """End everything that was started; whoever waits gets None; a second call does nothing."""
        if self._has_left:
            return
        self._closed = True
        for one in self._all_workers():
            one.dismiss()
        rewarded = [worker.kind for worker in self._reward_workers]
        await self._commons.move_out(self.mode, [worker.name for worker in self._workers], rewarded)
        if not self._commons.is_over:
            await self._see_workers_off()
        self._has_left = True

    def snapshot(self) -> bytes:
        """Everything that the schedulers of its cluster have and know, to go on from with `restore`."""
        if self._closed:
            raise Refused(f"the {self.mode} scheduler was shut down; take snapshots before that")
        return self._commons.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Go on, with all schedulers of its cluster, from a snapshot; before any of them has begun.

        If engines were given weights then, `update_weights` comes before the next batch, with the version of then or a
        larger one.
        """
        self._commons.restore(snapshot)

    def metrics(self) -> dict[str, float]:
        """Everything measured since the last look."""
        if self._queue is None:
            return {}
        note_state(self._meter, self._queue.status())
        return {**self._queue.metrics(self.mode), **self._meter.look()}

    def status(self) -> RolloutStatus:
        """Who is in flight, on which engine, in which stage, since when, waiting for what."""
        queue = self._queue
        by_step = queue is None or queue.steps_are_versions
        return RolloutStatus(
            mode=self.mode,
            scheduling=None if queue is None else queue.status(),
            episodes=tuple(self._sightings()),
            stalled="" if queue is None else queue.stalled,
            lost_engines={} if queue is None else dict(queue.fleet.lost),
            version_is="the step number" if by_step else "acknowledged by the engines",
        )

    def ledger(self) -> dict[Mode, Ledger]:
        """What became of everything."""
        return {} if self._queue is None else self._queue.machine.ledgers

    # inside

    async def _see_workers_off(self) -> None:
        """Wait until what it started has ended, although others go on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                for worker in self._all_workers():
                    await worker.ended.wait()

    def _sightings(self) -> Iterator[Sighting]:
        for worker in self._all_workers():
            yield from worker.sightings()
        for trajectory in self._queue.waiting_for_a_score(self.mode) if self._queue is not None else ():
            yield Sighting(
                attempt=str(trajectory.attempt),
                worker="",
                engine="",
                stage="waiting for a score",
                since=trajectory.ended_at,
                turn=len(trajectory.turns),
                tokens=trajectory.policy_tokens,
            )

    def _all_workers(self) -> list[EnvWorker | RewardWorker]:
        return [*self._workers, *self._reward_workers]

    @property
    def _progress(self) -> Progress:
        return self._commons.progress[self.mode]

    def _check(self, queue: GroupQueueManager, asked: Asked, n: int) -> None:
        """Refuse what cannot be, before anything is changed."""
        self._progress.check(asked)
        if self._asking and asked.consumer != self._asking:
            raise Refused(
                f"{self._asking!r} waits for a batch, so {asked.consumer!r} cannot begin; await that call before"
            )
        queue.check_want(n, asked.step, self.mode, asked.consumer)
        if self.mode == "train":
            self._commons.control.check_step(asked.step)

    async def _wait(self, queue: GroupQueueManager, asked: Asked, n: int) -> Delivery | None:
        """Wait for what was asked for, which may be another pass over the tasks, sampled in another way."""
        progress = self._progress
        fresh = progress.begins_anew(asked)
        for useless in progress.begin(asked):
            await queue.mark_trained(useless)
        for worker in self._workers:
            worker.sample_with(self._stopping(asked.sampling))
        self._asking = asked.consumer
        is_pinned, control = self._is_pinned, self._commons.control
        if is_pinned:
            control.pinned = asked.consumer
        try:
            delivery = await queue.get_batch(n, asked.step, self.mode, asked.consumer, fresh_pass=fresh)
        finally:
            self._asking = ""
            if is_pinned:
                control.pinned = ""
        progress.end(asked, None if delivery is None else delivery.order.batch)
        return delivery

    async def _ready(self) -> GroupQueueManager:
        """The queue, with workers on it."""
        if self._closed:
            raise Refused(f"the {self.mode} scheduler was shut down; make a new one")
        if self._queue is not None:
            self._queue.check_alive()
            return self._queue
        queue = await self._commons.open()
        if self._queue is None:  # nobody else was quicker
            self._check_engines()
            self._queue = queue
            self._start_workers(queue)
        return queue

    def _check_engines(self) -> None:
        blind = [name for name, engine in self.infer_cluster.workers.items() if not engine.traits.can_train]
        if self.mode == "train" and blind:
            raise ConfigError(
                f"engine {blind[0]} gives no token ids and log-probabilities, so nothing can be trained on what it "
                f"samples; use a server that does (vLLM), or mode val"
            )

    def _start_workers(self, queue: GroupQueueManager) -> None:
        env = self._env
        settings = self._episode_settings()
        kinds = tuple(kind_name(self.mode, tag) for tag in self._envs)
        self._start_reward_workers(queue)
        count = min(env.num_workers, env.slots)
        for rank in range(count):
            slots = env.slots // count + (rank < env.slots % count)
            name = f"{self.mode}-worker-{rank}"
            worker = EnvWorker(name, queue, self.infer_cluster.workers, self._envs, settings, slots=slots, kinds=kinds)
            self._workers.append(worker)
            queue.crew.spawn(worker.run(), name, ends_itself=True)

    def _start_reward_workers(self, queue: GroupQueueManager) -> None:
        for tag, env in self._env.by_tag().items():
            make = env.reward_maker()
            if make is None:
                continue
            kind = kind_name(self.mode, tag)
            worker = RewardWorker(f"reward of {kind}", kind, queue, make, env.reward_limits, closes=env.owns_reward)
            self._reward_workers.append(worker)
            queue.crew.spawn(worker.run(), worker.name, ends_itself=True)

    def _episode_settings(self) -> EpisodeSettings:
        config, env = self._config, self._env
        context = min(engine.traits.context_tokens for engine in self.infer_cluster.workers.values())
        own = config.sequence_length if config.sequence_length is not None else context
        return EpisodeSettings(
            codec=self.infer_cluster.worker_config.codec,
            sampling=self._stopping(env.sampling),
            max_turns=env.max_turns,
            limit_tokens=min(context, own),
            limit_is="context" if context <= own else "max_tokens",
            seed=config.seed,
        )

    def _stopping(self, sampling: Sampling) -> Sampling:
        """The same, with the tokens that end a message."""
        stops = {*sampling.stop_token_ids, *self.infer_cluster.worker_config.codec.stop_token_ids}
        return but(sampling, stop_token_ids=tuple(sorted(stops)))

    async def _made(self, delivery: Delivery, step: int, sampling: Sampling) -> DataProto:
        """A delivery as a padded batch, made off the event loop."""
        began = _now()
        loop = asyncio.get_running_loop()
        version = one_version(delivery) if self._is_pinned else delivery.order.version
        batch = await loop.run_in_executor(self._commons.pool, partial(self._pad, delivery))
        self._meter.observe("batch/making_s", [_now() - began])
        for listener in self.listeners:
            listener(delivery.trajectories)
        note_batch(self._meter, delivery, {tag: env.success_at for tag, env in self._env.by_tag().items()})
        order = delivery.order
        batch.meta_info.update(
            global_step=step,
            batch_id=order.batch,
            version=version,
            last=order.last,
            short=order.short,
            temperature=sampling.temperature,
            metrics={**batch.meta_info.get("metrics", {}), **self.metrics()},
        )
        return batch

    def _pad(self, delivery: Delivery) -> DataProto:
        config = self._config
        trajectories = [*delivery.trajectories]
        if config.order_rows == "task":
            trajectories.sort(key=_by_task)
        batch = make_batch(
            trajectories,
            group_ids=[trajectory.attempt.group for trajectory in trajectories],
            rows=config.rows,
            sequence_length=config.sequence_length,
            pad_to_multiple=config.pad_to_multiple,
            pad_token_id=config.pad_token_id,
        )
        if self._collator is None:
            return batch
        with blame(ConfigError, "collator"):
            collated = self._collator(batch)
        if not isinstance(collated, DataProto):
            raise ConfigError(f"the collator returned {type(collated).__name__}; it takes a DataProto and returns one")
        return collated


def _checked(section: C, what: str) -> C:
    """A section within its bounds; one that was made in Python was not looked at yet."""
    try:
        return checked(section)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def _checked_mode(mode: str) -> Mode:
    for known in MODES:
        if mode == known:
            return known
    raise ConfigError(f"mode must be train or val, got {mode!r}{did_you_mean(str(mode), MODES)}")


def _by_task(trajectory: Trajectory) -> tuple[int, str, int, AttemptId]:
    """Where a row stands if rows are in the order of tasks."""
    return trajectory.task.ordinal, trajectory.task.tag, trajectory.seat, trajectory.attempt


def _now() -> float:
    return asyncio.get_running_loop().time()
