"""Carries out what the machine says: leases to desks, orders to engines, batches to whoever waits.

Promises: nothing is decided here. A command is carried out at once, or by a task of the crew that tells the machine
how it went.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

from windrow.core.commands import (
    AnyCommand,
    CancelAttempt,
    DeliverBatch,
    DropGroup,
    EndBatches,
    FetchTask,
    GrantLease,
    Halt,
    JudgeGroup,
    LoadWeights,
    MoveAttempt,
    RefuseBatch,
    ReleaseEngine,
    ResetGroup,
    RestoreEngine,
    ResumeEngine,
    RetireBatch,
    SuspendEngine,
)
from windrow.core.events import AnyEvent, GroupJudged, SourceEnded, SourceOpened, TaskArrived
from windrow.core.machine import Machine
from windrow.errors import ConfigError, Refused, RewardError, blame
from windrow.observe.metrics import Meter
from windrow.rollout.config import kind_name
from windrow.rollout.desks import Desks
from windrow.rollout.fleet import Fleet
from windrow.rollout.orders import Cancel, Lease, Move
from windrow.rollout.shelf import Shelf
from windrow.rollout.supervision import Crew
from windrow.rollout.trays import Trays
from windrow.sources.protocol import Learner, TaskSource
from windrow.trajectory import Trajectory
from windrow.types import Mode, Value

log = logging.getLogger(__name__)

GroupFilter = Callable[[list[Trajectory]], bool | Awaitable[bool]]
"""Says of a finished group whether it is worth training on."""


class Delivery(Value, frozen=True, kw_only=True, gc=True):
    """A batch, before it is padded."""

    order: DeliverBatch
    trajectories: tuple[Trajectory, ...]


class Dispatch:
    """The machine's hands, apart from those on engines."""

    def __init__(
        self,
        machine: Machine,
        tell: Callable[[AnyEvent], object],
        crew: Crew,
        fleet: Fleet,
        meter: Meter,
        sources: Mapping[Mode, TaskSource],
        filters: Mapping[Mode, GroupFilter],
    ) -> None:
        self.shelf = Shelf()
        self.desks = Desks()
        self.trays = Trays()
        self.waiting: dict[str, asyncio.Future[Delivery | None]] = {}  # all and only the consumers that wait
        self.sources = dict(sources)
        self.is_closed = False
        self.moved = 0  # attempts, ever
        self.machine = machine
        self._tell = tell
        self._crew = crew
        self._fleet = fleet
        self._meter = meter
        self.filters = dict(filters)

    def carry_out(self, command: AnyCommand) -> None:
        """Do what the machine says."""
        match command:
            case SuspendEngine() | ResumeEngine() | LoadWeights() | ReleaseEngine() | RestoreEngine():
                self._fleet.order(command)
            case GrantLease():
                self.desks.put(command.worker, self._lease(command))
            case CancelAttempt():
                self._cancel(command)
            case MoveAttempt(attempt=attempt, worker=worker, engine=engine):
                self.moved += 1
                self._meter.count("engine/moved_total")
                self.desks.put(worker, Move(attempt, engine))
            case FetchTask():
                self._crew.spawn(self._fetch(command), f"fetch of {command.count} {command.mode} tasks")
            case JudgeGroup(group=group):
                self._crew.spawn(self._judge(command), f"filter of g{group}")
            case DropGroup(group=group):
                self.shelf.drop(group)
            case ResetGroup(group=group):
                self.shelf.empty(group)
            case RetireBatch(batch=batch):
                self.shelf.retire(batch)
            case DeliverBatch() | EndBatches() | RefuseBatch():
                self._answer(command)
            case Halt(cause=cause):
                log.error("run halted: %s", cause, extra={"why": cause})
            case _:
                assert_never(command)

    def _lease(self, command: GrantLease) -> Lease:
        return Lease(
            attempt=command.attempt,
            seat=command.seat,
            task=self.shelf.task(command.attempt.group),
            mode=command.mode,
            engine=command.engine,
            version=command.version,
            deadline=command.deadline,
        )

    def _cancel(self, command: CancelAttempt) -> None:
        if command.attempt in self.trays:
            self.trays.cancel(command.attempt)
        else:
            self.desks.put(command.worker, Cancel(command.attempt, command.why))

    def _answer(self, command: DeliverBatch | EndBatches | RefuseBatch) -> None:
        future = self.waiting.get(command.consumer)
        if future is None or future.done():
            return  # whoever waited has gone; it may ask again
        match command:
            case DeliverBatch(batch=batch, groups=groups, attempts=attempts):
                taken = self.shelf.take(batch, groups, attempts)
                future.set_result(Delivery(order=command, trajectories=tuple(taken)))
            case EndBatches():
                future.set_result(None)
            case RefuseBatch(why=why):
                future.set_exception(Refused(why))
            case _:
                assert_never(command)

    async def _fetch(self, command: FetchTask) -> None:
        source = self.sources[command.mode]
        with blame(ConfigError, f"task source of {command.mode}"):
            tasks = await source.next(command.tag, command.count)
        for task in tasks:
            if self.is_closed:
                return
            group = self.machine.next_group
            self.shelf.open(group, task, command.mode)
            kind = kind_name(command.mode, command.tag)
            self._tell(TaskArrived(command.mode, task.ordinal, command.tag, kind, task.name))
        if len(tasks) < command.count and not self.is_closed:
            self._tell(SourceEnded(command.mode, command.tag))

    async def _judge(self, command: JudgeGroup) -> None:
        trajectories = self.shelf.read(command.attempts)
        mode = trajectories[0].mode
        with blame(RewardError, f"filter of g{command.group}"):
            verdict = self.filters[mode](trajectories)
            accepted = bool(await verdict if isinstance(verdict, Awaitable) else verdict)  # numpy has its own bool
        if not self.is_closed:
            self._tell(GroupJudged(command.group, accepted))

    def note_scores(self, members: list[Trajectory]) -> None:
        """A group is complete; its source may want to know how it went."""
        first = members[0]
        source = self.sources[first.mode]
        if isinstance(source, Learner) and len(members) == self.machine.settings.of(first.mode).group_size:
            with blame(ConfigError, f"task source of {first.mode}", "was told the scores of", first.task.name):
                source.note(first.task, [member.score for member in members])

    def open_sources(self, mode: Mode) -> None:
        """The source of a mode begins again."""
        self.sources[mode].rewind()
        for tag in self.machine.settings.of(mode).shares:
            self._tell(SourceOpened(mode, tag))
