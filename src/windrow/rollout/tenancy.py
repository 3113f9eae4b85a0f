"""One mode's place at the queue of a cluster: its workers, its passes, and its say over engines and devices.

Promises: whatever a scheduler asks for is checked before anything is changed. Its workers begin with the first call and
end with it. It lives where the queue lives, so that asking it costs nothing there; a scheduler that lives elsewhere has
somebody who asks for it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from windrow.core.ledger import Ledger
from windrow.core.status import Status
from windrow.errors import ConfigError, Refused
from windrow.observe.metrics import Meter
from windrow.requests import Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig, kind_name
from windrow.rollout.dispatch import Delivery
from windrow.rollout.episodes import EpisodeSettings
from windrow.rollout.passes import Asked, Progress
from windrow.rollout.quarters import Player, Quarters, Scorer
from windrow.rollout.queue import STOP_S, GroupQueueManager
from windrow.rollout.sharing import Commons
from windrow.rollout.snapshots import Snapshot, save
from windrow.rollout.summary import note_state
from windrow.rollout.workers import Sighting
from windrow.types import Mode, Value, but

if TYPE_CHECKING:
    from windrow.engines.protocol import Weights


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


class Handover(Value, frozen=True, kw_only=True, gc=True):
    """A batch on its way to a scheduler, and what was measured until then."""

    delivery: Delivery
    metrics: dict[str, float]
    is_pinned: bool
    """It must be of one version."""


class AnyTenancy(Protocol):
    """The same, wherever its queue lives; what each call means stands in `Tenancy`."""

    async def ready(self) -> object: ...
    async def take(self, asked: Asked, n: int) -> Handover | None: ...
    async def take_group(self) -> Handover | None: ...
    async def mark_trained(self, batch_id: int) -> None: ...
    async def suspend(self) -> None: ...
    async def resume(self) -> None: ...
    async def update_weights(self, version: int, weights: "Weights | None" = None) -> dict[str, object]: ...
    async def set_aside(self, engines: int | Sequence[str]) -> tuple[str, ...]: ...
    async def bring_back(self) -> None: ...
    async def shrink(self, devices: Sequence[int]) -> dict[str, object]: ...
    async def expand(self, devices: Sequence[int], *, skip_load: bool) -> dict[str, object]: ...
    async def leave(self) -> None: ...
    def snapshot(self) -> bytes: ...
    def restore(self, snapshot: bytes) -> None: ...
    def metrics(self) -> dict[str, float]: ...
    def status(self) -> RolloutStatus: ...
    async def survey(self) -> RolloutStatus: ...
    def ledger(self) -> dict[Mode, Ledger]: ...


class Tenancy:
    """One mode's place."""

    def __init__(
        self, commons: Commons, quarters: Quarters, mode: Mode, config: RolloutConfig, env: EnvManagerConfig
    ) -> None:
        self.mode = mode
        self.queue: GroupQueueManager | None = None
        self.players: list[Player] = []
        self.scorers: list[Scorer] = []
        self._commons = commons
        self._quarters = quarters
        self._config = config
        self._env = env
        self._envs = env.kinds(mode)
        self._asking = ""  # who waits for a batch now
        self._is_pinned = mode == "val" and config.pin_validation
        self._was_pinned = self._is_pinned  # before engines were set aside
        self._meter = Meter()
        self._closed = False
        self._has_left = False  # everything that it started has ended
        commons.move_in(mode, config, env)

    async def ready(self) -> GroupQueueManager:
        """The queue, with workers on it."""
        if self._closed:
            raise Refused(f"the {self.mode} scheduler was shut down; make a new one")
        if self.queue is not None:
            self.queue.check_alive()
            return self.queue
        queue = await self._commons.open()
        if self.queue is None:  # nobody else was quicker
            self._check_engines()
            self.queue = queue
            self._start_workers(queue)
        return queue

    async def take(self, asked: Asked, n: int) -> Handover | None:
        """The next `n` trajectories; None if nothing more comes."""
        try:
            queue = await self.ready()
        except Refused:
            if self._closed:
                return None
            raise
        self._check(queue, asked, n)
        await queue.advance_step(asked.step)
        self._commons.control.let_go()
        return self._handed(await self._wait(queue, asked, n))

    async def take_group(self) -> Handover | None:
        """The next complete group, for whoever takes them one by one; None if nothing more comes."""
        if self._closed:
            return None
        queue = await self.ready()
        size = queue.machine.settings.of(self.mode).group_size
        step = self._progress.streamed
        handed = self._handed(await queue.get_batch(size, step, self.mode, f"{self.mode} stream"))
        if handed is not None:
            self._progress.streamed += 1
        return handed

    async def mark_trained(self, batch_id: int) -> None:
        """A batch was used."""
        await (await self.ready()).mark_trained(batch_id)

    async def suspend(self) -> None:
        """Returns when no request is generating on any engine."""
        if not self._closed:
            await self.ready()
            await self._commons.control.suspend(self._config.suspend_mode)

    async def resume(self) -> None:
        """Generation goes on."""
        if not self._closed:
            await self.ready()
            await self._commons.control.resume()

    async def update_weights(self, version: int, weights: "Weights | None" = None) -> dict[str, object]:
        """Bring all engines to new weights."""
        await self.ready()
        return await self._commons.control.update_weights(version, weights, self._config.suspend_mode)

    async def set_aside(self, engines: int | Sequence[str]) -> tuple[str, ...]:
        """From here on so many engines, or these, play validation alone; says which."""
        await self.ready()
        chosen = await self._commons.control.set_aside(engines)
        self._was_pinned, self._is_pinned = self._is_pinned, True
        return chosen

    async def bring_back(self) -> None:
        """The end of that."""
        self._is_pinned = self._was_pinned
        await self._commons.control.bring_back()

    async def shrink(self, devices: Sequence[int]) -> dict[str, object]:
        """Engines on these devices give them back."""
        await self.ready()
        return await self._commons.control.shrink(devices)

    async def expand(self, devices: Sequence[int], *, skip_load: bool) -> dict[str, object]:
        """Engines on these devices serve again."""
        await self.ready()
        return await self._commons.control.expand(devices, skip_load=skip_load)

    async def leave(self) -> None:
        """End everything that was started here; whoever waits gets None; a second call does nothing."""
        if self._has_left:
            return
        self._closed = True
        for one in self._everybody():
            one.dismiss()
        rewarded = [scorer.kind for scorer in self.scorers]
        await self._commons.move_out(self.mode, [player.name for player in self.players], rewarded)
        if not self._commons.is_over:
            await self._see_workers_off()
        self._has_left = True

    def state(self) -> Snapshot:
        """Everything that the schedulers of its cluster have and know."""
        if self._closed:
            raise Refused(f"the {self.mode} scheduler was shut down; take snapshots before that")
        return self._commons.state()

    def snapshot(self) -> bytes:
        """The same as bytes."""
        return save(self.state())

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot."""
        self._commons.restore(snapshot)

    def metrics(self) -> dict[str, float]:
        """Everything measured since the last look."""
        if self.queue is None:
            return {}
        note_state(self._meter, self.queue.status())
        return {**self.queue.metrics(self.mode), **self._meter.look()}

    def status(self) -> RolloutStatus:
        """Everything at this moment."""
        queue = self.queue
        by_step = queue is None or queue.steps_are_versions
        return RolloutStatus(
            mode=self.mode,
            scheduling=None if queue is None else queue.status(),
            episodes=tuple(self._sightings()),
            stalled="" if queue is None else queue.stalled,
            lost_engines={} if queue is None else dict(queue.fleet.lost),
            version_is="the step number" if by_step else "acknowledged by the engines",
        )

    async def survey(self) -> RolloutStatus:
        """The same, with a look at everybody who is elsewhere."""
        async with asyncio.TaskGroup() as group:
            for one in self._everybody():
                group.create_task(one.look(), name=f"look at {one.name}")
        return self.status()

    def ledger(self) -> dict[Mode, Ledger]:
        """What became of everything."""
        return {} if self.queue is None else self.queue.machine.ledgers

    # inside

    def _handed(self, delivery: Delivery | None) -> Handover | None:
        return (
            None if delivery is None else Handover(delivery=delivery, metrics=self.metrics(), is_pinned=self._is_pinned)
        )

    async def _see_workers_off(self) -> None:
        """Wait until what it started has ended, although others go on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                for one in self._everybody():
                    await one.ended.wait()

    def _sightings(self) -> Iterator[Sighting]:
        for one in self._everybody():
            yield from one.sightings()
        for trajectory in self.queue.waiting_for_a_score(self.mode) if self.queue is not None else ():
            yield Sighting(
                attempt=str(trajectory.attempt),
                worker="",
                engine="",
                stage="waiting for a score",
                since=trajectory.ended_at,
                turn=len(trajectory.turns),
                tokens=trajectory.policy_tokens,
            )

    def _everybody(self) -> list[Player | Scorer]:
        return [*self.players, *self.scorers]

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
        for player in self.players:
            player.sample_with(self._stopping(asked.sampling))
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

    def _check_engines(self) -> None:
        blind = [name for name, engine in self._commons.engines.items() if not engine.traits.can_train]
        if self.mode == "train" and blind:
            raise ConfigError(
                f"engine {blind[0]} gives no token ids and log-probabilities, so nothing can be trained on what it "
                f"samples; use a server that does (vLLM), or mode val"
            )

    def _start_workers(self, queue: GroupQueueManager) -> None:
        env, engines = self._env, self._commons.engines
        settings = self._episode_settings()
        kinds = tuple(kind_name(self.mode, tag) for tag in self._envs)
        self._start_scorers(queue)
        count = min(env.num_workers, env.slots)
        for rank in range(count):
            slots = env.slots // count + (rank < env.slots % count)
            name = f"{self.mode}-worker-{rank}"
            player = self._quarters.player(name, queue, engines, self._envs, settings, slots=slots, kinds=kinds)
            self.players.append(player)
            queue.crew.spawn(player.run(), name, ends_itself=True)

    def _start_scorers(self, queue: GroupQueueManager) -> None:
        for tag, env in self._env.by_tag().items():
            make = env.reward_maker()
            if make is None:
                continue
            kind = kind_name(self.mode, tag)
            scorer = self._quarters.scorer(
                f"reward of {kind}", kind, queue, make, env.reward_limits, closes=env.owns_reward
            )
            self.scorers.append(scorer)
            queue.crew.spawn(scorer.run(), scorer.name, ends_itself=True)

    def _episode_settings(self) -> EpisodeSettings:
        config, env = self._config, self._env
        context = min(engine.traits.context_tokens for engine in self._commons.engines.values())
        own = config.sequence_length if config.sequence_length is not None else context
        return EpisodeSettings(
            codec=self._commons.codec,
            sampling=self._stopping(env.sampling),
            max_turns=env.max_turns,
            limit_tokens=min(context, own),
            limit_is="context" if context <= own else "max_tokens",
            seed=config.seed,
        )

    def _stopping(self, sampling: Sampling) -> Sampling:
        """The same, with the tokens that end a message."""
        stops = {*sampling.stop_token_ids, *self._commons.codec.stop_token_ids}
        return but(sampling, stop_token_ids=tuple(sorted(stops)))
