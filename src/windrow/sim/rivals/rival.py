"""What all rivals have in common: groups, slots, engines, failures and batches.

Promises: a free slot plays the oldest group of its home that has a seat left. A failed attempt is tried again
at once on the same seat, as often as the machine would; then its group is replaced. What still plays for a
group that was given up plays on to no use, and the group is dropped with its last answer.

consumes      tasks, free slots, finished groups
waits for     room in its window, a free slot and an engine, a wanted batch
unblocked by  BatchTrained, AttemptEnded, WorkerJoined, EngineReady, BatchWanted
"""

from collections import deque
from heapq import heappop, heappush

from windrow.core.commands import (
    AnyCommand,
    CancelAttempt,
    DeliverBatch,
    DropGroup,
    EndBatches,
    GrantLease,
    MoveAttempt,
)
from windrow.core.delivery import OVER
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    BatchTrained,
    BatchWanted,
    EngineLost,
    SourceEnded,
    TaskArrived,
    TimePassed,
    WantWithdrawn,
    WorkerJoined,
    WorkerLost,
)
from windrow.core.settings import Settings
from windrow.sim.rivals.engines import Engines
from windrow.sim.rivals.groups import Group, Play
from windrow.sim.rivals.slots import Slots
from windrow.sim.rivals.sources import Sources
from windrow.types import AttemptId, Failed, Finished, Outcome, Reason

POOL = -1
"""The home of slots and groups that belong to nobody in particular."""


class Rival:
    """Keeps a window of `batches` batches admitted and untrained, and delivers the first groups that are complete."""

    def __init__(self, settings: Settings, *, batches: int) -> None:
        self.settings = settings
        self.group_size = settings.train.group_size
        self.batch_groups = settings.train.batch_groups
        self.window = batches * self.batch_groups  # groups that may be admitted and not yet trained on
        self.now = 0.0
        self.out: list[AnyCommand] = []
        self.wanted: BatchWanted | None = None
        self.has_begun = False  # a batch has been wanted
        self.engines = Engines()
        self.slots = Slots(self.home_of)
        self.sources = Sources(list(settings.train.shares))
        self.groups: dict[int, Group] = {}  # all and only the admitted groups, neither delivered nor given up
        self.ready: dict[int, Group] = {}  # all and only the complete ones of these, in the order of completion
        self.lines: dict[int, list[int]] = {}  # by home, a heap of the groups that may have a seat left
        self.stirred: dict[int, None] = {}  # homes in which a slot or a seat has become free
        self.playing: dict[AttemptId, Play] = {}
        self.stranded: dict[AttemptId, None] = {}  # all and only those of them that have no engine
        self.leases: deque[tuple[float, AttemptId]] = deque()  # of all that play and some that ended, in order of time
        self.num_groups = 0
        self.untrained: dict[int, int] = {}  # groups of each batch that was delivered and not yet trained on
        self.num_batches = 0

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        """Hear one fact, and say what is to be done."""
        self.now = now
        self.out = self.engines.hear(event)
        self.hear(event)
        if self.wanted is not None:
            self._serve(self.wanted)
        if self.has_begun:
            self.out += self.sources.fetch(max(0, self.room() - self.sources.num_asked))
        if self.engines.serving:
            self._move_stranded()
            while self.stirred:
                home = next(iter(self.stirred))
                del self.stirred[home]
                self.fill(home)
        return self.out

    @property
    def next_deadline(self) -> float | None:
        """When the oldest lease ends."""
        while self.leases and self.leases[0][1] not in self.playing:
            self.leases.popleft()
        return self.leases[0][0] if self.leases else None

    # what rivals do differently

    def home_of(self, slot: int) -> int:
        """To whom a slot belongs when it joins."""
        del slot
        return POOL

    def room(self) -> int:
        """Groups that may be admitted now."""
        return self.window - len(self.groups) - sum(self.untrained.values())

    def place(self, group: Group) -> None:
        """A task has arrived."""
        self.offer(group)

    def fill(self, home: int) -> None:
        """Let the free slots of a home play the seats of its oldest groups."""
        while self.slots.num_free(home):
            group = self.first(home)
            if group is None:
                return
            self._begin(group)

    def closed(self, group: Group) -> None:
        """A group is complete, or was given up and nothing plays for it any more."""

    def batch(self) -> list[Group] | None:
        """The groups of the wanted batch, if they are there; fewer if no more can come."""
        if len(self.ready) < self.batch_groups and not (self.sources.is_dry and len(self.ready) == len(self.groups)):
            return None
        return list(self.ready.values())[: self.batch_groups]

    def lag(self, group: Group) -> int:
        """How old a group is when it is delivered."""
        return self.engines.version - group.version

    # what they share

    def hear(self, event: AnyEvent) -> None:
        """Take a fact in; engines have heard it already."""
        match event:
            case AttemptEnded(attempt, outcome):
                self._end(attempt, outcome)
            case TaskArrived(mode="train"):
                self._admit(event)
            case SourceEnded(mode="train", tag=tag):
                self.sources.ended(tag)
            case WorkerJoined(worker, slots):
                self.stirred.update(dict.fromkeys(self.slots.join(worker, slots)))
            case WorkerLost(worker):
                self._lose_worker(worker)
            case EngineLost(engine):
                self._strand(engine)
            case BatchWanted(mode="train"):
                self.want(event)
            case WantWithdrawn(consumer):
                self.wanted = None if self.wanted and self.wanted.consumer == consumer else self.wanted
            case BatchTrained(batch):
                self.untrained.pop(batch, None)
            case TimePassed():
                self._pass_time()
            case _:
                pass

    def want(self, event: BatchWanted) -> None:
        """The trainer waits for a batch."""
        self.wanted = event
        self.has_begun = True

    def offer(self, group: Group) -> None:
        """A group has a seat to be played."""
        heappush(self.lines.setdefault(group.home, []), group.number)
        self.stirred[group.home] = None

    def first(self, home: int) -> Group | None:
        """The oldest group of a home that has a seat left."""
        line = self.lines.get(home, [])
        while line:
            group = self.groups.get(line[0])
            if group is not None and group.indexes and group.home == home:
                return group
            heappop(line)
        return None

    def give_up(self, group: Group, why: Reason) -> None:
        """Use nothing of a group; nobody stops what plays for it."""
        group.given_up = why
        del self.groups[group.number]
        self.ready.pop(group.number, None)
        self._close_given_up(group, why)

    def _admit(self, task: TaskArrived) -> None:
        self.sources.arrived(task.tag)
        indexes = list(range(self.group_size - 1, -1, -1))
        group = Group(self.num_groups, task.ordinal, task.tag, POOL, indexes)
        self.num_groups += 1
        self.groups[group.number] = group
        self.place(group)

    def _begin(self, group: Group) -> None:
        """Play the next attempt of a group in a slot of its home."""
        attempt = AttemptId(group.number, group.indexes.pop())
        play = Play(group, self.slots.take(group.home), self.engines.next())
        if group.version < 0:
            group.version = self.engines.version
        group.num_playing += 1
        self.playing[attempt] = play
        deadline = self.now + self.settings.lease_s
        self.leases.append((deadline, attempt))
        self.out.append(
            GrantLease(
                attempt,
                seat=attempt.index % self.group_size,
                worker=play.slot.worker,
                engine=play.engine,
                ordinal=group.ordinal,
                tag=group.tag,
                mode="train",
                version=self.engines.version,
                deadline=deadline,
            )
        )

    def _end(self, attempt: AttemptId, outcome: Outcome) -> None:
        play = self._stop(attempt)
        if play is None:
            return  # it was cancelled or lost, and its last word came late
        self.slots.give_back(play.slot)
        self.stirred[play.slot.home] = None
        if play.group.given_up is None and isinstance(outcome, Finished):
            self._finish(play.group, attempt)
        else:
            play.group.failures += play.group.given_up is None
            self._try_again(play.group, attempt)

    def _stop(self, attempt: AttemptId) -> Play | None:
        play = self.playing.pop(attempt, None)
        if play is not None:
            play.group.num_playing -= 1
            self.stranded.pop(attempt, None)
        return play

    def _finish(self, group: Group, attempt: AttemptId) -> None:
        group.finished.append(attempt)
        if len(group.finished) == self.group_size:
            self.ready[group.number] = group
            self.closed(group)

    def _try_again(self, group: Group, attempt: AttemptId) -> None:
        if group.given_up is not None:
            self._close_given_up(group, group.given_up)
        elif group.failures > self.settings.env_retries:
            self.give_up(group, "poisoned")
        else:
            group.indexes.append(attempt.index + self.group_size)
            self.offer(group)

    def _close_given_up(self, group: Group, why: Reason) -> None:
        if not group.num_playing:
            self.out.append(DropGroup(group.number, why))
            self.closed(group)

    def _lose_worker(self, worker: str) -> None:
        """Whatever a worker played is tried again; nobody is to blame."""
        self.slots.lose(worker)
        for attempt in [attempt for attempt, play in self.playing.items() if play.slot.worker == worker]:
            play = self._stop(attempt)
            assert play is not None
            self._try_again(play.group, attempt)

    def _pass_time(self) -> None:
        """Attempts whose lease has ended are stopped and count as failed."""
        while self.next_deadline is not None and self.leases[0][0] <= self.now:
            _, attempt = self.leases.popleft()
            play = self.playing[attempt]
            self.out.append(CancelAttempt(attempt, play.slot.worker, "failed"))
            self._end(attempt, Failed("env", "its lease ended"))

    def _strand(self, engine: str) -> None:
        """An engine died: whatever generated there waits for another."""
        for attempt, play in self.playing.items():
            if play.engine == engine:
                self.stranded[attempt] = None

    def _move_stranded(self) -> None:
        for attempt in self.stranded:
            play = self.playing[attempt]
            play.engine = self.engines.next()
            self.out.append(MoveAttempt(attempt, play.slot.worker, play.engine))
        self.stranded.clear()

    def _serve(self, wanted: BatchWanted) -> None:
        """Hand the wanted batch over, if it is there."""
        groups = self.batch()
        if groups is None:
            return
        self.wanted = None
        if not groups:
            self.out.append(EndBatches(wanted.consumer, OVER))
            return
        for group in groups:
            del self.groups[group.number], self.ready[group.number]
        self.untrained[self.num_batches] = len(groups)
        self.out.append(self._order(wanted, groups))
        self.num_batches += 1

    def _order(self, wanted: BatchWanted, groups: list[Group]) -> DeliverBatch:
        return DeliverBatch(
            self.num_batches,
            wanted.consumer,
            wanted.mode,
            wanted.step,
            version=self.engines.version,
            groups=tuple(group.number for group in groups),
            attempts=tuple(attempt for group in groups for attempt in sorted(group.finished)),
            lags=tuple(self.lag(group) for group in groups),
            last=self.sources.is_dry and not self.groups,
        )
