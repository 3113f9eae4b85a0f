"""The life of an attempt and of its group: granted, finished, failed, thrown away.

Promises: whatever ends an attempt gives its slot and its engine back in the same step and books it once; a group that
is full cancels what it no longer needs at once; an attempt that is thrown away is forgotten, so whatever is heard of it
later is only counted.
"""

from heapq import heappop, heappush
from math import isfinite
from typing import assert_never

from windrow.core.books import Books, Lane
from windrow.core.commands import CancelAttempt, DropGroup, GrantLease, Halt, JudgeGroup
from windrow.core.events import AttemptEnded, AttemptProgressed, EpisodeEnded, GroupJudged
from windrow.core.groups import Attempt, Group
from windrow.errors import IllegalEvent
from windrow.types import AttemptId, Blame, Failed, Finished, Reason

RECENT = 0.05
"""Weight of the newest attempt in a tag's moving mean of tokens."""


def progress(books: Books, event: AttemptProgressed) -> None:
    """An episode finished a turn."""
    attempt = books.attempt(event.attempt)
    if attempt is None or attempt.finished:
        _count_late(books, event.attempt)
        return
    books.workers.heard_of(attempt.worker, books.now)
    attempt.tokens = max(attempt.tokens, event.tokens)
    if event.oldest_version != attempt.version:
        _learn_version(books, books.groups[event.attempt.group], attempt, event.oldest_version)


def play_out(books: Books, event: EpisodeEnded) -> None:
    """An episode is over; its score comes later."""
    attempt = books.attempt(event.attempt)
    if attempt is None or attempt.finished or attempt.scoring:
        _count_late(books, event.attempt)
        return
    group = books.groups[event.attempt.group]
    books.workers.heard_of(attempt.worker, books.now)
    attempt.tokens = max(attempt.tokens, event.tokens)
    attempt.seconds = books.now - attempt.granted_at
    _vacate(books, group, attempt)
    attempt.scoring = True
    books.scoring += 1
    if event.oldest_version != attempt.version:
        _learn_version(books, group, attempt, event.oldest_version)
    books.look_for_slots = True


def end(books: Books, event: AttemptEnded) -> None:
    """An attempt ended, one way or the other."""
    _check_numbers(event)
    attempt = books.attempt(event.attempt)
    if attempt is None or attempt.finished:
        _count_late(books, event.attempt)
        return
    books.workers.heard_of(attempt.worker, books.now)
    group = books.groups[event.attempt.group]
    match event.outcome:
        case Finished() as finished:
            _finish(books, group, attempt, finished)
        case Failed() as failed:
            note_failure(books, f"{attempt.id} {failed.blame}: {failed.why}")
            if failed.blame == "engine":
                books.engines.strike(attempt.engine, failed=True)
                group.engine = ""  # whatever it knows there, its retry may go elsewhere
            fail(books, group, attempt, failed, "failed", tell=False)
        case _:
            assert_never(event.outcome)


def judge(books: Books, event: GroupJudged) -> None:
    """The user's filter answered."""
    group = books.groups.get(event.group)
    if group is None or group.state != "judging":
        if not 0 <= event.group < books.next_group:
            raise IllegalEvent(f"group g{event.group} was judged and never admitted")
        books.late += 1
    elif event.accepted:
        _accept(books, group)
    else:
        _reject(books, group)


def grant(books: Books, lane: Lane, group: Group) -> bool:
    """Start one more attempt of a group on a free slot; false if no engine takes it."""
    engine = books.engines.choose(lane.mode, group.engine)
    if engine is None:
        return False
    now = books.now
    attempt_id = AttemptId(group.id, group.next_index)
    seat = _seat(group)
    worker = books.workers.take(group.kind, attempt_id)
    work = books.lengths.foretell_tokens(group)
    # weights ahead of the published version count as published, and an engine behind it is held until it has them
    version = engine.version if engine.mode == "val" else books.version
    deadline = now + books.settings.lease_s
    attempt = Attempt(attempt_id, seat, worker, engine.id, now, deadline, version, work)
    group.attempts[group.next_index] = attempt
    group.next_index += 1
    group.running += 1
    group.engine = engine.id
    if group.version < 0 or version < group.version:
        lane.set_version(group, version)
    lane.running += 1
    books.running += 1
    lane.ledger.attempts.admit()
    books.engines.book(engine, attempt_id, work)
    books.leases.append((deadline, attempt_id))
    books.out.append(
        GrantLease(attempt_id, seat, worker, engine.id, group.ordinal, group.tag, lane.mode, version, deadline)
    )
    books.requeue(lane, group)
    return True


def _finish(books: Books, group: Group, attempt: Attempt, outcome: Finished) -> None:
    """An attempt came to its end with a score."""
    lane = books.lane_of(group)
    _stop(books, group, attempt)
    attempt.finished = True
    attempt.score = outcome.score
    attempt.tokens = max(attempt.tokens, outcome.tokens)
    group.finished += 1
    group.seconds += attempt.seconds
    group.tokens += attempt.tokens
    if outcome.oldest_version != attempt.version:
        _learn_version(books, group, attempt, outcome.oldest_version)
    known = books.lengths.tag_tokens
    mean = known.get(group.tag, float(outcome.tokens))
    known[group.tag] = mean + RECENT * (outcome.tokens - mean)
    books.faults.note("")
    books.engines.strike(attempt.engine, failed=False)
    if group.finished == group.size:
        _complete(books, lane, group)
    else:
        books.requeue(lane, group)
    books.look_for_slots = True


def _learn_version(books: Books, group: Group, attempt: Attempt, oldest: int) -> None:
    """An attempt said which version its oldest token is of; -1 if it has none."""
    if oldest >= 0:
        attempt.version = min(oldest, books.version)
        books.lane_of(group).set_version(group, group.oldest_version())
        books.look_for_batches = True  # a group that turns out younger no longer holds others back


def note_failure(books: Books, why: str) -> None:
    """Count a failure towards the breaker."""
    if books.faults.note(why):
        books.out.append(Halt(books.faults.halted))
        books.look_for_batches = True


def fail(
    books: Books,
    group: Group,
    attempt: Attempt,
    failure: Failed,
    why: Reason,
    *,
    tell: bool = True,
    charge: bool = True,
) -> None:
    """An attempt ended without a score: try again later, or give the group up; `charge` it to the group's budget."""
    lane = books.lane_of(group)
    attempt.tokens = max(attempt.tokens, failure.tokens)
    throw_away(books, lane, group, attempt, why, tell=tell)
    lane.set_version(group, group.oldest_version())
    group.failures[failure.blame] = group.failures.get(failure.blame, 0) + charge
    group.last_failure = f"{attempt.id} {failure.blame}: {failure.why}"
    _retry_or_give_up(books, lane, group, attempt.id, failure.blame)
    books.look_for_slots = books.look_for_batches = True


def _retry_or_give_up(books: Books, lane: Lane, group: Group, failed: AttemptId, blame: Blame) -> None:
    verdict = books.faults.verdict(group, blame)
    if verdict is not None:
        if verdict == "poisoned":
            _quarantine(books, group)
        drop_group(books, group, verdict)
        return
    rest_s = 0.0 if blame == "worker" else books.faults.rest_s(group)  # another worker need not be waited for
    if rest_s > 0:
        group.resting.append(failed.index)
        heappush(books.rests, (books.now + rest_s, group.id, failed.index))
    books.requeue(lane, group)


def _quarantine(books: Books, group: Group) -> None:
    """Bury a group's task, and whatever else is being played of it."""
    books.faults.bury(group, group.last_failure, books.now)
    for other in [*books.groups.values()] if group.task else []:
        unfinished = other.state in ("open", "aside")
        if unfinished and other.task == group.task and other is not group:
            drop_group(books, other, "poisoned")


def throw_away(books: Books, lane: Lane, group: Group, attempt: Attempt, why: Reason, *, tell: bool = True) -> None:
    """Forget an attempt, whether it plays or has finished, and book it as waste; `tell` whoever plays or scores it."""
    del group.attempts[attempt.id.index]
    heappush(group.vacated, attempt.seat)
    if attempt.finished:
        group.finished -= 1
        group.seconds -= attempt.seconds
        group.tokens -= attempt.tokens
    else:
        # looked up before a leaving worker loses its last attempt; a score is not its worker's business
        reachable = attempt.scoring or attempt.worker in books.workers.table
        _stop(books, group, attempt)
        if tell and reachable:
            books.out.append(CancelAttempt(attempt.id, attempt.worker, why))
    lane.ledger.throw_away(why, attempt.tokens, attempt.seconds)


def empty(books: Books, group: Group, why: Reason) -> None:
    """Throw away all attempts of a group and take it out of the order of play."""
    lane = books.lane_of(group)
    for attempt in list(group.attempts.values()):
        throw_away(books, lane, group, attempt, why)
    lane.set_version(group, -1)
    group.resting.clear()
    group.seconds = 0.0
    group.tokens = 0
    lane.queue(group.kind).remove(group)


def drop_group(books: Books, group: Group, why: Reason) -> None:
    """Give a group up that was not delivered; another one may take its place in the same step."""
    lane = books.lane_of(group)
    if group.state == "ready":
        unready(lane, group)
    if group.state == "aside":
        lane.aside.pop(group.id, None)
        lane.carried.pop(group.id, None)
    else:
        lane.alive -= 1
    empty(books, group, why)
    del books.groups[group.id]
    lane.ledger.groups.drop(why)
    lane.tags.settle(group.tag, used=False)
    books.out.append(DropGroup(group.id, why))
    books.look_for_room = books.look_for_slots = books.look_for_batches = True


def _accept(books: Books, group: Group) -> None:
    """A complete group may be delivered."""
    lane = books.lane_of(group)
    group.state = "ready"
    lane.ready.setdefault(group.version, {})[group.id] = None
    lane.num_ready += 1
    books.look_for_batches = books.look_for_room = True


def _reject(books: Books, group: Group) -> None:
    """The filter has no use for a complete group."""
    books.lane_of(group).rejected += 1
    drop_group(books, group, "filtered")


def unready(lane: Lane, group: Group) -> None:
    """A ready group leaves, in a batch or as waste."""
    del lane.ready[group.version][group.id]
    if not lane.ready[group.version]:
        del lane.ready[group.version]
    lane.num_ready -= 1


def _complete(books: Books, lane: Lane, group: Group) -> None:
    for attempt in list(group.attempts.values()):
        if not attempt.finished:
            throw_away(books, lane, group, attempt, "spare")
    group.resting.clear()
    lane.set_version(group, group.oldest_version())
    books.look_for_batches = True
    lane.queue(group.kind).remove(group)
    books.lengths.learn(group)
    if lane.settings.filter == "external":
        group.state = "judging"
        books.out.append(JudgeGroup(group.id, tuple(group.finished_ids())))
    elif lane.settings.filter == "varied" and _scores_are_equal(group):
        _reject(books, group)
    else:
        _accept(books, group)


def _scores_are_equal(group: Group) -> bool:
    return len({attempt.score for attempt in group.attempts.values()}) == 1


def _seat(group: Group) -> int:
    """The lowest seat that is free."""
    if group.vacated:
        return heappop(group.vacated)
    group.seated += 1
    return group.seated - 1


def _count_late(books: Books, attempt_id: AttemptId) -> None:
    """Something was said of an attempt that does not play; raises if it never did."""
    group = books.groups.get(attempt_id.group)
    granted = 0 <= attempt_id.group < books.next_group if group is None else 0 <= attempt_id.index < group.next_index
    if not granted:
        raise IllegalEvent(f"attempt {attempt_id} was never granted")
    books.late += 1


def _stop(books: Books, group: Group, attempt: Attempt) -> None:
    """An attempt that plays or waits for its score does so no longer."""
    group.running -= 1
    if attempt.scoring:
        attempt.scoring = False
        books.scoring -= 1
    else:
        attempt.seconds = books.now - attempt.granted_at
        _vacate(books, group, attempt)


def _vacate(books: Books, group: Group, attempt: Attempt) -> None:
    """A playing attempt gives its slot and its engine back."""
    books.lane_of(group).running -= 1
    books.running -= 1
    books.workers.give_back(attempt.worker, group.kind, attempt.id)
    if attempt.engine:
        books.engines.unbook(books.engines.table[attempt.engine], attempt.id, attempt.work)
    else:
        del books.homeless[attempt.id]


def _check_numbers(event: AttemptEnded) -> None:
    """A score is a number; whoever has none reports a failure."""
    outcome = event.outcome
    if isinstance(outcome, Finished) and not isfinite(outcome.score):
        raise IllegalEvent(f"attempt {event.attempt} has score {outcome.score}; report it as failed")
    if outcome.tokens < 0:
        raise IllegalEvent(f"attempt {event.attempt} has {outcome.tokens} tokens")
