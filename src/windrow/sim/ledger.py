"""The account of a run, kept by watching what is ordered and what happens.

Promises: it knows nothing that an outsider could not see. Slot-seconds are counted as they pass; work is
booked as waste when it becomes useless. Lengths are compared over the first tasks of the source alone, as
many as the timed steps need, and over settled groups alone, so the end of the run favours no length.
"""

from windrow.core.commands import DeliverBatch, GrantLease
from windrow.sim.clock import Clock
from windrow.types import CAUSE_OF, AttemptId, Cause, Mode, Reason, Record


class Played(Record):
    """A finished attempt whose group is still open."""

    index: int
    seconds: float
    length: float


class OpenGroup(Record):
    """A group that has begun and is not settled."""

    ordinal: int
    mode: Mode
    seats: int = 0
    """One bit for each seat that was begun; a retry draws nothing new."""
    drawn_length: float = 0.0
    """Lengths of those seats."""
    finished: list[Played] = []


class Sums(Record):
    """What is counted over time."""

    until: float = 0.0
    events: int = 0
    steps: int = 0
    trajectories: int = 0
    """In batches that were trained on."""
    busy_s: float = 0.0
    """Slot-seconds in which a slot was occupied."""
    wanted_s: float = 0.0
    """Seconds in which the trainer waited."""
    idle_wanted_s: float = 0.0
    """Slot-seconds in which a slot was free while the trainer waited."""
    engines_busy: float = 0.0
    """Share of the engines' capacity."""
    engines_active: float = 0.0
    """Share of their time in which they had anything to do."""
    env_s: float = 0.0
    """Slot-seconds in which an environment worked."""
    waits_s: list[float] = []
    """How long each batch was waited for."""
    lags: dict[int, int] = {}
    """Delivered groups by lag."""
    dropped: dict[Reason, int] = {}
    waste_s: dict[Cause, float] = {}
    """Slot-seconds of work that came to nothing."""


class LengthSums(Record):
    """Seats of settled groups among the first tasks."""

    settled: int = 0
    """Groups."""
    drawn: int = 0
    drawn_length: float = 0.0
    delivered: int = 0
    delivered_length: float = 0.0


class Ledger:
    """Counts."""

    def __init__(self, slots: int, horizon: int, clock: Clock) -> None:
        self.slots = slots
        self.horizon = horizon  # training tasks with a smaller ordinal count for lengths
        self.clock = clock
        self.sums = Sums()
        self.lengths = LengthSums()
        self.groups: dict[int, OpenGroup] = {}  # all and only the begun groups that are not settled
        self.early = 0  # of these, training groups that count for lengths
        self.never_begun = 0  # dropped groups that had not begun, whose ordinal nobody saw
        self.occupied = 0
        self.in_vain = 0  # groups dropped since the last batch
        self.wanted_at: float | None = None  # since when the trainer waits

    def granted(self, grant: GrantLease, length: float) -> None:
        """An attempt begins, whose full length would be `length`."""
        self.look()
        self.occupied += 1
        group = self.groups.get(grant.attempt.group)
        if group is None:
            group = self.groups[grant.attempt.group] = OpenGroup(grant.ordinal, grant.mode)
            self.early += self._counts(group)
        seat = 1 << grant.seat
        if not group.seats & seat:
            group.seats |= seat
            group.drawn_length += length

    def vacated(self) -> None:
        """A slot is free again."""
        self.look()
        self.occupied -= 1

    def finished(self, attempt: AttemptId, seconds: float, length: float) -> None:
        """An attempt that held a slot for so long has its score."""
        group = self.groups.get(attempt.group)
        if group is None:
            self._waste("spare", seconds)  # its group was full without it
        else:
            group.finished.append(Played(attempt.index, seconds, length))

    def stopped(self, seconds: float, cause: Cause) -> None:
        """An attempt that held a slot for so long ended in vain."""
        self._waste(cause, seconds)

    def wanted(self) -> None:
        """The trainer waits for a batch."""
        self.look()
        self.wanted_at = self.clock.now

    def delivered(self, batch: DeliverBatch) -> None:
        """A consumer received a batch."""
        self.look()
        if batch.mode == "train":
            self._received(batch)
        used: dict[int, set[int]] = {group: set() for group in batch.groups}
        for attempt in batch.attempts:
            used[attempt.group].add(attempt.index)
        for group, indexes in used.items():
            self._settle(group, indexes, "spare")

    def dropped(self, group: int, why: Reason) -> None:
        """A group will never be delivered."""
        self.in_vain += 1
        opened = self.groups.get(group)
        if opened is None:
            self.never_begun += 1
        if opened is None or opened.mode == "train":
            self.sums.dropped[why] = self.sums.dropped.get(why, 0) + 1
        self._settle(group, set(), CAUSE_OF[why])

    def reset(self, group: int, why: Reason) -> None:
        """What a group has is thrown away; it is played again later."""
        opened = self.groups.get(group)
        if opened is None:
            return
        for played in opened.finished:
            self._waste(CAUSE_OF[why], played.seconds)
        opened.finished = []

    def trained(self, trajectories: int) -> None:
        """A batch was trained on."""
        self.look()
        self.sums.steps += 1
        self.sums.trajectories += trajectories

    def look(self) -> None:
        """Count the time up to now."""
        sums = self.sums
        passed = self.clock.now - sums.until
        if passed <= 0.0:
            return
        sums.until = self.clock.now
        sums.busy_s += passed * self.occupied
        if self.wanted_at is not None:
            sums.wanted_s += passed
            sums.idle_wanted_s += passed * (self.slots - self.occupied)

    @property
    def is_settled(self) -> bool:
        """Every group that counts for lengths was delivered or dropped."""
        return not self.early and self.lengths.settled + self.never_begun >= self.horizon

    def _counts(self, group: OpenGroup) -> bool:
        return group.mode == "train" and group.ordinal < self.horizon

    def _received(self, batch: DeliverBatch) -> None:
        self.in_vain = 0
        if self.wanted_at is not None:
            self.sums.waits_s.append(self.clock.now - self.wanted_at)
        self.wanted_at = None
        for lag in batch.lags:
            self.sums.lags[lag] = self.sums.lags.get(lag, 0) + 1

    def _settle(self, number: int, used: set[int], cause: Cause) -> None:
        """Close a group: what was not used of it was wasted."""
        group = self.groups.pop(number, None)
        if group is None:
            return
        counts = self._counts(group)
        if counts:
            self.early -= 1
            self.lengths.settled += 1
            self.lengths.drawn += group.seats.bit_count()
            self.lengths.drawn_length += group.drawn_length
        for played in group.finished:
            if played.index not in used:
                self._waste(cause, played.seconds)
            elif counts:
                self.lengths.delivered += 1
                self.lengths.delivered_length += played.length

    def _waste(self, cause: Cause, seconds: float) -> None:
        self.sums.waste_s[cause] = self.sums.waste_s.get(cause, 0.0) + seconds
