"""Engines that come, go, fall behind, are held, shrink and grow; attempts that move between them.

Promises: an attempt without an engine gets one in the step in which one becomes usable. A shrink that would leave a
mode without engines, or names a device nobody ever had, is refused whole; devices of engines that died are free. A
newly serving engine takes over its share of the running work. A holder can let go only of what it holds itself.
"""

from windrow.core.books import Books
from windrow.core.commands import (
    LoadWeights,
    MoveAttempt,
    ReleaseEngine,
    RestoreEngine,
    ResumeEngine,
    SuspendEngine,
)
from windrow.core.engines import Engine
from windrow.core.events import (
    EngineAssigned,
    EngineJoined,
    ExpandWanted,
    ShrinkWanted,
    SuspendWanted,
    VersionPublished,
    WeightsLoaded,
)
from windrow.core.groups import Attempt
from windrow.errors import IllegalEvent, Refused
from windrow.types import MODES, AttemptId, Mode


def join(books: Books, event: EngineJoined) -> None:
    """An engine exists; it serves when it is warm and its weights are current."""
    book = books.engines
    if event.engine in book.table:
        raise IllegalEvent(f"engine {event.engine!r} joined twice; report it lost before it joins again")
    if event.capacity < 1:
        raise IllegalEvent(f"engine {event.engine!r} has capacity {event.capacity}; it must be 1 or more")
    engine = Engine(event.engine, book.joined, event.capacity, event.devices, event.version, fresh=True)
    book.joined += 1
    book.table[engine.id] = engine
    for holder, how in books.holds.items():
        book.hold(engine, holder, how)
    if engine.holds:
        hows = [*engine.holds.values()]
        books.out.append(SuspendEngine(engine.id, "interrupt" if "interrupt" in hows else hows[0]))


def ready(books: Books, name: str) -> None:
    """An engine is warm."""
    engine = books.engines.table.get(name)
    if engine is None or engine.state not in ("warming", "restoring"):
        books.late += 1
        return
    engine.strikes = 0
    books.engines.enter(engine, "serving")
    _serve_or_load(books, engine)


def loaded(books: Books, event: WeightsLoaded) -> None:
    """An engine confirmed its weights."""
    engine = books.engines.table.get(event.engine)
    if engine is None:
        books.late += 1
        return
    engine.version = event.version
    engine.strikes = 0
    books.engines.note_version(engine)
    if engine.state == "serving":
        _serve_or_load(books, engine)


def publish(books: Books, event: VersionPublished) -> None:
    """Engines are behind until they confirm the new version."""
    book = books.engines
    book.version = event.version
    for engine in book.table.values():
        if event.loaded and engine.mode != "val":
            engine.version = event.version
        book.note_version(engine)
        if engine.state != "serving":
            continue
        if book.is_current(engine):
            book.post(engine)
        else:
            books.out.append(LoadWeights(engine.id, event.version))


def lose(books: Books, name: str) -> None:
    """An engine died; its attempts go on elsewhere from their last token."""
    engine = books.engines.table.pop(name, None)
    if engine is None:
        books.late += 1
        return
    books.engines.enter(engine, "away")
    books.engines.vacated |= dict.fromkeys(engine.devices)
    _evict(books, engine, MODES)


def assign(books: Books, event: EngineAssigned) -> None:
    """An engine serves one mode only, or all again."""
    engine = _known(books, event.engine)
    engine.mode = event.mode
    engine.posted = -1.0
    books.engines.note_version(engine)
    if event.mode is not None:
        _evict(books, engine, tuple(mode for mode in MODES if mode != event.mode))
    if engine.state == "serving":
        _serve_or_load(books, engine)


def suspend(books: Books, event: SuspendWanted) -> None:
    """A holder wants engines to be quiet."""
    engines = [_known(books, name) for name in event.engines] or [*books.engines.table.values()]
    if not event.engines:
        books.holds[event.holder] = event.how
    for engine in engines:
        held = engine.holds.values()
        if not held or (event.how == "interrupt" and "interrupt" not in held):
            books.out.append(SuspendEngine(engine.id, event.how))
        books.engines.hold(engine, event.holder, event.how)


def resume(books: Books, holder: str) -> None:
    """A holder lets go; engines that nobody else holds generate again."""
    books.holds.pop(holder, None)
    for engine in books.engines.table.values():
        if books.engines.let_go(engine, holder):
            books.out.append(ResumeEngine(engine.id))


def shrink(books: Books, event: ShrinkWanted) -> None:
    """Engines on these devices stop serving; their attempts move to the others."""
    _check_devices(books, event.devices)
    going = [engine for engine in books.engines.on_devices(event.devices) if engine.state not in ("leaving", "away")]
    for mode in MODES:
        _check_remaining(books, event, going, mode)
    for engine in going:
        books.engines.enter(engine, "leaving")
    for engine in going:
        _evict(books, engine, MODES)
        books.out.append(ReleaseEngine(engine.id))


def released(books: Books, name: str) -> None:
    """An engine gave its devices back."""
    engine = books.engines.table.get(name)
    if engine is None or engine.state != "leaving":
        books.late += 1
        return
    books.engines.enter(engine, "away")


def expand(books: Books, event: ExpandWanted) -> None:
    """Engines on these devices serve again, once they are warm and current."""
    _check_devices(books, event.devices)
    offered = set(event.devices)
    coming = [engine for engine in books.engines.on_devices(event.devices) if engine.state in ("leaving", "away")]
    for engine in coming:
        missing = set(engine.devices) - offered
        if missing:
            raise Refused(f"engine {engine.id!r} needs devices {sorted(missing)} too; got {sorted(offered)}")
    for engine in coming:
        books.engines.enter(engine, "restoring")
        engine.fresh = True
        if event.skip_load:
            engine.version = books.version
        books.out.append(RestoreEngine(engine.id, load=not event.skip_load))


def _serve_or_load(books: Books, engine: Engine) -> None:
    """A warm engine serves, or is told to load what it lacks."""
    book = books.engines
    engine.weigh(engine.work)
    book.post(engine)
    if not book.is_current(engine):
        books.out.append(LoadWeights(engine.id, book.version))
        return
    if engine.fresh:
        engine.fresh = False
        _take_share(books, engine)


def _take_share(books: Books, engine: Engine) -> None:
    """Move attempts from the busiest engines to one that has just begun to serve."""
    if not books.running:
        return
    modes = MODES if engine.mode is None else (engine.mode,)
    others = [other for other in books.engines.table.values() if other is not engine and other.attempts]
    for donor in sorted(others, key=lambda other: (-other.load, other.joined)):
        if donor.load <= engine.load:
            return
        for attempt_id in sorted(donor.attempts, reverse=True):
            attempt = _attempt(books, attempt_id)
            if books.groups[attempt_id.group].mode not in modes:
                continue
            gain = donor.load - engine.load - attempt.work / donor.capacity - attempt.work / engine.capacity
            if gain < 0:
                break
            _move(books, attempt, engine)


def _evict(books: Books, engine: Engine, modes: tuple[Mode, ...]) -> None:
    """Send an engine's attempts of some modes elsewhere."""
    for attempt_id in sorted(engine.attempts):
        if books.groups[attempt_id.group].mode in modes:
            attempt = _attempt(books, attempt_id)
            target = books.engines.choose(books.groups[attempt_id.group].mode, "")
            _move(books, attempt, target, source=engine)


def rehouse(books: Books) -> None:
    """Find engines for the attempts that have none."""
    for attempt_id in sorted(books.homeless):
        target = books.engines.choose(books.groups[attempt_id.group].mode, "")
        if target is not None:
            del books.homeless[attempt_id]
            _move(books, _attempt(books, attempt_id), target)


def _move(books: Books, attempt: Attempt, target: Engine | None, source: Engine | None = None) -> None:
    """Let an attempt go on with another engine, or wait for one."""
    source = source or books.engines.table.get(attempt.engine)
    if source is not None:
        books.engines.unbook(source, attempt.id, attempt.work)
    if target is None:
        attempt.engine = ""
        books.homeless[attempt.id] = None
    else:
        attempt.engine = target.id
        books.engines.book(target, attempt.id, attempt.work)
    attempt.moves += 1
    books.out.append(MoveAttempt(attempt.id, attempt.worker, attempt.engine))


def _attempt(books: Books, attempt_id: AttemptId) -> Attempt:
    return books.groups[attempt_id.group].attempts[attempt_id.index]


def _check_remaining(books: Books, event: ShrinkWanted, going: list[Engine], mode: Mode) -> None:
    """Refuse a shrink after which nobody serves a mode that somebody serves, or could serve, now."""
    able = [engine for engine in books.engines.table.values() if engine.mode in (None, mode)]
    serving = [engine for engine in able if engine.state == "serving"]
    there = serving or [engine for engine in able if engine.state not in ("leaving", "away")]
    if going and there and all(engine in going for engine in there):
        raise Refused(
            f"shrink of devices {[*event.devices]} would leave no engine for {mode}; "
            f"there: {', '.join(engine.id for engine in there)}"
        )


def _known(books: Books, name: str) -> Engine:
    engine = books.engines.table.get(name)
    if engine is None:
        raise IllegalEvent(f"unknown engine {name!r}; known: {', '.join(books.engines.table) or 'none'}")
    return engine


def _check_devices(books: Books, devices: tuple[int, ...]) -> None:
    unknown = books.engines.unknown_devices(devices)
    if unknown or not devices:
        known = sorted(books.engines.known_devices())
        raise Refused(f"no engine has devices {unknown or '[]'}; known devices: {known}")
