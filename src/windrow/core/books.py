"""The whole state of a machine: one lane per mode, the shared tables, and the commands of the step in hand.

Promises: everything that outlives a step is in here, and everything that can be derived from the rest is rebuilt, not
stored, when a snapshot is restored. Books hold facts; the modules beside this one decide.
"""

from collections import deque
from typing import Literal

from windrow.core.batches import ALL, Batch, Want
from windrow.core.commands import AnyCommand
from windrow.core.engines import EngineBook
from windrow.core.faults import FaultBook
from windrow.core.groups import Attempt, Group
from windrow.core.ledger import empty_ledger
from windrow.core.ordering import Lengths, RankedQueue, rank
from windrow.core.settings import ModeSettings, Settings
from windrow.core.shares import TagBook
from windrow.core.staleness import admission_cap, hard_lag
from windrow.core.workers import WorkerBook
from windrow.types import MODES, AttemptId, How, Mode


class Lane:
    """Everything that belongs to one mode."""

    def __init__(self, mode: Mode, settings: ModeSettings) -> None:
        self.mode = mode
        self.settings = settings
        self.size = settings.group_size
        self.limit = hard_lag(settings)  # the lag that no delivered group may exceed
        self.ledger = empty_ledger()
        self.tags = TagBook(settings.shares)
        self.queues: dict[str, RankedQueue] = {}  # by kind: all and only the groups that want a slot
        self.ready: dict[int, dict[int, None]] = {}  # by version: all and only the groups a batch may take, in turn
        self.num_ready = 0
        self.begun: dict[int, int] = {}  # by version: how many open, judging or ready groups have begun
        self.alive = 0  # groups admitted, and neither set aside, delivered nor dropped
        self.untrained = 0  # groups delivered and not acknowledged
        self.running = 0  # attempts that play
        self.batch_groups = settings.batch_groups  # raised to the largest batch ever wanted
        self.opened = False  # somebody has asked for a batch
        self.delivered_now = 0  # groups delivered at this version
        self.trained_now = 0  # groups delivered at this version and acknowledged before the next was published
        self.loose_versions = 0  # publications at which more groups grew older than the mean lag allows for
        self.rejected = 0  # groups that the filter rejected since the last batch
        self.wants: dict[str, Want] = {}  # by consumer, in order of asking
        self.aside: dict[int, None] = {}  # long groups that wait for a tail round, in order
        self.carried: dict[int, None] = {}  # groups that a round ended without beginning, in order
        self.round: Literal["fresh", "tail"] = "fresh"

    @property
    def cap(self) -> int:
        """Groups that may be admitted and not yet trained on."""
        return admission_cap(self.settings, self.batch_groups)

    @property
    def spent(self) -> int:
        """Groups that count against the cap without being in play.

        What was trained on but led to no new version yet counts too, or its successors would begin under weights that
        are about to be replaced; but not while somebody waits, for then no new version may be coming.
        """
        return self.untrained if self.wants else self.untrained + self.trained_now

    @property
    def wants_all(self) -> bool:
        """Somebody waits for everything until the source ends."""
        return any(want.n == ALL for want in self.wants.values())

    @property
    def is_dry(self) -> bool:
        """No group will ever become ready that is not ready now."""
        return self.tags.ended and self.alive == self.num_ready and not self.aside and not self.carried

    def queue(self, kind: str) -> RankedQueue:
        """The queue of one kind of environment."""
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = RankedQueue()
        return queue

    def set_version(self, group: Group, version: int) -> None:
        """A living group's oldest version is another one now; -1 if it has not begun."""
        if version == group.version:
            return
        if group.version >= 0:
            left = self.begun[group.version] - 1
            if left:
                self.begun[group.version] = left
            else:
                del self.begun[group.version]
        if version >= 0:
            self.begun[version] = self.begun.get(version, 0) + 1
        group.version = version


class Books:
    """The state of one machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = 0.0
        self.version = 0
        self.closed = False
        self.groups: dict[int, Group] = {}  # all and only those alive, set aside, or delivered and not trained
        self.next_group = 0
        self.batches: dict[int, Batch] = {}  # all and only those handed over and not acknowledged
        self.next_batch = 0
        self.lanes: dict[Mode, Lane] = {mode: Lane(mode, settings.of(mode)) for mode in MODES}
        self.engines = EngineBook()
        self.holds: dict[str, How] = {}  # holders that hold every engine, those to come included
        self.homeless: dict[AttemptId, None] = {}  # all and only the running attempts without an engine
        self.workers = WorkerBook(settings.kinds, settings.beat_s)
        self.faults = FaultBook(settings)
        self.lengths = Lengths()
        self.leases: deque[tuple[float, AttemptId]] = deque()  # by deadline; those of ended attempts are skipped
        self.running = 0  # attempts that play, in all lanes
        self.scoring = 0  # attempts that wait for their score
        self.rests: list[tuple[float, int, int]] = []  # a heap: when which group may retry which attempt
        self.late = 0  # answers for attempts or groups that were already forgotten
        self.out: list[AnyCommand] = []  # what the step in hand has ordered so far
        self.look_for_batches = False  # something happened that may complete a batch
        self.look_for_room = False  # something happened that may admit more groups
        self.look_for_slots = False  # something happened that may start an attempt

    def lane_of(self, group: Group) -> Lane:
        """The lane a group belongs to."""
        return self.lanes[group.mode]

    def attempt(self, attempt: AttemptId) -> Attempt | None:
        """A running or finished attempt; None if it was forgotten."""
        group = self.groups.get(attempt.group)
        return None if group is None else group.attempts.get(attempt.index)

    def is_running(self, attempt: AttemptId) -> bool:
        """It plays or waits for its score."""
        found = self.attempt(attempt)
        return found is not None and not found.finished

    def look_everywhere(self) -> None:
        """Anything may be possible now."""
        self.look_for_batches = self.look_for_room = self.look_for_slots = True

    def requeue(self, lane: Lane, group: Group) -> None:
        """Give a group the place in the order of play that it deserves now, or none."""
        if group.wants > 0:
            lane.queue(group.kind).put(group, rank(group, lane.settings, self.lengths))
            self.look_for_slots = True
        elif group.rank is not None:
            lane.queue(group.kind).remove(group)
