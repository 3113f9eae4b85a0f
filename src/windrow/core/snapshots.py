"""The books on paper: everything that cannot be derived, and how the rest is derived from it.

Promises: a machine restored from a snapshot gives the same commands for the same events as the one it was taken from.
A snapshot that cannot be read restores nothing.
"""

from collections import deque
from heapq import heapify
from typing import Literal

from windrow.core.batches import Batch, Want
from windrow.core.books import Books, Lane
from windrow.core.engines import Engine
from windrow.core.faults import DeadLetter
from windrow.core.groups import Group
from windrow.core.ledger import Ledger
from windrow.core.ordering import Lengths
from windrow.core.settings import Settings
from windrow.core.shares import TagShare
from windrow.core.workers import Worker
from windrow.errors import ConfigError
from windrow.types import MODES, How, Mode, Record, but, from_bytes, to_bytes

FORMAT = 1
"""Raised whenever an older snapshot could no longer be understood."""


class LaneState(Record, kw_only=True):
    """What a lane has on paper."""

    ledger: Ledger
    tags: dict[str, TagShare]
    ready: list[tuple[int, list[int]]]
    begun: dict[int, int]
    alive: int
    untrained: int
    batch_groups: int
    trained_now: int
    loose_versions: int
    opened: bool
    delivered_now: int
    rejected: int
    wants: list[Want]
    aside: list[int]
    carried: list[int]
    round: Literal["fresh", "tail"]


class Format(Record, kw_only=True):
    """What every snapshot has, whatever its format."""

    format: int


class State(Format, kw_only=True):
    """What a machine has on paper."""

    settings: Settings
    now: float
    version: int
    closed: bool
    groups: list[Group]
    next_group: int
    batches: list[Batch]
    next_batch: int
    lanes: dict[Mode, LaneState]
    engines: list[Engine]
    engines_joined: int
    vacated: list[int] = []
    holds: dict[str, How]
    workers: list[Worker]
    free: dict[str, list[str]]
    beats: list[tuple[float, str]]
    recent: list[str]
    cursor: int
    halted: str
    dead: list[DeadLetter]
    lengths: Lengths
    rests: list[tuple[float, int, int]]
    late: int


def save(books: Books) -> bytes:
    """The books as bytes."""
    faults = books.faults
    state = State(
        format=FORMAT,
        settings=books.settings,
        now=books.now,
        version=books.version,
        closed=books.closed,
        groups=list(books.groups.values()),
        next_group=books.next_group,
        batches=list(books.batches.values()),
        next_batch=books.next_batch,
        lanes={mode: _save_lane(lane) for mode, lane in books.lanes.items()},
        engines=[but(engine, attempts={}, posted=-1.0) for engine in books.engines.table.values()],
        engines_joined=books.engines.joined,
        vacated=[*books.engines.vacated],
        holds=books.holds,
        workers=[but(worker, leases={}) for worker in books.workers.table.values()],
        free={kind: list(turn) for kind, turn in books.workers.free.items()},
        beats=sorted(books.workers.beats),
        recent=faults.recent,
        cursor=faults.cursor,
        halted=faults.halted,
        dead=list(faults.dead.values()),
        lengths=books.lengths,
        rests=sorted(books.rests),
        late=books.late,
    )
    return to_bytes(state)


def load(data: bytes) -> Books:
    """The books that `save` wrote."""
    try:
        found = from_bytes(data, Format).format
        if found != FORMAT:
            raise ConfigError(f"the snapshot has format {found}; this version reads format {FORMAT}")
        state = from_bytes(data, State)
    except ValueError as error:
        raise ConfigError(f"the snapshot cannot be read: {error}") from error
    books = Books(state.settings)
    books.now, books.version, books.closed = state.now, state.version, state.closed
    books.groups = {group.id: group for group in state.groups}
    books.next_group = state.next_group
    books.batches = {batch.id: batch for batch in state.batches}
    books.next_batch = state.next_batch
    books.holds, books.rests, books.late = state.holds, state.rests, state.late
    books.lengths = state.lengths
    _load_faults(books, state)
    _load_workers(books, state)
    _load_engines(books, state)
    for mode in MODES:
        _load_lane(books.lanes[mode], state.lanes[mode])
    _derive(books)
    return books


def _save_lane(lane: Lane) -> LaneState:
    return LaneState(
        ledger=lane.ledger,
        tags=lane.tags.table,
        ready=[(version, list(numbers)) for version, numbers in lane.ready.items()],
        begun=lane.begun,
        alive=lane.alive,
        untrained=lane.untrained,
        batch_groups=lane.batch_groups,
        trained_now=lane.trained_now,
        loose_versions=lane.loose_versions,
        opened=lane.opened,
        delivered_now=lane.delivered_now,
        rejected=lane.rejected,
        wants=list(lane.wants.values()),
        aside=list(lane.aside),
        carried=list(lane.carried),
        round=lane.round,
    )


def _load_lane(lane: Lane, state: LaneState) -> None:
    lane.ledger = state.ledger
    lane.tags.table = state.tags
    lane.ready = {version: dict.fromkeys(numbers) for version, numbers in state.ready}
    lane.num_ready = sum(len(numbers) for _, numbers in state.ready)
    lane.begun = state.begun
    lane.alive, lane.untrained = state.alive, state.untrained
    lane.batch_groups, lane.loose_versions = state.batch_groups, state.loose_versions
    lane.opened, lane.delivered_now, lane.rejected = state.opened, state.delivered_now, state.rejected
    lane.trained_now = state.trained_now
    lane.wants = {want.consumer: want for want in state.wants}
    lane.aside, lane.carried = dict.fromkeys(state.aside), dict.fromkeys(state.carried)
    lane.round = state.round


def _load_faults(books: Books, state: State) -> None:
    faults = books.faults
    faults.recent, faults.cursor, faults.halted = state.recent, state.cursor, state.halted
    faults.failed = sum(1 for why in state.recent if why)
    faults.dead = {letter.task: letter for letter in state.dead}


def _load_workers(books: Books, state: State) -> None:
    workers = books.workers
    workers.table = {worker.id: worker for worker in state.workers}
    workers.free = {kind: dict.fromkeys(names) for kind, names in state.free.items()}
    workers.beats = state.beats
    workers.slots = sum(worker.slots for worker in state.workers if not worker.leaving)


def _load_engines(books: Books, state: State) -> None:
    engines = books.engines
    engines.table = {engine.id: engine for engine in state.engines}
    engines.joined = state.engines_joined
    engines.vacated = dict.fromkeys(state.vacated)
    engines.version = state.version
    for engine in state.engines:
        engines.capacity += engine.capacity if engine.state == "serving" else 0
        engines.note_version(engine)
    for mode in (None, *MODES):
        engines.rebuild(mode)


def _derive(books: Books) -> None:
    """Everything that follows from the groups and their attempts."""
    leases = []
    for group in books.groups.values():
        lane = books.lane_of(group)
        if group.rank is not None:
            queue = lane.queue(group.kind)
            queue.heap.append(group.rank)
            queue.size += 1
        for attempt in group.attempts.values():
            if attempt.finished:
                continue
            leases.append((attempt.deadline, attempt.id))
            if attempt.scoring:
                books.scoring += 1
                continue
            lane.running += 1
            books.workers.running[group.kind] = books.workers.running.get(group.kind, 0) + 1
            books.workers.table[attempt.worker].leases[attempt.id] = None
            if attempt.engine:
                books.engines.table[attempt.engine].attempts[attempt.id] = None
                books.engines.attempts += 1
            else:
                books.homeless[attempt.id] = None
    books.running = len(leases) - books.scoring
    books.workers.vacant = sum(worker.free for worker in books.workers.table.values())
    books.leases = deque(sorted(leases))
    for lane in books.lanes.values():
        for queue in lane.queues.values():
            heapify(queue.heap)
