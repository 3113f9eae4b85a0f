"""Workers that come, go, fall silent and die; leases that run out; retries whose rest is over.

Promises: whatever a lost worker played is tried again elsewhere in the same step, and costs each group one failure; a
lease that runs out is cancelled and counts as a failure of its environment, unless its engine was held or gone, or it
was played and waits for its score: that is its reward's affair, which has deadlines of its own; a worker that leaves
plays what it has to the end.
"""

from collections import deque
from heapq import heappop

from windrow.core.books import Books
from windrow.core.events import WorkerJoined
from windrow.core.lifecycle import fail, note_failure
from windrow.core.workers import Worker
from windrow.errors import IllegalEvent
from windrow.types import AttemptId, Failed, Reason


def join(books: Books, event: WorkerJoined) -> None:
    """A worker offers slots."""
    if event.worker in books.workers.table:
        raise IllegalEvent(f"worker {event.worker!r} joined twice; report it lost before it joins again")
    if event.slots < 1 or not event.kinds:
        raise IllegalEvent(
            f"worker {event.worker!r} offers {event.slots} slots for kinds {[*event.kinds]}; it needs some"
        )
    books.workers.join(Worker(event.worker, event.slots, event.kinds, books.now))
    books.look_everywhere()


def beat(books: Books, name: str) -> None:
    """A worker is alive."""
    worker = books.workers.table.get(name)
    if worker is None:
        books.late += 1
    else:
        worker.beat_at = books.now


def leave(books: Books, name: str) -> None:
    """A worker wants nothing new."""
    worker = books.workers.table.get(name)
    if worker is None:
        books.late += 1
    else:
        books.workers.retire(worker)


def lose(books: Books, name: str, why: str) -> None:
    """A worker died."""
    worker = books.workers.table.get(name)
    if worker is None:
        books.late += 1
        return
    played = sorted(worker.leases)
    books.workers.remove(worker)
    failure = Failed("worker", f"worker {name}: {why}")
    note_failure(books, failure.why)  # once: however much it played, one worker is one fault
    charged: set[int] = set()
    for attempt in played:
        _fail(books, attempt, failure, "lost", charge=attempt.group not in charged)
        charged.add(attempt.group)


def pass_time(books: Books) -> None:
    """Some deadline has come: a worker is silent, a rest is over, a lease has run out."""
    now = books.now
    for name in books.workers.silent(now):
        lose(books, name, f"silent for {books.settings.beat_s} s")
    while books.rests and books.rests[0][0] <= now:
        _, number, index = heappop(books.rests)
        group = books.groups.get(number)
        if group is not None and index in group.resting:
            group.resting.remove(index)
            books.requeue(books.lane_of(group), group)
    due = []
    while books.leases and books.leases[0][0] <= now:
        due.append(books.leases.popleft()[1])
    why = f"its lease of {books.settings.lease_s} s ran out"
    for attempt in sorted(due):
        if books.is_running(attempt) and not _renew(books, attempt):
            note_failure(books, f"{attempt} env: {why}")
            _fail(books, attempt, Failed("env", why), "failed")


def first_lease(books: Books) -> float | None:
    """When the first lease runs out."""
    leases = books.leases
    while leases and not books.is_running(leases[0][1]):
        leases.popleft()
    return leases[0][0] if leases else None


def clean_leases(books: Books) -> None:
    """Forget the leases of ended attempts."""
    books.leases = deque(lease for lease in books.leases if books.is_running(lease[1]))


def _renew(books: Books, attempt_id: AttemptId) -> bool:
    """Give an attempt that could not play, or was played and waits for its score, its whole time again."""
    attempt = books.groups[attempt_id.group].attempts[attempt_id.index]
    if not attempt.scoring and attempt.engine and not books.engines.table[attempt.engine].holds:
        return False
    attempt.deadline = books.now + books.settings.lease_s
    books.leases.append((attempt.deadline, attempt_id))
    return True


def _fail(books: Books, attempt_id: AttemptId, failure: Failed, why: Reason, *, charge: bool = True) -> None:
    """Fail an attempt that may have been forgotten on the way here, with its group."""
    if books.is_running(attempt_id):
        group = books.groups[attempt_id.group]
        fail(books, group, group.attempts[attempt_id.index], failure, why, charge=charge)
