"""Every interleaving of tiny worlds, breadth first.

A tiny world has a few tasks, slots and engines, and a purse that says how often each misfortune may still happen. From
every state every possible event is played; states that were seen before are not played again. Each is checked, each
step is judged by the book, and where nothing can happen any more nobody may wait: everything that was wanted has come.
Time stands still, except where the purse holds ticks.
"""

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.core.book import Book

from windrow.core import events as e
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.types import Failed, Finished

Purse = dict[str, int]
"""How often each thing may still happen."""


@dataclass(frozen=True)
class Tiny:
    """One configuration."""

    train: ModeSettings
    purse: Purse
    rest: dict[str, object]
    engines: int = 1
    slots: int = 2


@dataclass(frozen=True)
class State:
    """A moment from which to go on."""

    machine: bytes
    book: bytes
    purse: tuple[tuple[str, int], ...]


@dataclass
class Moment:
    """The same, alive."""

    machine: Machine
    book: Book
    purse: Purse

    def frozen(self, snapshot: bytes) -> State:
        return State(snapshot, pickle.dumps(self.book, pickle.HIGHEST_PROTOCOL), tuple(sorted(self.purse.items())))


def thawed(state: State) -> Moment:
    book: Book = pickle.loads(state.book)  # noqa: S301 our own bytes
    return Moment(Machine.restore(state.machine), book, dict(state.purse))


def tiny(size: int, batch: int, purse: Purse, *, engines: int = 1, slots: int = 2, **more: object) -> Tiny:
    """A configuration; names of settings of a mode are for training."""
    of_mode = {name: value for name, value in more.items() if name in ModeSettings.__struct_fields__}
    rest = {"backoff_s": 0.0, "breaker_share": 1.0} | {k: v for k, v in more.items() if k not in of_mode}
    train = ModeSettings(group_size=size, batch_size=batch, **of_mode)  # type: ignore[arg-type]
    return Tiny(train, purse, rest, engines, slots)


WORLDS: dict[str, Tiny] = {
    "spares_and_failures": tiny(2, 4, {"tasks": 3, "wants": 1, "fail": 1, "late": 1}, spares=1, slots=3),
    "lost_worker": tiny(1, 2, {"tasks": 4, "wants": 2, "lose": 2, "leave": 1, "late": 1}, worker_retries=0),
    "poor": tiny(2, 2, {"tasks": 2, "wants": 1, "fail": 2, "lose": 1}, spares=1, env_retries=0, slots=3),
    "wait_1": tiny(1, 1, {"tasks": 4, "wants": 3, "publish": 2}, staleness=1.0, on_stale="wait"),
    "wait_1_of_2": tiny(1, 2, {"tasks": 4, "wants": 2, "loaded": 2}, staleness=1.0, on_stale="wait", slots=3),
    "drop_1": tiny(1, 1, {"tasks": 4, "wants": 2, "loaded": 2}, staleness=1.0, on_stale="drop"),
    "keep_1": tiny(1, 2, {"tasks": 4, "wants": 2, "loaded": 1, "withdraw": 1}, staleness=1.0),
    "two_consumers": tiny(1, 2, {"tasks": 4, "wants": 1, "second": 1, "again": 1, "publish": 1}),
    "two_engines": tiny(1, 2, {"tasks": 2, "wants": 1, "lose_engine": 1, "publish": 1}, engines=2, staleness=1.0),
    "holders": tiny(1, 2, {"tasks": 2, "wants": 1, "suspend": 2, "lose_engine": 1}, engines=2),
    "shrink_and_expand": tiny(1, 2, {"tasks": 2, "wants": 1, "shrink": 1, "publish": 1}, engines=2, staleness=1.0),
    "judged": tiny(1, 2, {"tasks": 4, "wants": 2, "reject": 2, "late": 1}, filter="external", max_filter_rounds=1),
    "tail": tiny(1, 2, {"tasks": 5, "wants": 2, "fail": 1}, tail=0.5, slots=3, env_retries=0),
    "rests": tiny(1, 2, {"tasks": 2, "wants": 1, "fail": 2, "tick": 4}, backoff_s=1.0, lease_s=8.0),
    "scores": tiny(1, 2, {"tasks": 3, "wants": 2, "score": 2, "lose": 1, "fail": 1}, reward_retries=0),
    "scores_in_time": tiny(1, 1, {"tasks": 1, "wants": 1, "score": 1, "suspend": 1, "tick": 3}, lease_s=8.0),
    "lost_consumer": tiny(1, 2, {"tasks": 3, "wants": 2, "lose_consumer": 1, "loaded": 1, "second": 1}),
    "lost_and_old": tiny(
        1, 1, {"tasks": 3, "wants": 2, "lose_consumer": 1, "loaded": 2}, staleness=1.0, on_stale="wait"
    ),
    "not_ahead": tiny(1, 2, {"tasks": 4, "wants": 2, "second": 1, "withdraw": 1, "lose_consumer": 1}, ahead=False),
    "held_and_behind": tiny(1, 2, {"tasks": 2, "wants": 1, "suspend": 1, "publish": 1}, engines=2, staleness=1.0),
    "new_epoch": tiny(1, 2, {"tasks": 3, "wants": 2, "over": 1, "open": 2}),
    "shutdown": tiny(2, 4, {"tasks": 3, "wants": 2, "shutdown": 1, "late": 1}),
}  # fmt: skip


def begin(world: Tiny) -> Moment:
    """The machine with its engines and one worker."""
    settings = Settings(train=world.train, **world.rest)  # type: ignore[arg-type]
    moment = Moment(Machine(settings), Book(settings), world.purse)
    for number in range(world.engines):
        take(moment, "", e.EngineJoined(f"e{number}", devices=(number,)))
        take(moment, "", e.EngineReady(f"e{number}"))
    take(moment, "", e.WorkerJoined("w0", world.slots))
    return moment


def take(moment: Moment, cost: str, event: e.AnyEvent) -> None:
    """One step, paid for and judged by the book."""
    due = moment.machine.next_deadline if isinstance(event, e.TimePassed) else None
    now = moment.book.now if due is None else due
    moment.book.saw(event, now, moment.machine.step(event, now))
    if cost:
        moment.purse[cost] -= 1


def explore(world: Tiny) -> int:
    """Visit every state once; how many there are."""
    seen: set[object] = set()
    queue: deque[State] = deque()
    visit(begin(world), seen, queue)
    while queue:
        state = queue.popleft()
        moment = thawed(state)
        options = [*possible(moment)]
        waiting = moment.book.waiting
        assert options or not waiting, f"nothing can happen and {waiting} wait: {moment.book.groups}"
        for number, (cost, event) in enumerate(options, start=1):
            following = moment if number == len(options) else thawed(state)
            take(following, cost, event)
            visit(following, seen, queue)
    return len(seen)


def visit(moment: Moment, seen: set[object], queue: deque[State]) -> None:
    """Check a state that was not seen before, and go on from there later."""
    snapshot = moment.machine.snapshot()
    # two moments are the same if nothing that can follow differs
    late = frozenset(moment.book.gone) if moment.purse.get("late") else frozenset()
    key = (snapshot, late, *moment.purse.values())
    if key in seen:
        return
    seen.add(key)
    moment.machine.check()
    queue.append(moment.frozen(snapshot))


def possible(moment: Moment) -> Iterator[tuple[str, e.AnyEvent]]:
    """Everything that can happen next, with the name of what it costs; what mends is free."""
    book, purse, deadline = moment.book, moment.purse, moment.machine.next_deadline
    for cost, event in misfortunes(book):
        if purse.get(cost):
            yield cost, event
    if purse.get("tick") and deadline is not None:
        yield "tick", e.TimePassed()
    elif deadline is not None and any(group.rests for group in book.groups.values()):
        yield "", e.TimePassed()
    yield from answers(book, purse)
    yield from repairs(book)


def answers(book: Book, purse: Purse) -> Iterator[tuple[str, e.AnyEvent]]:
    """Tasks that were asked for, episodes that end, batches that are wanted and trained on."""
    for play in book.running.values():
        yield "", e.AttemptEnded(play.id, Finished(float(play.seat), 1, play.version))
    lane = book.lanes["train"]
    if sum(lane.asked.values()):
        over = e.SourceEnded("train")
        yield ("tasks", e.TaskArrived("train", book.next_group)) if purse["tasks"] else ("", over)
    for group in book.groups.values():
        if group.state == "judging":
            yield "", e.GroupJudged(group.id, accepted=True)
    for number, batch in book.batches.items():
        yield "", e.BatchTrained(number)
        if purse.get("again"):
            yield "again", e.BatchWanted(batch.consumer, "train", lane.settings.batch_size, batch.step)
    for consumer, cost in (("trainer", "wants"), ("other", "second")):
        if purse.get(cost) and consumer not in book.waiting:
            yield cost, e.BatchWanted(consumer, "train", lane.settings.batch_size, purse_step(purse[cost]))


def purse_step(left: int) -> int:
    """A step that grows while the purse shrinks."""
    return 100 - left


def misfortunes(book: Book) -> Iterator[tuple[str, e.AnyEvent]]:
    """Whatever costs something."""
    for attempt, play in book.running.items():
        yield "fail", e.AttemptEnded(attempt, Failed("reward" if play.scoring else "env", "it broke"))
        yield "score", e.EpisodeEnded(attempt, 1, play.version)
    for attempt in book.gone:
        yield "late", e.AttemptEnded(attempt, Finished(1.0, 1, book.version))
    for worker in book.workers:
        yield "lose", e.WorkerLost(worker)
        yield "leave", e.WorkerLeft(worker)
    for group in book.groups.values():
        if group.state == "judging":
            yield "reject", e.GroupJudged(group.id, accepted=False)
    if book.waiting:
        yield "withdraw", e.WantWithdrawn("trainer")
    yield "publish", e.VersionPublished(book.version + 1)
    yield "loaded", e.VersionPublished(book.version + 1, loaded=True)
    yield "shutdown", e.ShutdownWanted()
    yield "lose_consumer", e.ConsumerLost("trainer")
    yield ("open", e.SourceOpened("train")) if book.lanes["train"].ended else ("over", e.SourceEnded("train"))
    yield from engine_misfortunes(book)


def engine_misfortunes(book: Book) -> Iterator[tuple[str, e.AnyEvent]]:
    for name in book.engines:
        yield "lose_engine", e.EngineLost(name)
    yield "suspend", e.SuspendWanted("saver", "drain")
    yield "suspend", e.SuspendWanted("user", "interrupt", tuple(book.engines)[:1])
    staying = [name for name, engine in book.engines.items() if engine.state in ("serving", "warming")]
    serving = [name for name in staying if book.engines[name].state == "serving"]
    for name in staying if len(serving) > 1 else ():
        yield "shrink", e.ShrinkWanted(book.engines[name].devices)


def repairs(book: Book) -> Iterator[tuple[str, e.AnyEvent]]:
    """What the world owes: workers and engines come back, load and resume."""
    if not book.workers and not book.closed:
        yield "", e.WorkerJoined("w0", 2)
    for number in range(2):
        if f"e{number}" not in book.engines and number < max(1, len(book.engines)):
            yield "", e.EngineJoined(f"e{number}", devices=(number,))
    for holder in {holder for engine in book.engines.values() for holder in engine.holds} | {*book.holds}:
        yield "", e.ResumeWanted(holder)
    for name, engine in book.engines.items():
        if engine.state in ("warming", "restoring"):
            yield "", e.EngineReady(name)
        elif engine.state in ("leaving", "away"):
            yield "", e.ExpandWanted(engine.devices)
        elif engine.version < book.version:
            yield "", e.WeightsLoaded(name, book.version)


@pytest.mark.parametrize("name", WORLDS)
def test_every_interleaving(name: str):
    states = explore(WORLDS[name])
    assert states > 100, "the world is too small to show anything"
