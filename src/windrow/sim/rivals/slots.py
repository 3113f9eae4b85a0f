"""The slots of all workers: whose they are, and which are free.

Promises: a slot has one home, a number that says who may use it. A worker that comes back brings the same
slots with the same homes. Free slots are taken in the order in which they became free.
"""

from collections import deque
from collections.abc import Callable, Iterable

from windrow.types import Record


class Slot(Record):
    """One place in which an environment can be played."""

    number: int
    worker: str
    home: int


class Slots:
    """All slots, by worker and by home."""

    def __init__(self, first_home: Callable[[int], int]) -> None:
        self.first_home = first_home  # the home of a new slot, by its number
        self.count = 0
        self.of_worker: dict[str, list[Slot]] = {}
        self.free: dict[int, deque[Slot]] = {}  # all and only the free slots of living workers, by home

    def join(self, worker: str, count: int) -> Iterable[int]:
        """A worker offers its slots; says whose they are."""
        if worker not in self.of_worker:
            numbers = range(self.count, self.count + count)
            self.of_worker[worker] = [Slot(number, worker, self.first_home(number)) for number in numbers]
            self.count += count
        for slot in self.of_worker[worker]:
            self.give_back(slot)
        return {slot.home: None for slot in self.of_worker[worker]}

    def lose(self, worker: str) -> None:
        """A worker died: none of its slots is free."""
        for home, slots in self.free.items():
            self.free[home] = deque(slot for slot in slots if slot.worker != worker)

    def num_free(self, home: int) -> int:
        return len(self.free.get(home, ()))

    def take(self, home: int) -> Slot:
        """Occupy a free slot."""
        return self.free[home].popleft()

    def give_back(self, slot: Slot) -> None:
        """A slot is free."""
        self.free.setdefault(slot.home, deque()).append(slot)

    def reserve(self, home: int, count: int, owner: int) -> list[Slot]:
        """Free slots of one home belong to an owner until they are released."""
        slots = [self.take(home) for _ in range(count)]
        for slot in slots:
            slot.home = owner
            self.give_back(slot)
        return slots

    def release(self, owner: int, slots: list[Slot], home: int) -> None:
        """An owner needs his slots no more; those of a dead worker are free when it comes back."""
        for slot in slots:
            slot.home = home
        for slot in self.free.pop(owner, ()):
            self.give_back(slot)
