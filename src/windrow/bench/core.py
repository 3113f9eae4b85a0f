"""How fast the scheduling core decides.

Events are recorded once from simulated runs (turn by turn: grants, turns, ends, tasks, batches, versions) and then fed
to a fresh machine. Timed is the second half of each recording, when all slots are taken; nothing but `step` is inside.
"""

import gc
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from windrow.bench import Result, Say, alternate, compared, cpu_s
from windrow.core.engines import Engine, EngineBook
from windrow.core.events import AnyEvent
from windrow.core.journal import header, line, replay
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.sim.config import Engines, SimConfig, Trainer, TurnEpisodes
from windrow.sim.distributions import Constant, Lognormal
from windrow.sim.rivals import FixedQueues
from windrow.sim.scheduler import Scheduler
from windrow.sim.world import World
from windrow.types import Value

WHAT = "the pure scheduling core: events per second, growth with size, journal, snapshot, choice of engine"
SCALES = (100, 1_000, 10_000, 100_000)
EVENTS = 100_000
"""Events timed per round."""
ROUNDS = 5
TURNS = 4
ENGINES = 10_000


class Enough(Exception):
    """A recording is long enough."""


class Recording(Value, frozen=True):
    """Events of one simulated run."""

    settings: Settings
    events: list[tuple[AnyEvent, float]]
    timed: int
    """How many of the last ones are timed."""


def run(say: Say) -> list[Result]:
    """Measure everything."""
    say(f"recording simulated runs with up to {SCALES[-1]:,} concurrent attempts")
    by_scale = {slots: record(slots, TURNS) for slots in SCALES}
    single = record(1_000, 1)
    queues = record(512, 1, batch=512)
    gc.collect()
    gc.freeze()  # the recordings are not the machine's garbage
    try:
        say(f"timing {EVENTS:,} events {ROUNDS} times each, in turns")
        results = _speed(by_scale[1_000], single)
        results += _growth(by_scale)
        results += _rival(queues)
        results += [_restoring(by_scale[1_000]), _choosing()]
    finally:
        gc.unfreeze()
    return results


def record(slots: int, turns: int, *, batch: int | None = None) -> Recording:
    """Let the simulator play until enough events happened after all slots were taken."""
    events: list[tuple[AnyEvent, float]] = []
    enough = slots * (2 + turns) + EVENTS

    def note(now: float, event: AnyEvent) -> None:
        events.append((event, now))
        if len(events) >= enough:
            raise Enough

    config = _workload(slots, turns, batch or 4 * slots)
    with suppress(Enough):
        World(config, Machine(config.machine), record=note).run()
    return Recording(config.machine, events, min(EVENTS, len(events) // 2))


def _workload(slots: int, turns: int, batch: int) -> SimConfig:
    """Episodes of some turns with a long tail; ten attempts per engine, a hundred slots per worker."""
    size = 8
    train = ModeSettings(group_size=size, batch_size=batch // size * size, staleness=1.0, on_stale="keep")
    return SimConfig(
        steps=1_000_000,
        slots=slots,
        workers=max(1, slots // 100),
        engines=Engines(count=max(1, slots // 10), capacity=10),
        episode=TurnEpisodes(
            turns=Constant(value=float(turns)),
            tokens_per_turn=Lognormal(median=100.0, sigma=0.8),
            prompt_tokens=Constant(value=100.0),
            step_s=Constant(value=0.5),
        ),
        trainer=Trainer(time_s=Constant(value=5.0)),
        machine=Settings(train=train),
    )


def play(recording: Recording, scheduler: Scheduler) -> float:
    """CPU seconds for the timed part."""
    step = scheduler.step
    cut = len(recording.events) - recording.timed
    for event, now in recording.events[:cut]:
        step(event, now)
    rest = recording.events[cut:]
    return cpu_s(lambda: _step_all(scheduler, rest))


def _step_all(scheduler: Scheduler, events: Sequence[tuple[AnyEvent, float]]) -> None:
    step = scheduler.step
    for event, now in events:
        step(event, now)


def _play_alone(recording: Recording) -> float:
    return play(recording, Machine(recording.settings))


def _play_with_journal(recording: Recording) -> float:
    """The same, with every event written to a file before its commands are used."""
    with tempfile.TemporaryFile() as file:
        machine = Machine(recording.settings)
        file.write(header(recording.settings) + b"\n")

        class Journalled:
            next_deadline = None

            def step(self, event: AnyEvent, now: float) -> list:  # type: ignore[type-arg]  # what the machine gives
                commands = machine.step(event, now)
                file.write(line(now, event) + b"\n")
                return commands

        return play(recording, Journalled())


def _speed(many_turns: Recording, single: Recording) -> list[Result]:
    results = []
    for name, recording in ((f"{TURNS} turns", many_turns), ("1 turn", single)):
        alone, journalled = alternate(ROUNDS, partial(_play_alone, recording), partial(_play_with_journal, recording))
        what = f"machine alone, 1,000 concurrent episodes of {name} (alternative: with the journal written)"
        results.append(compared(what, recording.timed / alone, recording.timed / journalled, "events/s"))
    return results


def _growth(by_scale: dict[int, Recording]) -> list[Result]:
    """Cost per event against the smallest scale."""
    works = [partial(_play_alone, recording) for recording in by_scale.values()]
    times = alternate(ROUNDS, *works)
    costs = {
        slots: 1e6 * taken / recording.timed for (slots, recording), taken in zip(by_scale.items(), times, strict=True)
    }
    small = SCALES[0]
    return [
        compared(
            f"cost per event at {slots:,} concurrent attempts (alternative: at {small})",
            costs[slots],
            costs[small],
            "us",
        )
        for slots in SCALES[1:]
    ]


def _rival(recording: Recording) -> list[Result]:
    """Finished attempts per second through the machine and through fixed queues."""
    ours, theirs = alternate(
        ROUNDS,
        lambda: _rate(Machine(recording.settings), recording),
        lambda: _rate(FixedQueues(recording.settings), recording),
    )
    what = "trajectories through the machine, groups of 8 (alternative: fixed queues, without leases, loads and ledger)"
    return [compared(what, ours, theirs, "1/s")]


def _rate(scheduler: Scheduler, recording: Recording) -> float:
    """Trajectories per CPU second of a scheduler that plays one-turn episodes which end at once, in turn."""
    from windrow.bench.treadmill import tread

    return tread(scheduler, recording.settings, EVENTS // 2)


def _restoring(recording: Recording) -> Result:
    """The state of a machine from its snapshot, and from its journal."""
    machine = Machine(recording.settings)
    _step_all(machine, recording.events)
    snapshot = machine.snapshot()
    lines = [header(recording.settings), *(line(now, event) for event, now in recording.events)]
    restored, replayed = alternate(
        3, lambda: cpu_s(lambda: Machine.restore(snapshot)), lambda: cpu_s(lambda: replay(lines))
    )
    what = f"state from a snapshot (alternative: by replaying {len(recording.events):,} journal lines)"
    return compared(what, restored, replayed, "s")


def _choosing() -> Result:
    """An engine for one more attempt."""
    book = EngineBook()
    for number in range(ENGINES):
        engine = Engine(f"e{number}", number, 10, (), 0, state="serving")
        book.table[engine.id] = engine
        engine.weigh(float(number % 97))
        book.post(engine)
    ours, scan = alternate(3, lambda: cpu_s(lambda: _choose(book, 1_000)), lambda: 100 * cpu_s(lambda: _scan(book, 10)))
    what = f"choice among {ENGINES:,} engines, booked (alternative: a look at every engine)"
    return compared(what, 1e6 * ours / 1_000, 1e6 * scan / 1_000, "us")


def _choose(book: EngineBook, times: int) -> None:
    for _ in range(times):
        engine = book.choose("train", "")
        if engine is not None:
            engine.weigh(engine.work + 1.0)


def _scan(book: EngineBook, times: int) -> None:
    for _ in range(times):
        engine = min(book.table.values(), key=lambda candidate: (candidate.load, candidate.joined))
        engine.weigh(engine.work + 1.0)
