"""What happened to one group or attempt, and what a consumer waits for, in words."""

from collections.abc import Iterator

from windrow.core.batches import ALL, Want
from windrow.core.books import Books, Lane
from windrow.core.commands import (
    AnyCommand,
    CancelAttempt,
    DeliverBatch,
    DropGroup,
    GrantLease,
    JudgeGroup,
    MoveAttempt,
    ResetGroup,
)
from windrow.core.events import AnyEvent, AttemptEnded, AttemptProgressed, EpisodeEnded, GroupJudged
from windrow.core.groups import Attempt, Group
from windrow.types import Failed


def tell(books: Books, number: int, index: int | None = None) -> str:
    """What is known of a group, or of one of its attempts."""
    group = books.groups.get(number)
    if group is None:
        was = 0 <= number < books.next_group
        return f"g{number} is forgotten: it was trained on or dropped" if was else f"g{number} never was"
    if index is None:
        return "\n".join([_of_group(books, group), *(_of_attempt(books, a) for _, a in sorted(group.attempts.items()))])
    attempt = group.attempts.get(index)
    if attempt is not None:
        return _of_attempt(books, attempt)
    was = 0 <= index < group.next_index
    return f"  g{number}.a{index} is forgotten" if was else f"  g{number}.a{index} never was"


def about(books: Books, event: AnyEvent) -> str:
    """The story of the group that an event speaks of; empty if it speaks of none."""
    number = _group_of(event)
    return "" if number is None else tell(books, number)


def lines(event: AnyEvent, commands: list[AnyCommand], now: float, number: int) -> Iterator[str]:
    """What one step meant for one group: its part of the event and of the commands."""
    if _group_of(event) == number:
        yield f"{now:>12.3f}  {_said(event)}"
    for command in commands:
        said = _ordered(command, number)
        if said:
            yield f"{now:>12.3f}  {said}"


def why_waiting(books: Books, consumer: str) -> str:
    """What a waiting consumer's batch lacks; empty if it does not wait."""
    for lane in books.lanes.values():
        waiting = lane.wants.get(consumer)
        if waiting is not None:
            return _why(books, lane, waiting)
    return ""


def _why(books: Books, lane: Lane, waiting: Want) -> str:
    wanted = "all groups until the source ends" if waiting.n == ALL else f"{waiting.n // lane.size} groups"
    parts = [f"{consumer_text(waiting)} wants {wanted} for step {waiting.step}: {lane.num_ready} ready"]
    judging = sum(1 for g in books.groups.values() if g.mode == lane.mode and g.state == "judging")
    parts.append(f"{lane.alive - lane.num_ready - judging} incomplete with {lane.running} attempts playing")
    scoring = sum(1 for g in books.groups.values() if g.mode == lane.mode for a in g.attempts.values() if a.scoring)
    if scoring:
        parts.append(f"{scoring} played and waiting for their score")
    if judging:
        parts.append(f"{judging} before the filter")
    if waiting.n != ALL and lane.num_ready >= waiting.n // lane.size:
        parts.append("enough are ready, but older groups must be in this batch and are not complete")
    parts.extend(obstacles(books, lane))
    return "; ".join(parts)


def consumer_text(waiting: Want) -> str:
    """A consumer and since when it waits."""
    return f"{waiting.consumer!r} (since {waiting.since:.3f})"


def obstacles(books: Books, lane: Lane) -> Iterator[str]:
    if books.faults.halted:
        yield f"the breaker is open: {books.faults.halted}"
    if not books.workers.table:
        yield "no worker has joined"
    if not books.engines.table:
        yield "no engine has joined"
    elif not any(books.engines.is_usable(engine, lane.mode) for engine in books.engines.table.values()):
        yield "no engine serves with current weights"
    held = sorted({holder for engine in books.engines.table.values() for holder in engine.holds})
    if held:
        yield f"engines are held by {', '.join(held)}"
    if lane.untrained:
        yield f"{lane.untrained} groups are delivered and not acknowledged"
    if lane.tags.asked:
        yield f"{lane.tags.asked} tasks were asked for and have not arrived"
    kinds = sorted(kind for kind, queue in lane.queues.items() if queue.size and not books.workers.can_play(kind))
    if kinds:
        yield f"no free slot for kinds {kinds}"
    resting = sum(len(group.resting) for group in books.groups.values() if group.mode == lane.mode)
    if resting:
        yield f"{resting} retries rest"


def _of_group(books: Books, group: Group) -> str:
    parts = [
        f"g{group.id} ({group.mode}, ordinal {group.ordinal}, tag {group.tag!r}, task {group.task!r}) is {group.state}",
        f"arrived at {group.arrived_at:.3f}, now {books.now:.3f}",
        f"{group.finished} of {group.size} finished, {group.running} playing, {len(group.resting)} resting",
    ]
    if group.version >= 0:
        parts.append(f"oldest version {group.version} of {books.version}")
    if group.failures:
        parts.append(f"failures {dict(group.failures)}, the last: {group.last_failure}")
    return "; ".join(parts)


def _of_attempt(books: Books, attempt: Attempt) -> str:
    place = f"on worker {attempt.worker} with engine {attempt.engine or 'none'}"
    since = f"granted at {attempt.granted_at:.3f} under version {attempt.version}"
    moves = f", moved {attempt.moves} times" if attempt.moves else ""
    if attempt.finished:
        end = f"finished after {attempt.seconds:.3f} s: {attempt.tokens} tokens, score {attempt.score}"
        return f"  {attempt.id} {since}{moves} {end}"
    if attempt.scoring:
        played = f"played {attempt.seconds:.3f} s, waits for its score: {attempt.tokens} tokens"
        return f"  {attempt.id} {since}{moves} {played}"
    playing = books.now - attempt.granted_at
    return f"  {attempt.id} {since} {place}{moves} has played {playing:.3f} s: {attempt.tokens} tokens"


def _group_of(event: AnyEvent) -> int | None:
    match event:
        case AttemptEnded(attempt=attempt) | AttemptProgressed(attempt=attempt) | EpisodeEnded(attempt=attempt):
            return attempt.group
        case GroupJudged(group=group):
            return group
        case _:
            return None


def _said(event: AnyEvent) -> str:
    match event:
        case AttemptEnded(attempt=attempt, outcome=Failed(blame=blame, why=why)):
            return f"{attempt} failed, {blame}: {why}"
        case AttemptEnded(attempt=attempt, outcome=finished):
            return f"{attempt} finished: {finished}"
        case EpisodeEnded(attempt=attempt, tokens=tokens):
            return f"{attempt} was played to its end, {tokens} tokens, and waits for its score"
        case AttemptProgressed(attempt=attempt, tokens=tokens):
            return f"{attempt} has sampled {tokens} tokens"
        case _:
            return str(event)


def _ordered(command: AnyCommand, number: int) -> str:
    """What a command says about a group; empty if nothing."""
    match command:
        case GrantLease(attempt=a, worker=worker, engine=engine, version=version) if a.group == number:
            return f"{a} granted to worker {worker} with engine {engine} under version {version}"
        case CancelAttempt(attempt=a, why=why) if a.group == number:
            return f"{a} cancelled: {why}"
        case MoveAttempt(attempt=a, engine=engine) if a.group == number:
            return f"{a} moved to engine {engine or 'none'}"
        case JudgeGroup(group=group) if group == number:
            return f"g{number} complete, given to the filter"
        case DropGroup(group=group, why=why) if group == number:
            return f"g{number} dropped: {why}"
        case ResetGroup(group=group, why=why) if group == number:
            return f"g{number} set aside, to be played again: {why}"
        case DeliverBatch(groups=groups) if number in groups:
            lag = command.lags[groups.index(number)]
            return f"g{number} delivered to {command.consumer} in batch {command.batch}, lag {lag}"
        case _:
            return ""
