"""A scheduler that knows every duration beforehand, under a hard bound.

Promises: it keeps the bound as the machine's `wait` does: at most (bound + 1) batches of tasks are admitted and
untrained, in the order of the source, and a batch, oldest first, goes out only if it forces no living task over the
bound. Slots never idle while an admitted attempt is not begun. Every task is played and trained on. It is not the
best of all schedules, which nobody can compute; it is one that could have been had.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

from windrow.core.staleness import must_take
from windrow.types import Record

TRAINED = -1
"""Stands for the training of a batch among the tasks whose attempts end."""


class Task(Record):
    """One task and what is left to do of it."""

    ordinal: int
    left: list[float]
    """Durations of the attempts that are not begun, the longest last."""
    num_unfinished: int
    longest: float
    version: int = -1
    """Under which it began; -1 until then."""

    @property
    def is_begun(self) -> bool:
        return self.version >= 0


Rank = tuple[bool, float]
Order = Callable[[Task], Rank]
"""Which task plays its longest attempt next: the one of the smallest rank."""


def begun_then_longest(task: Task) -> Rank:
    return not task.is_begun, -task.left[-1]


def longest(task: Task) -> Rank:
    return False, -task.left[-1]


def begun_then_arrival(task: Task) -> Rank:
    return not task.is_begun, -task.left[-1] if task.is_begun else task.ordinal


def begun_then_shortest(task: Task) -> Rank:
    """Puts long tasks off, until the window holds nothing else and they are played together."""
    return not task.is_begun, -task.left[-1] if task.is_begun else task.longest


class Clairvoyant:
    """One run over a whole epoch.

    consumes      the ends of attempts and of training, in order of time
    waits for     nothing: time jumps
    ends          when the last task is trained on
    """

    def __init__(
        self, tasks: list[list[float]], training_s: list[float], *, slots: int, batch: int, bound: int, order: Order
    ) -> None:
        self.tasks = [Task(number, sorted(times), len(times), max(times)) for number, times in enumerate(tasks)]
        self.training_s = training_s  # of each step
        self.batch = batch
        self.bound = bound
        self.order = order
        self.now = 0.0
        self.version = 0
        self.num_free = slots
        self.num_admitted = 0
        self.is_training = False
        self.line: list[tuple[Rank, int]] = []  # a heap of all and only the admitted tasks with attempts not begun
        self.ready: list[Task] = []  # all and only the finished tasks that no batch has taken
        self.living: Counter[int] = Counter()  # begun tasks that no batch has taken, by version
        self.ends: list[tuple[float, int]] = []  # a heap of when which task's attempt, or training, will end

    def run(self) -> float:
        """Seconds per step."""
        self._admit()
        self._fill()
        while self.ends:
            self.now, number = heappop(self.ends)
            if number == TRAINED:
                self._trained()
            else:
                self._ended(self.tasks[number])
            self._fill()
        return self.now / self.version

    def _admit(self) -> None:
        """Every batch that is trained makes room for another."""
        until = min(len(self.tasks), (self.version + self.bound + 1) * self.batch)
        for task in self.tasks[self.num_admitted : until]:
            heappush(self.line, (self.order(task), task.ordinal))
        self.num_admitted = until

    def _fill(self) -> None:
        while self.num_free and self.line:
            _, number = heappop(self.line)
            task = self.tasks[number]
            if not task.is_begun:
                task.version = self.version
                self.living[self.version] += 1
            self.num_free -= 1
            heappush(self.ends, (self.now + task.left.pop(), number))
            if task.left:
                heappush(self.line, (self.order(task), number))

    def _ended(self, task: Task) -> None:
        self.num_free += 1
        task.num_unfinished -= 1
        if not task.num_unfinished:
            self.ready.append(task)
            self._deliver()

    def _trained(self) -> None:
        self.version += 1
        self.is_training = False
        self._deliver()
        self._admit()

    def _deliver(self) -> None:
        """Train on the oldest finished tasks, if that is allowed."""
        if self.is_training or len(self.ready) < self.batch:
            return
        self.ready.sort(key=lambda task: (task.version, task.ordinal))
        taken = self.ready[: self.batch]
        if not self._is_allowed(taken):
            return
        del self.ready[: self.batch]
        self.living.subtract(task.version for task in taken)
        self.is_training = True
        heappush(self.ends, (self.now + self.training_s[self.version], TRAINED))

    def _is_allowed(self, taken: list[Task]) -> bool:
        demands = must_take(
            self.living, version=self.version, lag=self.bound, batch_groups=self.batch, later=0, wanted=self.batch
        )
        return all(sum(task.version <= oldest for task in taken) >= need for oldest, need in demands)
