"""The group queue: it owns the machine, tells it what happens and carries out what it says.

Promises: all decisions are the machine's; here is only who is told what. Leases and news pass in bulk. Every wait for a
batch ends: with the batch, with None when nothing more comes, with the reason why it is refused, or with the bug that
stopped the queue. A wait that takes long says what it waits for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from windrow.core.commands import AnyCommand
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptProgressed,
    BatchTrained,
    BatchWanted,
    EngineLost,
    ResumeWanted,
    ShutdownWanted,
    SourceOpened,
    SuspendWanted,
    TimePassed,
    VersionPublished,
    WantWithdrawn,
    WorkerJoined,
    WorkerLost,
)
from windrow.core.machine import Machine
from windrow.core.settings import Settings
from windrow.core.status import Status
from windrow.engines.protocol import Engine
from windrow.errors import ConfigError, EngineError, Refused, WindrowError
from windrow.observe.metrics import Meter
from windrow.rollout.config import check_same
from windrow.rollout.dispatch import Delivery, Dispatch, GroupFilter
from windrow.rollout.fleet import Fleet, Given, Patience
from windrow.rollout.intake import Intake
from windrow.rollout.orders import (
    News,
    Order,
)
from windrow.rollout.pledges import Pledges
from windrow.rollout.snapshots import QueueSnapshot, bygone
from windrow.rollout.summary import LedgerReader
from windrow.rollout.supervision import Crew, first_of
from windrow.rollout.trays import Forget, Job
from windrow.sources.protocol import TaskSource
from windrow.trajectory import Trajectory
from windrow.types import MODES, Failed, Mode, Value

log = logging.getLogger(__name__)

ALL = -1
LEFT = "its scheduler was shut down"
OVER = "the scheduler was shut down; make a new one"
RESTORED = "restore"
"""Holds the gate of a restored queue until its engines have the weights of then."""
AT_A_TIME = 16
"""News that are taken in before others have a word."""
STOP_S = 30.0
"""How long episodes and hands may take to end when everything ends."""


class QueueOptions(Value, frozen=True, kw_only=True, gc=True):
    """What a queue needs to know beside the machine's settings."""

    patience: Patience = Patience()
    stall_after_s: float = 300.0
    """A wait for a batch says what it waits for after so long, and again each time as much has passed."""
    filters: Mapping[Mode, GroupFilter] = {}
    bury: Callable[[str], None] | None = None
    """Ends whatever is left of an engine that is lost."""
    record: Callable[[AnyEvent, float], None] | None = None
    """Told every event before it is acted on: a journal."""


class GroupQueueManager:
    """Buffers finished episodes, assembles groups, hands out batches."""

    def __init__(
        self,
        settings: Settings,
        sources: Mapping[Mode, TaskSource],
        engines: Mapping[str, Engine],
        options: QueueOptions | None = None,
    ) -> None:
        if not engines:
            raise ConfigError("a queue needs at least one engine, got none")
        self.options = options or QueueOptions()
        self.machine = Machine(settings)
        self.meter = Meter()  # of the engines
        self._meters: dict[Mode, Meter] = {mode: Meter() for mode in MODES}
        self._stalled: dict[str, str] = {}  # what each consumer that has waited long waits for
        self.steps_are_versions = True  # nobody has told us of new weights, so the step counts as the version
        self.crew = Crew("group queue", self._fail_all)
        self.pledges = Pledges(self.crew)
        self.fleet = Fleet(engines, self.tell, self.crew, self.options.patience, self.options.bury)
        self._dispatch = Dispatch(
            self.machine, self.tell, self.crew, self.fleet, self.meter, sources, self.options.filters
        )
        self._intake = Intake(self._dispatch, self.tell, partial(self.fleet.lose, is_gone=True), self._meters)
        self._alarm: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Lock()  # whoever ends everything; nobody else waits here
        self._is_stopped = False
        self._started: asyncio.Event | None = None
        self._clock_offset = 0.0
        self._reader = LedgerReader()
        self._is_restored = False
        self._positions: dict[Mode, dict[str, int]] = {}  # of restored sources that are not there yet
        self.lacks_weights = False  # it was restored, and nobody has given the engines the weights of then

    # life

    async def start(self) -> None:
        """Start the engines; the second call waits for the first."""
        self.crew.check_loop()
        if self._started is None:
            self._started = asyncio.Event()
            self._clock_offset = max(0.0, self.machine.now - asyncio.get_running_loop().time())
            self.crew.start(self._begin(self._started), "start of the engines")
        await self._started.wait()
        self.check_open()

    async def _begin(self, started: asyncio.Event) -> None:
        try:
            if self._is_restored:
                self._take_stock()
            await self.fleet.start()
            if min(self.fleet.began_with.values()) >= self.machine.version:
                self.have_weights()
        except* WindrowError as errors:
            self.crew.fail(first_of(errors))
        finally:
            started.set()

    async def shutdown(self) -> None:
        """End everything, in bounded time; one that is broken off can be called again."""
        if not self.is_closed:
            self._dispatch.is_closed = True
            self._end_all()
        async with self._stopping:
            if not self._is_stopped:
                await self._stop()
                self._is_stopped = True

    async def _stop(self) -> None:
        self._dispatch.desks.close_all()
        self._dispatch.trays.close_all()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._started is None:
            return
        if not await self.crew.stop(STOP_S):
            log.error("something did not end within %g s", STOP_S, extra={"within_s": STOP_S})
        self._started.set()
        await self.fleet.close()

    @property
    def is_closed(self) -> bool:
        return self._dispatch.is_closed

    @property
    def moved(self) -> int:
        """How many attempts have gone on with another engine, ever."""
        return self._dispatch.moved

    def add_source(self, mode: Mode, source: TaskSource, group_filter: GroupFilter | None) -> None:
        """A mode that had no tasks has some."""
        self._dispatch.sources[mode] = source
        if mode in self._positions:
            source.restore(self._positions.pop(mode))
        if group_filter is not None:
            self._dispatch.filters[mode] = group_filter
        for tag in self.machine.settings.of(mode).shares:
            self.tell(SourceOpened(mode, tag))

    def snapshot(self) -> QueueSnapshot:
        """Everything from which another queue can go on."""
        return QueueSnapshot(
            machine=self.machine.snapshot(),
            shelf=self._dispatch.shelf.copy(),
            unscored=self._dispatch.trays.unscored(),
            positions={mode: source.position() for mode, source in self._dispatch.sources.items()},
            steps_are_versions=self.steps_are_versions,
        )

    def restore(self, snapshot: QueueSnapshot) -> None:
        """Go on from a snapshot, before the start; what was in play then is played again by whoever joins.

        If engines were given weights then, nothing is generated before they are given them again, unless all of them
        say at their start that they have that version.
        """
        if self._started is not None:
            raise Refused("a queue that runs cannot be restored; make a new one and restore it before it starts")
        machine = Machine.restore(snapshot.machine)
        check_same(machine.settings, self.machine.settings)
        self.machine = self._dispatch.machine = machine
        self._dispatch.shelf = snapshot.shelf.copy()
        for kind, trajectories in snapshot.unscored.items():
            for trajectory in trajectories:
                self._dispatch.trays.put(kind, trajectory)
        self._positions = dict(snapshot.positions)
        for mode, source in self._dispatch.sources.items():
            if mode in self._positions:
                source.restore(self._positions.pop(mode))
        self.steps_are_versions = snapshot.steps_are_versions
        self.lacks_weights = not snapshot.steps_are_versions
        self._is_restored = True

    def have_weights(self) -> None:
        """The engines have weights of the newest version; a queue that was restored may go on."""
        if self.lacks_weights:
            self.lacks_weights = False
            self.tell(ResumeWanted(RESTORED))

    def _take_stock(self) -> None:
        """After a restore: who worked and waited then is gone; what was ordered is ordered again."""
        for event in bygone(self.machine.status()):
            self.tell(event)
        if self.lacks_weights:
            self.tell(SuspendWanted(RESTORED))
        for command in self.machine.outstanding():
            self._dispatch.carry_out(command)

    # for workers

    async def join(self, worker: str, slots: int, kinds: tuple[str, ...]) -> None:
        """A worker offers slots for environments of some kinds."""
        self._dispatch.desks.open(worker)
        self.tell(WorkerJoined(worker, slots, kinds))

    async def leave(self, worker: str, why: str) -> None:
        """A worker is gone, and whatever it played."""
        self._dispatch.desks.close(worker)
        if not self.is_closed:
            self.tell(WorkerLost(worker, why))

    async def dismiss(self, mode: Mode, workers: Sequence[str], rewarded: Sequence[str]) -> None:
        """The consumers of a mode, its workers and the rewards of some kinds are gone; everybody else goes on."""
        for want in self.machine.status().lanes[mode].waiting:
            future = self._dispatch.waiting.get(want.consumer)
            if future is not None and not future.done():
                future.set_result(None)
            self.tell(WantWithdrawn(want.consumer))
        for worker in workers:
            await self.leave(worker, LEFT)
        for kind in rewarded:
            await self.close_tray(kind, LEFT)

    async def lease(self, worker: str, k: int) -> list[Order]:
        """Orders for a worker, at most `k` leases among them; waits for some; none at all means that all is over."""
        return await self._dispatch.desks.fetch(worker, k)

    async def open_tray(self, kind: str, *, in_groups: bool) -> None:
        """A reward worker scores what is played of a kind."""
        mode: Mode = "val" if kind.startswith("val/") else "train"
        self._dispatch.trays.open(kind, self.machine.settings.of(mode).group_size if in_groups else 1)

    async def close_tray(self, kind: str, why: str) -> None:
        """A reward worker is gone, and with it the scores it owed."""
        for attempt in self._dispatch.trays.close(kind):
            if not self.is_closed and self._dispatch.trays.remove(attempt):
                self.tell(AttemptEnded(attempt, Failed("worker", why)))

    async def fetch_unscored(self, kind: str) -> Sequence[Job | Forget]:
        """Played episodes of a kind, to be scored; waits for some; none at all means that all is over."""
        return await self._dispatch.trays.fetch(kind)

    async def report(self, news: Sequence[News]) -> None:
        """What happened to attempts, in the order in which it happened."""
        for place, item in enumerate(news, start=1):
            if self.is_closed:
                return
            self._intake.take(item)
            if place % AT_A_TIME == 0:
                await asyncio.sleep(0)

    # for consumers

    async def get_batch(
        self, n: int, step: int, mode: Mode = "train", consumer: str = "", *, fresh_pass: bool = False
    ) -> Delivery | None:
        """Wait for `n` trajectories of complete groups; all of them if `n` is -1; None if nothing more comes."""
        self.check_alive()
        consumer = consumer or mode
        if self.is_closed:
            return None
        self.check_want(n, step, mode, consumer)
        future: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
        self._dispatch.waiting[consumer] = future
        try:
            if fresh_pass:
                self._dispatch.open_sources(mode)
            self.tell(BatchWanted(consumer, mode, n, step))
            return await self._watch(future, consumer)
        finally:
            del self._dispatch.waiting[consumer]
            if not future.done() and not self.is_closed:
                self.tell(WantWithdrawn(consumer))

    def check_want(self, n: int, step: int, mode: Mode, consumer: str) -> None:
        """Refuse what `get_batch` would refuse, before anything is changed."""
        if self.lacks_weights:
            version = self.machine.version
            raise Refused(
                f"the run was restored at version {version} and its engines do not have those weights; "
                f"call update_weights({version}, weights), or with a larger version, before get_batch"
            )
        if consumer in self._dispatch.waiting:
            raise Refused(f"{consumer!r} waits for a batch already; await that call before the next one")
        if n == ALL and self._dispatch.sources[mode].is_endless:
            raise Refused(
                "a batch of everything (-1) needs a task source that ends; set max_tasks, or ask for a number"
            )
        self.machine.check_want(BatchWanted(consumer, mode, n, step))

    async def advance_step(self, step: int) -> None:
        """A step begins; it counts as a version of the weights if nobody tells us of new ones."""
        if not self.steps_are_versions or step <= self.machine.version:
            return
        self.fleet.give(Given(version=step, by_others=True))
        self.tell(VersionPublished(step))  # an engine that has not heard of it yet gets nothing that counts as it

    async def mark_trained(self, batch_id: int) -> None:
        """A batch was used; it will not be asked for again."""
        self.tell(BatchTrained(batch_id))

    # looking

    def status(self) -> Status:
        """Who waits for what, what plays where."""
        return self.machine.status()

    def waiting_for_a_score(self, mode: Mode) -> list[Trajectory]:
        """Played episodes that no reward works on yet."""
        return self._dispatch.trays.not_given_out(f"{mode}/")

    @property
    def stalled(self) -> str:
        """What those wait for who have waited long; empty if nobody has."""
        return "; ".join(self._stalled.values())

    def metrics(self, mode: Mode = "train") -> dict[str, float]:
        """Everything measured of a mode, and of the engines, since the last look at them."""
        meter = self._meters[mode]
        self._reader.note(meter, mode, self.machine.ledgers[mode])
        return {**self.meter.look(), **meter.look()}

    # events in

    def tell(self, event: AnyEvent) -> list[AnyCommand]:
        """Let the machine know, and do what it says."""
        now = asyncio.get_running_loop().time() + self._clock_offset
        if self.options.record is not None:
            self.options.record(event, now)
        commands = self.machine.step(event, now)
        for command in commands:
            self._dispatch.carry_out(command)
        if commands or not isinstance(event, AttemptProgressed):  # progress alone brings no deadline nearer
            self._set_alarm()
        if isinstance(event, EngineLost):
            self._note_lost_engine()
        return commands

    # waiting

    async def _watch(self, future: "asyncio.Future[Delivery | None]", consumer: str) -> Delivery | None:
        """Wait for a batch.

        consumes      nothing
        waits for     the machine's answer to a consumer
        unblocked by  DeliverBatch, EndBatches, RefuseBatch, the crew's failure, the last engine's loss
        """
        try:
            while not (await asyncio.wait({future}, timeout=self.options.stall_after_s))[0]:
                self._stalled[consumer] = why = self.machine.why_waiting(consumer)
                log.warning("batch waits: %s", why, extra={"consumer": consumer, "why": why})
            return future.result()
        finally:
            self._stalled.pop(consumer, None)

    def _set_alarm(self) -> None:
        """Have the machine told of the time when its next deadline comes; an alarm that rings early does no harm."""
        deadline = self.machine.next_deadline
        if deadline is None or self.is_closed:
            return
        due = deadline - self._clock_offset
        if self._alarm is not None and not self._alarm.cancelled() and self._alarm.when() <= due:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        try:
            self.tell(TimePassed())
        except Exception as error:  # noqa: BLE001 -- nobody awaits an alarm, so whatever it is, the crew is told
            self.crew.fail(error)

    # endings

    def check_alive(self) -> None:
        """Raise what stopped the queue, if something did."""
        self.crew.check_loop()
        if self.crew.failure is not None:
            raise self.crew.failure

    def check_open(self) -> None:
        """The same, and that it was not shut down."""
        self.check_alive()
        if self.is_closed:
            raise Refused(OVER)

    def _note_lost_engine(self) -> None:
        self.meter.count("engine/lost_total")
        if self.fleet.aside and self.fleet.aside <= set(self.fleet.lost):
            self._fail_validation(f"all engines that were set aside for it are lost: {', '.join(self.fleet.aside)}")
        if len(self.fleet.lost) == len(self.fleet.engines):
            told = "; ".join(f"{name}: {why}" for name, why in self.fleet.lost.items())
            self.crew.fail(EngineError(f"all engines are lost: {told}"))

    def _fail_validation(self, why: str) -> None:
        """Whoever waits for a validation is told that it does not come; training goes on."""
        for want in self.machine.status().lanes["val"].waiting:
            future = self._dispatch.waiting.get(want.consumer)
            if future is not None and not future.done():
                future.set_exception(EngineError(f"validation cannot be played to its end: {why}; ask for it again"))
            self.tell(WantWithdrawn(want.consumer))

    def _fail_all(self, error: BaseException) -> None:
        """Whoever waits is told why it waits in vain."""
        for future in self._dispatch.waiting.values():
            if not future.done():
                future.set_exception(error)
        self.pledges.fail_all(error)

    def _end_all(self) -> None:
        """Drop what lives; whoever waits gets None."""
        if self._started is not None:
            self.tell(ShutdownWanted())
        for future in self._dispatch.waiting.values():
            if not future.done():
                future.set_result(None)
        self.pledges.fail_all(Refused(OVER))
