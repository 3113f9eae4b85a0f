"""What a machine is doing, for whoever looks at it from outside, and what it has ordered and not heard of since."""

from windrow.core.batches import Want
from windrow.core.books import Books, Lane
from windrow.core.commands import AnyCommand, FetchTask, JudgeGroup, LoadWeights, ReleaseEngine, RestoreEngine
from windrow.core.engines import EngineState
from windrow.types import MODES, Mode, Value


class LaneStatus(Value, frozen=True, kw_only=True):
    """One mode."""

    groups_in_play: int
    groups_ready: int
    groups_set_aside: int
    groups_untrained: int
    """Delivered and not acknowledged."""
    attempts_playing: int
    tasks_asked: int
    cap: int
    """Groups that may be admitted and not yet trained on."""
    begun: dict[int, int]
    """Undelivered groups that have begun, by version."""
    loose_versions: int
    """Times when the mean lag was not bounded: a version without a full batch, several at once, a batch returned."""
    waiting: tuple[Want, ...]


class EngineStatus(Value, frozen=True, kw_only=True):
    """One engine."""

    engine: str
    state: EngineState
    version: int
    usable_for: tuple[Mode, ...]
    holders: tuple[str, ...]
    attempts: int
    strikes: int


class Status(Value, frozen=True, kw_only=True):
    """Everything at one moment."""

    now: float
    version: int
    halted: str
    closed: bool
    late: int
    attempts_scoring: int
    slots: int
    slots_free: int
    lanes: dict[Mode, LaneStatus]
    engines: tuple[EngineStatus, ...]
    workers: tuple[str, ...]
    quarantined: tuple[str, ...]


def status(books: Books) -> Status:
    """A copy of what matters."""
    return Status(
        now=books.now,
        version=books.version,
        halted=books.faults.halted,
        closed=books.closed,
        late=books.late,
        attempts_scoring=books.scoring,
        slots=books.workers.slots,
        slots_free=books.workers.vacant,
        lanes={mode: _lane(lane) for mode, lane in books.lanes.items()},
        engines=_engines(books),
        workers=tuple(books.workers.table),
        quarantined=tuple(books.faults.dead),
    )


def outstanding(books: Books) -> list[AnyCommand]:
    """Orders whose answer is still awaited; giving them again does no harm."""
    orders: list[AnyCommand] = []
    for lane in books.lanes.values():
        orders += [FetchTask(lane.mode, tag, share.asked) for tag, share in lane.tags.table.items() if share.asked]
    for group in books.groups.values():
        if group.state == "judging":
            orders.append(JudgeGroup(group.id, tuple(group.finished_ids())))
    for engine in books.engines.table.values():
        if engine.id in books.engines.updating:
            orders.append(LoadWeights(engine.id, books.version))
        elif engine.state == "leaving":
            orders.append(ReleaseEngine(engine.id))
        elif engine.state == "restoring":
            orders.append(RestoreEngine(engine.id, load=not books.engines.is_current(engine)))
    return orders


def _lane(lane: Lane) -> LaneStatus:
    return LaneStatus(
        groups_in_play=lane.alive - lane.num_ready,
        groups_ready=lane.num_ready,
        groups_set_aside=len(lane.aside) + len(lane.carried),
        groups_untrained=lane.untrained,
        attempts_playing=lane.running,
        tasks_asked=lane.tags.asked,
        cap=lane.cap,
        begun=dict(sorted(lane.begun.items())),
        loose_versions=lane.loose_versions,
        waiting=tuple(lane.wants.values()),
    )


def _engines(books: Books) -> tuple[EngineStatus, ...]:
    return tuple(
        EngineStatus(
            engine=engine.id,
            state=engine.state,
            version=engine.version,
            usable_for=tuple(mode for mode in MODES if books.engines.is_usable(engine, mode)),
            holders=tuple(engine.holds),
            attempts=len(engine.attempts),
            strikes=engine.strikes,
        )
        for engine in books.engines.table.values()
    )
