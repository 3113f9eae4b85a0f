"""What may begin: tasks under the staleness cap, and attempts on free slots.

Promises: a lane asks for exactly as many tasks as its cap leaves room for, and starts nothing before a batch was first
asked for. No free slot and attempt that may play are left together: while a worker has a slot for the kind, its limit
is not reached, the breaker is closed and an engine serves (or is merely held), the best-ranked group gets the slot.
When both modes want a slot, the one with fewer playing attempts for its weight gets it.
"""

from math import ceil

from windrow.core.batches import ALL
from windrow.core.books import Books, Lane
from windrow.core.commands import FetchTask
from windrow.core.events import SourceEnded, SourceOpened, TaskArrived
from windrow.core.groups import Group, Rank
from windrow.core.lifecycle import drop_group, grant, note_failure
from windrow.errors import IllegalEvent


def admit(books: Books, lane: Lane) -> None:
    """Put as many groups into play as may begin: those that were set aside, or new ones from the sources."""
    if not lane.opened or books.faults.halted or books.closed:
        return
    if lane.settings.tail:
        _continue_round(books, lane)
    free = room(books, lane)
    if free > 0:
        for tag, count in lane.tags.ask(free, _ceiling(books, lane)):
            books.out.append(FetchTask(lane.mode, tag, count))


def arrive(books: Books, event: TaskArrived) -> None:
    """A task that was asked for becomes a group."""
    lane = books.lanes[event.mode]
    share = lane.tags.table.get(event.tag)
    if share is None or share.asked < 1:
        raise IllegalEvent(f"a task of tag {event.tag!r} arrived for {event.mode} that was not asked for: {event}")
    lane.tags.arrive(event.tag)
    group = Group(
        id=books.next_group,
        mode=event.mode,
        ordinal=event.ordinal,
        tag=event.tag,
        kind=event.kind,
        task=event.task,
        size=lane.size,
        spares=lane.settings.spares,
        arrived_at=books.now,
    )
    books.next_group += 1
    books.groups[group.id] = group
    lane.alive += 1
    lane.ledger.groups.admit()
    _place(books, lane, group)


def open_or_end_source(books: Books, event: SourceEnded | SourceOpened) -> None:
    """No more tasks of a tag will come, or there are some again."""
    tags = books.lanes[event.mode].tags
    if event.tag not in tags.table:
        raise IllegalEvent(f"the source of an unknown tag {event.tag!r}; known: {', '.join(tags.table)}")
    if isinstance(event, SourceEnded):
        tags.end(event.tag)
    else:
        tags.table[event.tag].ended = False
    books.look_everywhere()


def fill(books: Books) -> None:
    """Start attempts until no free slot and attempt that may play are left together."""
    if books.faults.halted:
        return
    without: list[Lane] = []  # lanes that no engine serves now
    while books.workers.vacant:
        lane, best = _next(books, without)
        if lane is None:
            return
        if not grant(books, lane, books.groups[best]):
            without.append(lane)


def _place(books: Books, lane: Lane, group: Group) -> None:
    """Put a new group in play, unless its task is in quarantine or everything is over."""
    letter = books.faults.dead.get(group.task) if group.task else None
    if books.closed:
        drop_group(books, group, "shutdown")
    elif not lane.settings.ahead and not lane.wants:
        drop_group(books, group, "cancelled")  # whoever it was asked for no longer waits
    elif letter is not None:
        letter.refused += 1
        note_failure(books, f"{group.task!r} is quarantined: {letter.why}")  # if nothing else comes, that must be said
        drop_group(books, group, "poisoned")
    else:
        books.requeue(lane, group)


def _next(books: Books, without: list[Lane]) -> tuple[Lane | None, int]:
    """The lane and the group that the next free slot goes to."""
    chosen: Lane | None = None
    best = -1
    for lane in books.lanes.values():
        top = _best_of(books, lane) if lane.queues else None
        if top is None or lane in without:
            continue
        if chosen is None or lane.running * chosen.settings.weight < chosen.running * lane.settings.weight:
            chosen, best = lane, top[4]
    return chosen, best


def _best_of(books: Books, lane: Lane) -> Rank | None:
    best: Rank | None = None
    for kind, queue in lane.queues.items():
        if queue.size and books.workers.can_play(kind):
            top = queue.best(books.groups)
            if best is None or top < best:
                best = top
    return best


def room(books: Books, lane: Lane) -> int:
    """How many more tasks to ask for."""
    asked = lane.tags.asked
    if lane.wants_all:
        return _ceiling(books, lane) - (lane.alive - lane.num_ready) - asked
    if not lane.settings.ahead:
        return _ceiling(books, lane) - lane.alive - asked
    if lane.settings.tail:
        return _round_groups(lane) - lane.alive - asked
    return lane.cap - lane.alive - lane.spent - asked


def _ceiling(books: Books, lane: Lane) -> int:
    """Groups of this lane that may live at once."""
    if lane.wants_all:
        return ceil(books.workers.slots / lane.size) + 1
    if not lane.settings.ahead:
        return sum(want.n // lane.size for want in lane.wants.values() if want.n != ALL)
    return lane.cap


# tail batching: a fresh round begins more groups than a batch has and sets the long ones aside; when a batch of
# those has gathered, a tail round plays them to the end


def _round_groups(lane: Lane) -> int:
    """Groups that are in play at once in this round."""
    if lane.spent:
        return 0
    return lane.batch_groups if lane.round == "tail" else ceil(lane.batch_groups * (1.0 + lane.settings.tail))


def _continue_round(books: Books, lane: Lane) -> None:
    """Begin the next round when the last one is trained on, and put into play what this one may take from stock."""
    if not lane.alive and not lane.spent:
        gathered = len(lane.aside) >= lane.batch_groups
        lane.round = "tail" if gathered or lane.tags.ended else "fresh"
    if lane.wants_all:
        _reopen(books, lane, lane.carried, len(lane.carried))
        _reopen(books, lane, lane.aside, len(lane.aside))
        return
    if lane.round == "tail":
        _reopen(books, lane, lane.aside, room(books, lane))
    _reopen(books, lane, lane.carried, room(books, lane))
    if lane.tags.ended and not lane.spent:
        # no source fills this batch any more, so it takes what is left of the long ones
        _reopen(books, lane, lane.aside, lane.batch_groups - lane.alive)


def _reopen(books: Books, lane: Lane, stock: dict[int, None], count: int) -> None:
    for number in [*stock][: max(0, count)]:
        group = books.groups[number]
        del stock[number]
        group.state = "open"
        lane.alive += 1
        books.requeue(lane, group)
