"""The rollout scheduler as its users know it: ask for batches, be quiet, go on, lend devices, end.

Promises: nothing runs before the first call; `get_batch` returns as soon as enough trajectories of complete, usable
groups exist anywhere, or says why not; every call ends in bounded time, apart from `get_batch`, which waits for what it
was asked for and says what that is when it takes long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from windrow.cluster.local import ResourceManager
from windrow.core.ledger import Ledger
from windrow.core.status import Status
from windrow.errors import ConfigError, blame
from windrow.nearest import did_you_mean
from windrow.observe.metrics import Meter
from windrow.protocol import DataProto
from windrow.requests import Sampling
from windrow.rollout.batching import make_batch
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.dispatch import Delivery
from windrow.rollout.passes import one_version, read_asked, whole
from windrow.rollout.quarters import Here
from windrow.rollout.sharing import InferCluster, commons_of
from windrow.rollout.summary import note_batch
from windrow.rollout.tenancy import AnyTenancy, Handover, RolloutStatus, Tenancy
from windrow.trajectory import Trajectory
from windrow.types import MODES, AttemptId, Mode, checked

if TYPE_CHECKING:
    from windrow.engines.protocol import Weights

C = TypeVar("C", RolloutConfig, EnvManagerConfig)

Collator = Callable[[DataProto], DataProto]
"""Applied to the trajectories of a batch before it is returned."""


Listener = Callable[[Sequence[Trajectory]], object]
"""Looks at trajectories; what it returns does not matter."""


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
        self._meter = Meter()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="windrow-batch")
        self._place = _place_in(infer_cluster, self.mode, self._config, self._env)

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def initialize(self) -> None:
        """Start engines and workers; optional, and nothing the second time."""
        await self._place.ready()

    async def get_batch(self, data: DataProto, batch_size: int) -> DataProto | None:
        """The next `batch_size` trajectories (-1: all there will be); None if nothing more comes.

        For validation `data.meta_info` may have, beside `global_step`, a `pass`, which names one of several passes of a
        step, and `sampling`, settings in place of the configured ones in that pass.
        """
        asked = read_asked(data, self.mode, self._env.sampling)
        n = whole(batch_size, "batch size must be a whole number, or -1 for everything")
        began = _now()
        handed = await self._place.take(asked, n)
        if handed is None:
            return None
        self._meter.observe("batch/wait_s", [_now() - began])
        return await self._made(handed, asked.step, asked.sampling)

    async def stream(self) -> AsyncIterator[DataProto]:
        """Complete groups, one by one, as they form; each counts as trained when the next one is asked for."""
        while (handed := await self._place.take_group()) is not None:
            yield await self._made(handed, handed.delivery.order.step, self._env.sampling)

    async def mark_trained(self, batch_id: int) -> None:
        """A batch was used; it will not be asked for again."""
        await self._place.mark_trained(batch_id)

    async def suspend(self) -> None:
        """Returns when no request is generating on any engine; half-generated turns are kept."""
        await self._place.suspend()

    async def resume(self) -> None:
        """Generation goes on."""
        await self._place.resume()

    async def update_weights(self, version: int, weights: "Weights | None" = None) -> dict[str, object]:
        """Bring all engines to new weights; they serve when they have confirmed version and checksum.

        Tensors must stay as they are until the next update, because an engine that is away loads them when it comes
        back; give a folder or a copy if they change in place.
        """
        return await self._place.update_weights(version, weights)

    @asynccontextmanager
    async def set_aside(self, engines: int | Sequence[str]) -> AsyncIterator[tuple[str, ...]]:
        """Inside, so many engines, or these, play validation alone and keep their weights; yields their names.

        New weights that come meanwhile go to the others, which play training alone. At the end all engines have the
        newest weights and play everything.
        """
        if self.mode != "val":
            raise ConfigError("engines are set aside for validation; call set_aside of the val scheduler")
        chosen = await self._place.set_aside(engines)
        try:
            yield chosen
        finally:
            await self._place.bring_back()

    async def shrink_sampler(self, target_gpus: list[int]) -> dict[str, object]:
        """Engines on these devices give them back; their requests go on elsewhere."""
        return await self._place.shrink(target_gpus)

    async def expand_sampler(self, target_gpus: list[int], skip_load: bool = False) -> dict[str, object]:  # noqa: FBT001, FBT002 -- a public name that users know
        """Engines on these devices serve again."""
        return await self._place.expand(target_gpus, skip_load=skip_load)

    async def shutdown(self) -> None:
        """End everything that was started; whoever waits gets None; a second call does nothing."""
        try:
            await self._place.leave()
        finally:
            self._pool.shutdown(wait=False)

    def snapshot(self) -> bytes:
        """Everything that the schedulers of its cluster have and know, to go on from with `restore`."""
        return self._place.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Go on, with all schedulers of its cluster, from a snapshot; before any of them has begun.

        If engines were given weights then, `update_weights` comes before the next batch, with the version of then or a
        larger one.
        """
        self._place.restore(snapshot)

    def metrics(self) -> dict[str, float]:
        """Everything measured since the last look."""
        return {**self._place.metrics(), **self._meter.look()}

    def scheduling(self) -> Status | None:
        """What is scheduled, in numbers, for whoever looks often; None before the first call."""
        return self._place.scheduling()

    def status(self) -> RolloutStatus:
        """Who is in flight, on which engine, in which stage, since when, waiting for what."""
        return self._place.status()

    async def survey(self) -> RolloutStatus:
        """The same; nothing else stands still meanwhile, however far away the queue is."""
        return await self._place.survey()

    def ledger(self) -> dict[Mode, Ledger]:
        """What became of everything."""
        return self._place.ledger()

    # inside

    async def _made(self, handed: Handover, step: int, sampling: Sampling) -> DataProto:
        """A delivery as a padded batch, made off the event loop."""
        began = _now()
        delivery = handed.delivery
        version = one_version(delivery) if handed.is_pinned else delivery.order.version
        batch = await asyncio.get_running_loop().run_in_executor(self._pool, partial(self._pad, delivery))
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
            metrics={**batch.meta_info.get("metrics", {}), **handed.metrics, **self._meter.look()},
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


def _place_in(cluster: InferCluster, mode: Mode, config: RolloutConfig, env: EnvManagerConfig) -> AnyTenancy:
    """The place of a scheduler at the queue of a cluster, wherever that lives."""
    if cluster.runtime == "ray":
        from windrow.rollout.ray.offices import Engines, RemoteTenancy, seats_of

        engines = Engines(cluster.name, cluster.hosts, cluster.worker_config)
        return RemoteTenancy(cluster.office, engines, mode, config, env, seats_of(env, cluster.resource_manager))
    given = [each.reward_limits.device for each in env.by_tag().values() if each.reward_limits.device is not None]
    if given:
        raise ConfigError(
            f"reward_limits.device is {given[0]}, which only a host on Ray can have; here it says itself where it "
            f"computes, so leave it out"
        )
    return Tenancy(commons_of(cluster), Here(), mode, config, env)


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
