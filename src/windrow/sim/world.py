"""The simulated world: carries out what a scheduler orders, and tells it what happens.

Promises: the same config, seed and scheduler give the same sequence of (now, event). A scheduler is never
called while it is deciding; what its orders lead to at once is told in order afterwards. `TimePassed` comes
exactly at its deadline. The report can be taken at any moment.

consumes      happenings of the clock and deadlines of the scheduler, in order of time
waits for     nothing: time jumps
ends          after the timed steps, when every group of their tasks is settled; or when nothing more can come
"""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from math import inf
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
from windrow.core.events import AnyEvent, GroupJudged, TimePassed
from windrow.errors import InternalError
from windrow.sim.clock import Clock
from windrow.sim.config import SimConfig
from windrow.sim.draws import Draws
from windrow.sim.episodes import Episodes
from windrow.sim.fleet import Fleet
from windrow.sim.ledger import Ledger, Sums
from windrow.sim.report import Report, make_report
from windrow.sim.scheduler import Scheduler
from windrow.sim.source import TaskSource
from windrow.sim.trainer import TRAINER, Trainer
from windrow.sim.workers import Workers
from windrow.sim.workload import Workload
from windrow.types import MODES, Mode, Value

SETTLE_STEPS = 200
"""Steps after the timed ones in which their groups must settle; what takes longer is not waited for."""
PATIENCE_LEASES = 3
"""Leases' worth of time without anything begun or ended after which the run counts as stalled."""
PATIENCE_BATCHES = 50
"""Batches' worth of groups dropped for one batch after which the run counts as stalled."""
PROGRESS_HAPPENINGS = 5000
"""Happenings between two looks at the progress."""
STUCK_ALARMS = 1000
"""Deadlines in a row, without time passing, after which the scheduler counts as broken."""

Record = Callable[[float, AnyEvent], None]


class Progress(Value, frozen=True):
    """How far a run is."""

    steps: int
    of: int
    now: float
    events: int


class World:
    """One simulated run of one scheduler."""

    def __init__(
        self,
        config: SimConfig,
        scheduler: Scheduler,
        *,
        seed: int | None = None,
        record: Record | None = None,
    ) -> None:
        seed = config.seed if seed is None else seed
        self.config = config
        self.scheduler = scheduler
        self.record = record
        self.clock = Clock()
        self.told: deque[AnyEvent] = deque()  # events that the scheduler has not heard yet
        self.outcome = ""  # how the run ended; empty while it goes on
        self.closed: Sums | None = None  # the sums when the last timed step was trained
        self.deadline = inf  # of the scheduler, as it was when it last heard something
        self.alarms = 0  # deadlines in a row without time passing
        draws = Draws(seed, "world")
        tell = self.told.append
        self.workloads: dict[Mode, Workload] = {mode: Workload(config, seed, mode) for mode in MODES}
        self.ledger = Ledger(config.slots, config.steps * config.policy.batch_groups, self.clock)
        self.fleet = Fleet(config, draws, self.clock, tell)
        self.episodes = Episodes(self.workloads, self.fleet, self.ledger, config.faults.hang_s, self.clock, tell)
        self.workers = Workers(config, draws, self.episodes, self.clock, tell)
        self.trainer = Trainer(config, draws, self.fleet, self.ledger, self.clock, tell)
        self.sources = {mode: self._source(mode) for mode in MODES}

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> Report:
        """Play to the end."""
        self.fleet.open(self.episodes.answered)
        self.workers.open()
        self.trainer.want()
        self._hear()
        while not self.outcome:
            self._play(PROGRESS_HAPPENINGS)
            if on_progress is not None:
                on_progress(self.progress)
        return self.report()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        sums = self.ledger.sums
        return Progress(min(sums.steps, self.config.steps), self.config.steps, self.clock.now, sums.events)

    def report(self) -> Report:
        """What there is to say so far; at the end, what there is to say."""
        sums = self.closed or self._sums()
        return make_report(self.config, sums, self.ledger.lengths, self.outcome or "interrupted")

    def perform(self, command: AnyCommand) -> None:
        """Carry out one order."""
        match command:
            case GrantLease():
                self.episodes.begin(command)
            case CancelAttempt():
                self.episodes.cancel(command.attempt, command.why)
            case FetchTask():
                self.sources[command.mode].fetch(command.tag, command.count)
            case DeliverBatch():
                self._deliver(command)
            case MoveAttempt():
                self.episodes.move(command.attempt, command.engine)
            case JudgeGroup():
                self._judge(command.group)
            case DropGroup() | ResetGroup():
                self._forget(command)
            case RetireBatch():
                pass  # nothing is kept of a batch
            case EndBatches() | RefuseBatch():
                self._refuse(command)
            case SuspendEngine() | ResumeEngine() | ReleaseEngine() | RestoreEngine() | LoadWeights():
                self._steer(command)
            case Halt():
                self.outcome = f"halted: {command.cause}"
            case _:
                assert_never(command)

    def _source(self, mode: Mode) -> TaskSource:
        tasks = self.config.source.tasks if mode == "train" else None
        tags = list(self.config.machine.of(mode).shares)
        return TaskSource(mode, tags, tasks, self.workloads[mode], self.told.append)

    def _play(self, happenings: int) -> None:
        """Let a number of things happen."""
        clock, told = self.clock, self.told
        for _ in range(happenings):
            if self.deadline < clock.next_time:
                self._pass_time(self.deadline)
            elif clock.heap:
                clock.jump()
            else:
                self._end("stalled")
            if told:
                self._hear()
                self._consider()
            if self.outcome:
                return

    def _hear(self) -> None:
        """Tell the scheduler everything that happened, and do as it says."""
        told, step, perform, record = self.told, self.scheduler.step, self.perform, self.record
        now = self.clock.now
        while told:
            event = told.popleft()
            self.ledger.sums.events += 1
            if record is not None:
                record(now, event)
            for command in step(event, now):
                perform(command)
        deadline = self.scheduler.next_deadline
        self.deadline = inf if deadline is None else deadline

    def _pass_time(self, deadline: float) -> None:
        """Nothing happened until the scheduler's deadline."""
        self.alarms = 0 if deadline > self.clock.now else self.alarms + 1
        if self.alarms > STUCK_ALARMS:
            raise InternalError(
                f"next_deadline stays at {deadline:g} though it is {self.clock.now:g} and TimePassed was told"
            )
        self.clock.now = max(self.clock.now, deadline)
        self.told.append(TimePassed())

    def _consider(self) -> None:
        """See whether the run has come to its end."""
        sums = self.ledger.sums
        if self.closed is None and sums.steps >= self.config.steps:
            self.closed = self._sums()
        if self.trainer.has_ended:
            self._end("source ended")
        elif self.clock.now - sums.until > PATIENCE_LEASES * self.config.machine.lease_s:
            self._end("stalled")
        elif self.ledger.in_vain > PATIENCE_BATCHES * self.config.policy.batch_groups:
            self._end(f"stalled: {self.ledger.in_vain} groups were dropped for one batch")
        elif self.closed is not None and (self.ledger.is_settled or sums.steps >= self.config.steps + SETTLE_STEPS):
            self._end("done")

    def _end(self, outcome: str) -> None:
        """Nothing more will come; that matters only if timed steps are missing."""
        self.outcome = self.outcome or (outcome if self.closed is None else "done")

    def _sums(self) -> Sums:
        """What was counted up to now."""
        self.ledger.look()
        sums = deepcopy(self.ledger.sums)
        sums.engines_busy = self.fleet.busy_share(sums.until)
        sums.engines_active = self.fleet.active_share(sums.until)
        sums.env_s = self.episodes.env_s
        return sums

    def _deliver(self, batch: DeliverBatch) -> None:
        consumer = self.trainer if batch.consumer == TRAINER else self.trainer.validator
        consumer.take(batch)

    def _judge(self, group: int) -> None:
        opened = self.ledger.groups[group]
        accepted = self.workloads[opened.mode].is_accepted(opened.ordinal)
        self.told.append(GroupJudged(group, accepted, "" if accepted else "drawn"))

    def _forget(self, command: DropGroup | ResetGroup) -> None:
        if isinstance(command, DropGroup):
            self.ledger.dropped(command.group, command.why)
        else:
            self.ledger.reset(command.group, command.why)

    def _refuse(self, command: EndBatches | RefuseBatch) -> None:
        if command.consumer != TRAINER:
            return
        if isinstance(command, EndBatches):
            self.trainer.has_ended = True
        else:
            self.outcome = f"refused: {command.why}"

    def _steer(self, command: SuspendEngine | ResumeEngine | ReleaseEngine | RestoreEngine | LoadWeights) -> None:
        match command:
            case SuspendEngine():
                self.fleet.suspend(command.engine, command.how)
            case ResumeEngine():
                self.fleet.resume(command.engine)
            case ReleaseEngine():
                self.fleet.release(command.engine)
            case RestoreEngine():
                self.fleet.restore(command.engine, self.trainer.step if command.load else 0)
            case LoadWeights():
                self.fleet.load(command.engine, command.version)
            case _:
                assert_never(command)
