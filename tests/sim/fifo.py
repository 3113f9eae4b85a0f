"""The simplest scheduler that works: groups in order of arrival, a batch when enough of them are full."""

from collections import deque

from windrow.core.commands import AnyCommand, DeliverBatch, FetchTask, GrantLease
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    BatchTrained,
    BatchWanted,
    TaskArrived,
    VersionPublished,
    WorkerJoined,
)
from windrow.core.settings import ModeSettings
from windrow.types import AttemptId, Finished


class Fifo:
    """Plays at most `ahead` batches' worth of groups at once, on engine after engine; ignores every failure."""

    def __init__(self, settings: ModeSettings, *, engines: int = 1, ahead: int = 1) -> None:
        self.size = settings.group_size
        self.groups = settings.batch_groups
        self.room = ahead * self.groups
        self.engines = engines
        self.version = 0
        self.asked = 0
        self.batch = 0
        self.wanted: BatchWanted | None = None
        self.free: deque[str] = deque()
        self.queue: deque[tuple[AttemptId, int]] = deque()
        self.where: dict[AttemptId, str] = {}
        self.left: dict[int, int] = {}
        self.full: deque[int] = deque()
        self.open = 0

    @property
    def next_deadline(self) -> float | None:
        return None

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        match event:
            case WorkerJoined(worker, slots):
                self.free.extend([worker] * slots)
            case TaskArrived(_, ordinal):
                self.left[ordinal] = self.size
                self.queue.extend((AttemptId(ordinal, index), ordinal) for index in range(self.size))
            case AttemptEnded(attempt, Finished()):
                self._ended(attempt)
            case BatchWanted():
                self.wanted = event
            case VersionPublished(version):
                self.version = version
            case BatchTrained():
                self.open -= self.groups
        return [*self._fetch(), *self._grant(now), *self._deliver()]

    def _ended(self, attempt: AttemptId) -> None:
        self.free.append(self.where.pop(attempt))
        self.left[attempt.group] -= 1
        if not self.left[attempt.group]:
            self.full.append(attempt.group)

    def _fetch(self) -> list[AnyCommand]:
        count = self.room - self.open
        self.open += count
        return [FetchTask("train", "", count)] if count else []

    def _grant(self, now: float) -> list[AnyCommand]:
        orders: list[AnyCommand] = []
        while self.free and self.queue:
            attempt, ordinal = self.queue.popleft()
            worker = self.where[attempt] = self.free.popleft()
            self.asked += 1
            engine = f"e{self.asked % self.engines}"
            orders.append(
                GrantLease(attempt, attempt.index, worker, engine, ordinal, "", "train", self.version, now + 1e6)
            )
        return orders

    def _deliver(self) -> list[AnyCommand]:
        if self.wanted is None or len(self.full) < self.groups:
            return []
        groups = tuple(self.full.popleft() for _ in range(self.groups))
        attempts = tuple(AttemptId(group, index) for group in groups for index in range(self.size))
        step, self.wanted = self.wanted.step, None
        self.batch += 1
        return [DeliverBatch(self.batch, "trainer", "train", step, self.version, groups, attempts, (0,) * len(groups))]
