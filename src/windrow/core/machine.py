"""The rollout scheduler's decisions: `step(event, now) -> commands`, synchronous, deterministic, pure.

Promises, each checked by `check()`:

1.  Conservation: admitted = trained + delivered and not yet trained + dropped (with a reason) + alive, for attempts
    and for groups, per mode, always.
2.  Every attempt ends exactly once. A group is in at most one batch, with exactly its size of distinct attempts. A
    batch may be handed over again, identical, under the same number, until it is acknowledged.
3.  The lag of a group is the version current when it is delivered minus its oldest policy token's. Under `wait` and
    `drop` no delivered group's lag exceeds the bound; under `keep` the mean over delivered groups does not.
4.  If `n` usable trajectories exist and a batch of `n` is wanted, it is delivered in that step. Usable: complete,
    accepted, and deliverable without forcing another living group over a hard bound.
5.  Work-conserving: no free slot and admissible attempt are left together.
6.  Work that can no longer be used is cancelled in the step that made it useless.
7.  Every lease has an owner and a deadline; when either is lost the attempt is tried again or failed with a reason.
8.  No silent stall: if a batch is wanted and cannot come, a command or a deadline is outstanding, or `why_waiting`
    says what is missing.
9.  Shrink, expand and restore happen whole or not at all.
10. Same (event, now) pairs, same commands.

An illegal event raises `IllegalEvent`, a request that would break a promise `Refused`; both change nothing. Answers
about attempts that were already forgotten are counted and ignored.
"""

from math import inf
from typing import assert_never

from windrow.core import admission, delivery, fleet, lifecycle, promises, snapshots, staff, stories
from windrow.core.books import Books
from windrow.core.commands import AnyCommand
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptProgressed,
    BatchTrained,
    BatchWanted,
    BreakerReset,
    ConsumerLost,
    EngineAssigned,
    EngineJoined,
    EngineLost,
    EngineReady,
    EngineReleased,
    EpisodeEnded,
    ExpandWanted,
    GroupJudged,
    ResumeWanted,
    ShrinkWanted,
    ShutdownWanted,
    SourceEnded,
    SourceOpened,
    SuspendWanted,
    TaskArrived,
    TaskPardoned,
    TimePassed,
    VersionPublished,
    WantWithdrawn,
    WeightsLoaded,
    WorkerBeat,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from windrow.core.faults import DeadLetter
from windrow.core.ledger import Ledger
from windrow.core.settings import Settings, checked
from windrow.core.status import Status, outstanding, status
from windrow.errors import IllegalEvent, Refused
from windrow.types import Mode

LEASE_SLACK = 64
"""Leases of ended attempts that the list may hold beyond the living ones before it is cleaned."""


class Machine:
    """One rollout scheduler: facts in, orders out."""

    def __init__(self, settings: Settings | None = None, *, books: Books | None = None) -> None:
        self._books = books or Books(checked(settings or Settings()))

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        """Take one fact in and say what must be done about it."""
        books = self._books
        before = books.now
        if not before <= now < inf:
            raise IllegalEvent(f"time went from {before} to {now} with {event}")
        books.now = now
        out: list[AnyCommand] = []
        books.out = out
        try:
            self._take_in(event)
        except (IllegalEvent, Refused) as error:
            books.now = before
            raise self._with_story(error, event) from error.__cause__
        if books.look_for_slots or books.look_for_batches or books.look_for_room:
            self._settle()
        return out

    # reading

    @property
    def now(self) -> float:
        """The time of the last event."""
        return self._books.now

    @property
    def version(self) -> int:
        """The current version of the weights."""
        return self._books.version

    @property
    def next_group(self) -> int:
        """The number that the next admitted task gets."""
        return self._books.next_group

    @property
    def settings(self) -> Settings:
        return self._books.settings

    @property
    def next_deadline(self) -> float | None:
        """When to send `TimePassed`, if nothing else happens before."""
        books = self._books
        lease = staff.first_lease(books)
        due = [] if lease is None else [lease]
        if books.rests:
            due.append(books.rests[0][0])
        if books.workers.beats:
            due.append(books.workers.beats[0][0])
        return min(due, default=None)

    @property
    def ledgers(self) -> dict[Mode, Ledger]:
        """What became of everything; to be read only."""
        return {mode: lane.ledger for mode, lane in self._books.lanes.items()}

    @property
    def late(self) -> int:
        """Answers that came for something already forgotten."""
        return self._books.late

    @property
    def halted(self) -> str:
        """Why the breaker is open; empty while it is closed."""
        return self._books.faults.halted

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Tasks in quarantine, oldest first; to be read only."""
        return list(self._books.faults.dead.values())

    def check_want(self, event: BatchWanted) -> None:
        """Raise `Refused` if `step` would refuse this, and change nothing either way."""
        delivery.check_want(self._books, event)

    def why_waiting(self, consumer: str) -> str:
        """What a waiting consumer's batch lacks, in words; empty if it does not wait."""
        return stories.why_waiting(self._books, consumer)

    def story(self, group: int, index: int | None = None) -> str:
        """What is known of a group, or of one of its attempts, as text."""
        return stories.tell(self._books, group, index)

    def status(self) -> Status:
        """Who waits for what, what plays where; a copy."""
        return status(self._books)

    def outstanding(self) -> list[AnyCommand]:
        """Orders that were given and not answered, to be given again after a restore."""
        return outstanding(self._books)

    def check(self) -> None:
        """Raise `InternalError` with a story if any promise is broken."""
        promises.check(self._books)

    def snapshot(self) -> bytes:
        """Everything, in a form from which `restore` makes a machine that goes on exactly like this one."""
        return snapshots.save(self._books)

    @classmethod
    def restore(cls, snapshot: bytes) -> "Machine":
        """A machine as it was when the snapshot was taken."""
        return cls(books=snapshots.load(snapshot))

    # taking events in: check first, then change

    def _take_in(self, event: AnyEvent) -> None:  # noqa: C901, PLR0915 -- one flat match, the commonest first
        books = self._books
        match event:
            case AttemptProgressed():
                lifecycle.progress(books, event)
            case AttemptEnded():
                lifecycle.end(books, event)
            case EpisodeEnded():
                lifecycle.play_out(books, event)
            case TaskArrived():
                admission.arrive(books, event)
            case GroupJudged():
                lifecycle.judge(books, event)
            case TimePassed():
                staff.pass_time(books)
            case BatchWanted():
                delivery.want(books, event)
            case BatchTrained(batch=number):
                delivery.trained(books, number)
            case WantWithdrawn(consumer=consumer):
                delivery.withdraw(books, consumer)
            case ConsumerLost(consumer=consumer):
                delivery.lose_consumer(books, consumer)
            case VersionPublished():
                self._publish(event)
            case WorkerJoined() | WorkerBeat() | WorkerLeft() | WorkerLost():
                self._take_in_worker(event)
            case SourceEnded() | SourceOpened():
                admission.open_or_end_source(books, event)
            case TaskPardoned(task=task):
                books.faults.dead.pop(task, None)
            case BreakerReset():
                books.faults.reset()
                books.look_everywhere()
            case ShutdownWanted():
                self._shut_down()
            case _:
                self._take_in_engine(event)

    def _take_in_worker(self, event: WorkerJoined | WorkerBeat | WorkerLeft | WorkerLost) -> None:
        books = self._books
        match event:
            case WorkerJoined():
                staff.join(books, event)
            case WorkerBeat(worker=worker):
                staff.beat(books, worker)
            case WorkerLeft(worker=worker):
                staff.leave(books, worker)
            case WorkerLost(worker=worker, why=why):
                staff.lose(books, worker, why or "it died")
            case _:
                assert_never(event)

    def _take_in_engine(  # noqa: C901 -- one flat match
        self,
        event: EngineJoined
        | EngineReady
        | EngineReleased
        | EngineLost
        | EngineAssigned
        | WeightsLoaded
        | SuspendWanted
        | ResumeWanted
        | ShrinkWanted
        | ExpandWanted,
    ) -> None:
        books = self._books
        match event:
            case WeightsLoaded():
                fleet.loaded(books, event)
            case EngineJoined():
                fleet.join(books, event)
            case EngineReady(engine=engine):
                fleet.ready(books, engine)
            case EngineReleased(engine=engine):
                fleet.released(books, engine)
            case EngineLost(engine=engine):
                fleet.lose(books, engine)
            case EngineAssigned():
                fleet.assign(books, event)
            case SuspendWanted():
                fleet.suspend(books, event)
            case ResumeWanted(holder=holder):
                fleet.resume(books, holder)
            case ShrinkWanted():
                fleet.shrink(books, event)
            case ExpandWanted():
                fleet.expand(books, event)
            case _:
                assert_never(event)
        books.look_for_slots = True  # whatever happened to an engine may open one, or leave an attempt without one

    def _publish(self, event: VersionPublished) -> None:
        books = self._books
        if event.version < books.version:
            raise IllegalEvent(f"version went back from {books.version} to {event.version}")
        jump = event.version - books.version
        books.version = event.version
        fleet.publish(books, event)
        for lane in books.lanes.values():
            delivery.grow_older(lane, jump)
            delivery.drop_stale(books, lane)
        books.look_everywhere()

    def _shut_down(self) -> None:
        books = self._books
        books.closed = True
        for group in [*books.groups.values()]:
            if group.state != "delivered":
                lifecycle.drop_group(books, group, "shutdown")
        books.look_for_batches = True

    # what follows from an event

    def _settle(self) -> None:
        """Deliver what is complete, ask for what there is room for, start what can play."""
        books = self._books
        if books.look_for_batches:
            books.look_for_batches = False
            for lane in books.lanes.values():
                delivery.drop_stale(books, lane)
                delivery.deliver(books, lane)
        if books.look_for_room:
            books.look_for_room = False
            for lane in books.lanes.values():
                admission.admit(books, lane)
        if books.look_for_slots:
            fleet.rehouse(books)
            admission.fill(books)
            books.look_for_slots = False
        if len(books.leases) > 2 * (books.running + books.scoring) + LEASE_SLACK:
            staff.clean_leases(books)

    def _with_story(self, error: IllegalEvent | Refused, event: AnyEvent) -> IllegalEvent | Refused:
        if isinstance(error, Refused):
            return error
        story = stories.about(self._books, event)
        return IllegalEvent(f"{error}\n{story}") if story else error
