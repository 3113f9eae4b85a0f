"""The table of workers and their slots.

Promises: every slot is free or plays exactly one attempt; free slots are found without a search and taken from the
workers in turn; a kind never runs more environments than its limit.
"""

from heapq import heappop, heappush

from windrow.types import AttemptId, Record


class Worker(Record):
    """What the machine knows of one worker."""

    id: str
    slots: int
    kinds: tuple[str, ...]
    beat_at: float
    """When it was last heard of."""
    watch_at: float = 0.0
    """When to look after it again; 0 if nobody watches."""
    leaving: bool = False
    leases: dict[AttemptId, None] = {}
    """All and only the attempts that it plays."""

    @property
    def free(self) -> int:
        return 0 if self.leaving else self.slots - len(self.leases)


class WorkerBook:
    """All workers, by name, and where a free slot is."""

    def __init__(self, limits: dict[str, int], beat_s: float) -> None:
        self.limits = limits
        self.beat_s = beat_s
        self.table: dict[str, Worker] = {}
        self.free: dict[str, dict[str, None]] = {}  # by kind: all and only the workers with a free slot, in turn
        self.running: dict[str, int] = {}  # by kind: environments that run
        self.beats: list[tuple[float, str]] = []  # when to look after each worker again
        self.vacant = 0  # free slots of all workers that stay
        self.slots = 0  # of all workers that stay

    def join(self, worker: Worker) -> None:
        self.table[worker.id] = worker
        self.slots += worker.slots
        self.vacant += worker.slots
        self._offer(worker)
        if self.beat_s:
            self._watch(worker)

    def retire(self, worker: Worker) -> None:
        """It wants nothing new; it goes when it plays nothing."""
        if not worker.leaving:
            self._withdraw(worker)
            self.vacant -= worker.free
            self.slots -= worker.slots
            worker.leaving = True
        if not worker.leases:
            del self.table[worker.id]

    def remove(self, worker: Worker) -> None:
        """It is gone, with everything it played."""
        self.retire(worker)
        worker.leases.clear()
        self.table.pop(worker.id, None)

    def can_play(self, kind: str) -> bool:
        """There is a free slot for one more environment of this kind."""
        if not self.free.get(kind):
            return False
        limit = self.limits.get(kind)
        return limit is None or self.running.get(kind, 0) < limit

    def take(self, kind: str, attempt: AttemptId) -> str:
        """Give a free slot to an attempt."""
        turn = self.free[kind]
        name = next(iter(turn))
        worker = self.table[name]
        worker.leases[attempt] = None
        self.vacant -= 1
        self.running[kind] = self.running.get(kind, 0) + 1
        if len(worker.leases) >= worker.slots:
            self._withdraw(worker)
        else:
            del turn[name]
            turn[name] = None
        return name

    def give_back(self, name: str, kind: str, attempt: AttemptId) -> None:
        """A slot is free again; the worker may be gone."""
        self.running[kind] -= 1
        worker = self.table.get(name)
        if worker is None or attempt not in worker.leases:
            return
        del worker.leases[attempt]
        if worker.leaving:
            self.retire(worker)
            return
        self.vacant += 1
        if len(worker.leases) + 1 == worker.slots:
            self._offer(worker)

    def heard_of(self, name: str, now: float) -> None:
        """A sign of life, if somebody watches for it."""
        worker = self.table.get(name) if self.beat_s else None
        if worker is not None:
            worker.beat_at = now

    def silent(self, now: float) -> list[str]:
        """Workers that have not been heard of for too long."""
        lost = []
        while self.beats and self.beats[0][0] <= now:
            due, name = heappop(self.beats)
            worker = self.table.get(name)
            if worker is None or worker.watch_at != due or name in lost:
                continue  # it is gone, or joined again and is watched anew
            if worker.beat_at + self.beat_s <= now:
                lost.append(name)
            else:
                self._watch(worker)
        return lost

    def _watch(self, worker: Worker) -> None:
        worker.watch_at = worker.beat_at + self.beat_s
        heappush(self.beats, (worker.watch_at, worker.id))

    def _offer(self, worker: Worker) -> None:
        for kind in worker.kinds:
            self.free.setdefault(kind, {})[worker.id] = None

    def _withdraw(self, worker: Worker) -> None:
        for kind in worker.kinds:
            self.free[kind].pop(worker.id, None)
