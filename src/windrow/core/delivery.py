"""Batches: who gets what, when, and what counts as trained.

Promises: a batch goes out in the step in which enough usable groups exist for it, oldest version first, to the
consumer that has waited longest of those that can be served. Under a hard bound it goes out only with the old groups
that would otherwise be forced over the bound. It may be handed over again, identical, until it is acknowledged. When
the source has ended the rest goes out once, marked last, and then nothing; when the filter has used up its rounds the
batch goes out short or is refused.
"""

from windrow.core.batches import ALL, Batch, Want
from windrow.core.books import Books, Lane
from windrow.core.commands import DeliverBatch, EndBatches, RefuseBatch, ResetGroup, RetireBatch
from windrow.core.events import BatchWanted
from windrow.core.groups import Group
from windrow.core.lifecycle import drop_group, empty, unready
from windrow.core.settings import nearest_sizes
from windrow.core.staleness import must_take
from windrow.errors import IllegalEvent, Refused

OVER = "no task is left: the source has ended and everything was delivered"
CLOSED = "the scheduler was shut down"


def check_want(books: Books, event: BatchWanted) -> Batch | None:
    """Refuse what cannot be served; else the unacknowledged batch that this consumer had for this step, if any."""
    again = _same_batch(books, event)
    _check_size(books.lanes[event.mode], event, again)
    return again


def want(books: Books, event: BatchWanted) -> None:
    """A consumer waits for a batch; a larger step acknowledges the ones it had."""
    lane = books.lanes[event.mode]
    again = check_want(books, event)
    for batch in [*books.batches.values()]:
        if (batch.consumer, batch.mode) == (event.consumer, event.mode) and batch.step < event.step:
            retire(books, batch)
    if again is not None:
        books.out.append(_order(again))
        return
    lane.opened = True
    if event.n != ALL:
        lane.batch_groups = max(lane.batch_groups, event.n // lane.size)
    known = lane.wants.get(event.consumer)
    if known is None or (known.n, known.step) != (event.n, event.step):  # else it asks again and keeps its place
        for other in books.lanes.values():
            other.wants.pop(event.consumer, None)
        lane.wants[event.consumer] = Want(event.consumer, event.n, event.step, books.now)
    books.look_for_batches = books.look_for_room = True


def withdraw(books: Books, consumer: str) -> None:
    """A consumer no longer waits; what was begun for it alone is useless."""
    for lane in books.lanes.values():
        gone = lane.wants.pop(consumer, None)
        if gone is not None and not lane.settings.ahead and not lane.wants:
            for group in [*books.groups.values()]:
                if group.mode == lane.mode and group.state != "delivered":
                    drop_group(books, group, "cancelled")
    books.look_everywhere()  # what was asked for on its behalf may leave room for others


def lose_consumer(books: Books, consumer: str) -> None:
    """A consumer died: what it had not acknowledged is ready again, if it is not too old."""
    for batch in [*books.batches.values()]:
        if batch.consumer == consumer:
            _take_back(books, batch)
    withdraw(books, consumer)


def trained(books: Books, number: int) -> None:
    """A batch was acknowledged; for the second time, perhaps."""
    batch = books.batches.get(number)
    if batch is not None:
        retire(books, batch)
    elif not 0 <= number < books.next_batch:
        raise IllegalEvent(f"batch {number} was trained and never delivered")


def retire(books: Books, batch: Batch) -> None:
    """A batch was trained on."""
    del books.batches[batch.id]
    lane = books.lanes[batch.mode]
    for number in batch.groups:
        group = books.groups.pop(number)
        lane.tags.settle(group.tag, used=True)
    lane.untrained -= len(batch.groups)
    if batch.version == books.version:
        lane.trained_now += len(batch.groups)
    lane.ledger.groups.train(len(batch.groups))
    lane.ledger.attempts.train(len(batch.attempts))
    books.out.append(RetireBatch(batch.id))
    books.look_for_room = True


def deliver(books: Books, lane: Lane) -> None:
    """Serve every waiting consumer that can be served."""
    for waiting in [*lane.wants.values()]:
        if books.closed:
            _end(books, lane, waiting, CLOSED)
        elif books.faults.halted:
            _refuse(books, lane, waiting, books.faults.halted)
        else:
            _serve(books, lane, waiting)


def grow_older(lane: Lane, versions: int) -> None:
    """New versions are out, perhaps none."""
    if not versions:
        return
    if versions * sum(lane.begun.values()) > lane.settings.staleness * lane.delivered_now:
        lane.loose_versions += 1
    lane.delivered_now = lane.trained_now = 0


def drop_stale(books: Books, lane: Lane) -> None:
    """Groups that can never be delivered within a hard bound are useless."""
    if lane.limit is None:
        return
    oldest = books.version - lane.limit
    if any(version < oldest for version in lane.begun):
        for group in [*books.groups.values()]:
            if group.mode == lane.mode and 0 <= group.version < oldest and group.state != "delivered":
                drop_group(books, group, "stale")


def _serve(books: Books, lane: Lane, waiting: Want) -> None:
    wanted = lane.num_ready if waiting.n == ALL else waiting.n // lane.size
    if waiting.n != ALL and lane.num_ready >= wanted:
        if forces_nobody(books, lane, wanted):
            _hand_over(books, lane, waiting, wanted, short=False)
    elif lane.is_dry:
        if lane.num_ready:
            _hand_over(books, lane, waiting, lane.num_ready, short=False)
        else:
            _end(books, lane, waiting, OVER)
    elif waiting.n != ALL and lane.rejected >= lane.settings.max_filter_rounds * wanted:
        _give_up_filtering(books, lane, waiting)


def _give_up_filtering(books: Books, lane: Lane, waiting: Want) -> None:
    if lane.num_ready and lane.settings.on_filter_exhausted == "deliver":
        if forces_nobody(books, lane, lane.num_ready):
            _hand_over(books, lane, waiting, lane.num_ready, short=True)
        return
    why = (
        f"the filter rejected {lane.rejected} groups and accepted {lane.num_ready} of {waiting.n // lane.size}; "
        f"widen the filter or raise max_filter_rounds ({lane.settings.max_filter_rounds})"
    )
    lane.rejected = 0
    _refuse(books, lane, waiting, why)


def forces_nobody(books: Books, lane: Lane, wanted: int) -> bool:
    """A batch of so many groups, oldest first, leaves no living group that must exceed a hard bound."""
    if lane.limit is None or lane.settings.stale_policy == "drop":
        return True
    demands = must_take(
        lane.begun,
        version=books.version,
        lag=lane.limit,
        batch_groups=lane.batch_groups,
        later=max(0, lane.batch_groups - lane.delivered_now - wanted),
        wanted=wanted,
    )
    return all(
        sum(len(ready) for version, ready in lane.ready.items() if version <= oldest) >= need
        for oldest, need in demands
    )


def _hand_over(books: Books, lane: Lane, waiting: Want, count: int, *, short: bool) -> None:
    groups = _take(books, lane, count)
    batch = Batch(
        id=books.next_batch,
        consumer=waiting.consumer,
        mode=lane.mode,
        step=waiting.step,
        wanted=waiting.n,
        version=books.version,
        groups=tuple(group.id for group in groups),
        attempts=tuple(attempt for group in groups for attempt in group.finished_ids()),
        lags=tuple(books.version - group.version for group in groups),
        last=lane.is_dry and not lane.num_ready,
        short=short,
    )
    books.next_batch += 1
    books.batches[batch.id] = batch
    for lag in batch.lags:
        lane.ledger.deliver_group(lane.size, lag)
    lane.untrained += count
    lane.delivered_now += count
    lane.rejected = 0
    del lane.wants[waiting.consumer]
    books.out.append(_order(batch))
    if lane.settings.tail and waiting.n != ALL:
        _end_round(books, lane)


def _take(books: Books, lane: Lane, count: int) -> list[Group]:
    """The oldest ready groups, out of the lane."""
    numbers = [number for version in sorted(lane.ready) for number in lane.ready[version]][:count]
    groups = [books.groups[number] for number in numbers]
    for group in groups:
        unready(lane, group)
        version = group.version
        lane.set_version(group, -1)
        group.version = version  # kept for the record; the lane no longer counts it
        group.state = "delivered"
        lane.alive -= 1
    return groups


def _take_back(books: Books, batch: Batch) -> None:
    lane = books.lanes[batch.mode]
    del books.batches[batch.id]
    for number, lag in zip(batch.groups, batch.lags, strict=True):
        group = books.groups[number]
        group.state = "ready"
        version, group.version = group.version, -1
        lane.set_version(group, version)
        lane.ready.setdefault(version, {})[number] = None
        lane.ledger.take_back_group(lane.size, lag)
    lane.num_ready += len(batch.groups)
    lane.alive += len(batch.groups)
    lane.untrained -= len(batch.groups)
    if batch.version == books.version:
        lane.delivered_now -= len(batch.groups)
    else:
        lane.loose_versions += 1  # its groups grew older while they counted as delivered
    if books.closed:
        for number in batch.groups:
            drop_group(books, books.groups[number], "shutdown")


def _end_round(books: Books, lane: Lane) -> None:
    """Set aside what a round began and did not deliver; carry over what it did not begin."""
    for group in [*books.groups.values()]:
        if group.mode != lane.mode or group.state in ("aside", "delivered"):
            continue
        begun = group.version >= 0 or group.failures
        if group.state == "ready":
            unready(lane, group)
        group.state = "aside"
        if begun:
            books.out.append(ResetGroup(group.id, "tail"))
        empty(books, group, "tail")
        (lane.aside if begun else lane.carried)[group.id] = None
        lane.alive -= 1
    books.look_for_slots = books.look_for_room = True


def _order(batch: Batch) -> DeliverBatch:
    return DeliverBatch(
        batch=batch.id,
        consumer=batch.consumer,
        mode=batch.mode,
        step=batch.step,
        version=batch.version,
        groups=batch.groups,
        attempts=batch.attempts,
        lags=batch.lags,
        last=batch.last,
        short=batch.short,
    )


def _end(books: Books, lane: Lane, waiting: Want, why: str) -> None:
    del lane.wants[waiting.consumer]
    books.out.append(EndBatches(waiting.consumer, why))


def _refuse(books: Books, lane: Lane, waiting: Want, why: str) -> None:
    del lane.wants[waiting.consumer]
    books.out.append(RefuseBatch(waiting.consumer, why))


def _same_batch(books: Books, event: BatchWanted) -> Batch | None:
    """The unacknowledged batch that this consumer had for this step."""
    for batch in books.batches.values():
        if (batch.consumer, batch.mode, batch.step) == (event.consumer, event.mode, event.step):
            return batch
    return None


def _check_size(lane: Lane, event: BatchWanted, again: Batch | None) -> None:
    if again is not None and again.wanted != event.n:
        raise Refused(
            f"step {event.step} was delivered to {event.consumer!r} as batch {again.id} of {again.wanted} and is not "
            f"acknowledged; got {event.n}: ask for {again.wanted} again or for a larger step"
        )
    if event.n == ALL:
        if lane.limit:
            raise Refused(
                f"a batch of everything (-1) needs staleness 0 or on_stale keep, got staleness "
                f"{lane.settings.staleness} with {lane.settings.stale_policy}"
            )
    elif event.n <= 0 or event.n % lane.size:
        raise Refused(
            f"batch size must be -1 or a multiple of the group size ({lane.size}), got {event.n}; "
            f"nearest: {nearest_sizes(max(event.n, 0), lane.size)}"
        )
