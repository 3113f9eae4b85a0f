"""The promises of the machine, counted anew from the books.

Slow on purpose: for tests, replays and doubts. A broken promise raises `InternalError` with its number, what was
counted, and the story of the group concerned. Promises 9 and 10 speak of two moments and are held by tests.
"""

from collections import Counter
from math import isclose

from windrow.core.admission import room
from windrow.core.batches import ALL
from windrow.core.books import Books, Lane
from windrow.core.delivery import forces_nobody
from windrow.core.groups import Attempt, Group
from windrow.core.stories import obstacles, tell
from windrow.errors import InternalError


def check(books: Books) -> None:
    """Raise if any promise is broken."""
    for lane in books.lanes.values():
        groups = [group for group in books.groups.values() if group.mode == lane.mode]
        _conserved(lane, groups)
        _counted(books, lane, groups)
        _fresh_enough(books, lane, groups)
        _delivered(books, lane)
        _nothing_useless(books, groups)
        _not_stalled(books, lane, groups)
    for group in books.groups.values():
        _group_holds(books, group)
    _batches_hold(books)
    _work_conserving(books)
    _owned(books)
    _workers_hold(books)
    _engines_hold(books)


def _demand(number: int, truth: object, what: str, books: Books | None = None, group: Group | None = None) -> None:
    if truth:
        return
    story = f"\n{tell(books, group.id)}" if books is not None and group is not None else ""
    raise InternalError(f"promise {number} is broken: {what}{story}")


def _conserved(lane: Lane, groups: list[Group]) -> None:
    ledger = lane.ledger
    living = [group for group in groups if group.state != "delivered"]
    handed_over = [group for group in groups if group.state == "delivered"]
    _demand(1, ledger.groups.balance == 0, f"{lane.mode} groups do not balance: {ledger.groups}")
    _demand(1, ledger.attempts.balance == 0, f"{lane.mode} attempts do not balance: {ledger.attempts}")
    _demand(
        1,
        ledger.groups.alive == len(living),
        f"{lane.mode} groups alive: {ledger.groups.alive}, {len(living)}",
    )
    attempts = sum(len(group.attempts) for group in living)
    _demand(
        1,
        ledger.attempts.alive == attempts,
        f"{lane.mode} attempts alive: {ledger.attempts.alive}, {attempts}",
    )
    _demand(1, ledger.groups.delivered == len(handed_over) == lane.untrained, f"{lane.mode} delivered groups")
    _demand(
        1,
        ledger.attempts.delivered == sum(len(g.attempts) for g in handed_over),
        f"{lane.mode} delivered attempts",
    )
    wasted = sum(waste.attempts for waste in ledger.waste.values())
    _demand(1, wasted == sum(ledger.attempts.dropped.values()), f"{lane.mode} waste {ledger.waste}")


def _counted(books: Books, lane: Lane, groups: list[Group]) -> None:
    in_play = [group for group in groups if group.state in ("open", "judging", "ready")]
    _demand(1, lane.alive == len(in_play), f"{lane.mode} in play: {lane.alive}, counted {len(in_play)}")
    begun = Counter(group.version for group in in_play if group.version >= 0)
    _demand(3, lane.begun == begun, f"{lane.mode} begun {lane.begun}, counted {dict(begun)}")
    ready = {group.id for group in groups if group.state == "ready"}
    listed = {number for numbers in lane.ready.values() for number in numbers}
    _demand(4, ready == listed and lane.num_ready == len(ready), f"{lane.mode} ready {sorted(listed ^ ready)}")
    for version, numbers in lane.ready.items():
        _demand(4, all(books.groups[n].version == version for n in numbers), f"{lane.mode} ready at {version}")
    aside = {group.id for group in groups if group.state == "aside"}
    _demand(1, aside == {*lane.aside, *lane.carried}, f"{lane.mode} set aside")
    playing = sum(1 for group in groups for a in group.attempts.values() if not a.finished and not a.scoring)
    _demand(5, lane.running == playing, f"{lane.mode} playing: {lane.running}, counted {playing}")
    queued = {group.id for group in groups if group.rank is not None}
    _demand(5, sum(queue.size for queue in lane.queues.values()) == len(queued), f"{lane.mode} queues")
    alive = Counter(group.tag for group in groups)
    _demand(5, all(share.alive == alive[tag] for tag, share in lane.tags.table.items()), f"{lane.mode} tags")


def _group_holds(books: Books, group: Group) -> None:
    running = [attempt for attempt in group.attempts.values() if not attempt.finished]
    finished = [attempt for attempt in group.attempts.values() if attempt.finished]
    _demand(2, group.running == len(running), "playing attempts", books, group)
    _demand(2, group.finished == len(finished), "finished attempts", books, group)
    total = group.running + group.finished + len(group.resting)
    _demand(2, total <= group.size + group.spares, "more attempts than size and spares", books, group)
    _demand(2, all(index < group.next_index for index in group.attempts), "an index from nowhere", books, group)
    seconds = sum(attempt.seconds for attempt in finished)
    _demand(2, isclose(group.seconds, seconds, rel_tol=1e-6, abs_tol=1e-6), f"length {group.seconds}", books, group)
    _demand(2, group.tokens == sum(attempt.tokens for attempt in finished), f"tokens {group.tokens}", books, group)
    seats = {attempt.seat for attempt in group.attempts.values()}
    _demand(2, len(seats) == len(group.attempts), "two attempts on one seat", books, group)
    _demand(2, all(seat < group.size + group.spares for seat in seats), "a seat too many", books, group)
    _demand(3, group.version == group.oldest_version(), f"version {group.version}", books, group)
    _demand(5, (group.rank is not None) == (group.wants > 0), "wants a slot and is not queued", books, group)


def _batches_hold(books: Books) -> None:
    taken: Counter[int] = Counter()
    for batch in books.batches.values():
        taken.update(batch.groups)
        size = books.lanes[batch.mode].size
        _demand(2, len({*batch.attempts}) == size * len(batch.groups), f"batch {batch.id} has other attempts")
        for number in batch.groups:
            group = books.groups.get(number)
            delivered = group is not None and group.state == "delivered"
            _demand(2, delivered, f"batch {batch.id} holds g{number}, which is not delivered")
    _demand(2, all(count == 1 for count in taken.values()), f"a group in two batches: {taken.most_common(1)}")
    delivered_groups = {group.id for group in books.groups.values() if group.state == "delivered"}
    _demand(2, delivered_groups == {*taken}, f"delivered without a batch: {sorted(delivered_groups ^ {*taken})}")


def _fresh_enough(books: Books, lane: Lane, groups: list[Group]) -> None:
    ledger = lane.ledger
    if lane.limit is not None:
        _demand(
            3,
            ledger.lag_max <= lane.limit,
            f"{lane.mode} delivered with lag {ledger.lag_max} over {lane.limit}",
        )
        oldest = books.version - lane.limit
        for group in groups:
            stale = 0 <= group.version < oldest and group.state != "delivered"
            _demand(6, not stale, "too old and still alive", books, group)
    elif not lane.loose_versions and lane.mode == "train":
        mean_holds = ledger.lag_sum <= lane.settings.staleness * ledger.lags + 1e-9
        _demand(3, mean_holds, f"mean lag {ledger.lag_sum}/{ledger.lags} over {lane.settings.staleness}")


def _delivered(books: Books, lane: Lane) -> None:
    _demand(4, not (books.closed and lane.wants), "somebody waits for a machine that was shut down")
    _demand(8, not (books.faults.halted and lane.wants), "somebody waits for a machine that has halted")
    for want in lane.wants.values():
        if want.n == ALL:
            _demand(4, not lane.is_dry, f"everything is there for {want.consumer!r} and is not delivered")
            continue
        wanted = want.n // lane.size
        enough = lane.num_ready >= wanted and forces_nobody(books, lane, wanted)
        _demand(4, not enough, f"{wanted} groups are usable and not delivered to {want.consumer!r}")


def _work_conserving(books: Books) -> None:
    if books.faults.halted:
        return
    for lane in books.lanes.values():
        if books.engines.choose(lane.mode, "") is None:
            continue
        for kind, queue in lane.queues.items():
            idle = queue.size and books.workers.can_play(kind)
            _demand(5, not idle, f"{queue.size} {lane.mode} groups of kind {kind!r} wait beside a free slot")


def _nothing_useless(books: Books, groups: list[Group]) -> None:
    for group in groups:
        full = group.state == "open" and group.finished >= group.size
        _demand(6, not full, "full and still open", books, group)
        _demand(6, group.state == "open" or not group.running, "plays on without need", books, group)


def _owned(books: Books) -> None:
    leases = {attempt_id for _, attempt_id in books.leases}
    running = scoring = 0
    for group in books.groups.values():
        for attempt in group.attempts.values():
            if attempt.finished:
                continue
            _demand(7, attempt.id in leases, f"{attempt.id} has no deadline", books, group)
            if attempt.scoring:
                scoring += 1
                continue
            running += 1
            worker = books.workers.table.get(attempt.worker)
            owned = worker is not None and attempt.id in worker.leases
            _demand(7, owned, f"{attempt.id} has no worker", books, group)
            _demand(7, _has_engine(books, attempt), f"{attempt.id} is lost between engines", books, group)
    _demand(7, books.running == running, f"{books.running} playing, counted {running}")
    _demand(7, books.scoring == scoring, f"{books.scoring} scoring, counted {scoring}")
    held = sum(len(worker.leases) for worker in books.workers.table.values())
    _demand(7, held == running, f"workers play {held} attempts, groups {running}")
    generating = sum(len(engine.attempts) for engine in books.engines.table.values())
    _demand(7, generating + len(books.homeless) == running, f"engines serve {generating} of {running} attempts")


def _has_engine(books: Books, attempt: Attempt) -> bool:
    if not attempt.engine:
        return attempt.id in books.homeless
    engine = books.engines.table.get(attempt.engine)
    return engine is not None and attempt.id in engine.attempts and engine.state not in ("leaving", "away")


def _not_stalled(books: Books, lane: Lane, groups: list[Group]) -> None:
    blocked = books.faults.halted or books.closed or lane.tags.ended
    _demand(
        8,
        bool(blocked) or not lane.opened or room(books, lane) <= 0,
        f"{lane.mode} has room and asks for nothing",
    )
    if not lane.wants:
        return
    moving = books.running or books.scoring or lane.tags.asked or any(g.state == "judging" or g.resting for g in groups)
    _demand(8, bool(moving) or any(obstacles(books, lane)), f"{[*lane.wants]} wait for nothing")


def _workers_hold(books: Books) -> None:
    running: Counter[str] = Counter()
    for group in books.groups.values():
        running[group.kind] += sum(1 for a in group.attempts.values() if not a.finished and not a.scoring)
    for kind, count in books.workers.running.items():
        limit = books.workers.limits.get(kind)
        _demand(5, count == running[kind], f"{count} environments of kind {kind!r} run, counted {running[kind]}")
        _demand(5, limit is None or count <= limit, f"{count} environments of kind {kind!r} run, limit {limit}")
    vacant = sum(worker.free for worker in books.workers.table.values())
    _demand(5, books.workers.vacant == vacant, f"{books.workers.vacant} free slots, counted {vacant}")
    for worker in books.workers.table.values():
        _demand(5, len(worker.leases) <= worker.slots, f"worker {worker.id} plays more than it has slots")
        for kind in worker.kinds:
            listed = worker.id in books.workers.free[kind]
            _demand(5, listed == (worker.free > 0), f"worker {worker.id} has {worker.free} free slots")


def _engines_hold(books: Books) -> None:
    capacity = sum(engine.capacity for engine in books.engines.table.values() if engine.state == "serving")
    _demand(7, books.engines.capacity == capacity, f"capacity {books.engines.capacity}, counted {capacity}")
    _demand(7, books.engines.attempts == books.running - len(books.homeless), "attempts that generate")
    for engine in books.engines.table.values():
        total = sum(books.groups[name.group].attempts[name.index].work for name in engine.attempts)
        same = isclose(engine.work, total, rel_tol=1e-6, abs_tol=1e-6)
        _demand(7, same, f"engine {engine.id} has work {engine.work}, counted {total}")
        behind = engine.state == "serving" and not books.engines.is_current(engine)
        _demand(9, behind == (engine.id in books.engines.updating), f"engine {engine.id} is listed as updating")
        for holder in books.holds:
            _demand(9, holder in engine.holds, f"engine {engine.id} escaped the hold of {holder!r}")
    for name in books.homeless:
        chosen = books.engines.choose(books.groups[name.group].mode, "")
        _demand(7, chosen is None, f"{name} has no engine and one is usable")
