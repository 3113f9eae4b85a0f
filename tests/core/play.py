"""A player: the outside world of a machine, as unruly as it may legally be.

Promises: every event that it plays could have happened, given the commands so far; answers come late, twice and out
of order; workers and engines die and come back under their old names. Whatever must be refused is played too, and
must be refused. Same seed, same events. `Book` judges every step; nothing here looks inside the machine.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tests.core.book import ALL, Book, Engine, Play

from windrow.core import events as e
from windrow.core.commands import AnyCommand, DeliverBatch, EndBatches, RefuseBatch
from windrow.core.machine import Machine
from windrow.core.settings import Settings
from windrow.errors import IllegalEvent, Refused
from windrow.types import MODES, AttemptId, Blame, Failed, Finished, How, Mode

T = TypeVar("T")

HOLDERS = ("saver", "syncer", "user")
HOWS: tuple[How, ...] = ("interrupt", "drain", "freeze")
BLAMES: tuple[Blame, ...] = ("env", "reward", "engine", "worker", "task")
TICKS = (0.0, 0.0, 0.125, 0.25, 1.0)
FAIR_EVENTS = 4000
"""A fair world serves any batch of these small settings within so many events."""

WEIGHTS: dict[str, float] = {
    "arrive": 20, "finish": 26, "episode": 8, "fail": 3, "progress": 12, "judge": 6, "late": 4,
    "worker_join": 2, "worker_leave": 0.4, "worker_lose": 0.5, "beat": 2,
    "engine_join": 2, "engine_ready": 4, "engine_lose": 0.4, "engine_load": 5, "engine_release": 1, "assign": 0.3,
    "suspend": 0.6, "resume": 1.2, "shrink": 0.5, "expand": 1.0,
    "want": 5, "withdraw": 0.3, "train": 4, "publish": 1.5, "consumer_lose": 0.2,
    "time": 4, "reset": 0.7, "pardon": 0.3, "illegal": 0.3, "end_source": 0.0, "open_source": 0.3,
}  # fmt: skip
"""How often each thing is tried."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a world behaves."""

    weights: dict[str, float] = field(default_factory=dict)
    """Where they differ from the usual."""
    consumers: dict[str, Mode] = field(default_factory=lambda: {"trainer": "train"})
    kinds: tuple[str, ...] = ("",)
    workers: int = 3
    slots: int = 3
    engines: int = 3
    tasks: int = 6
    """How many names there are for tasks that come again."""
    blames: tuple[Blame, ...] = BLAMES
    """Whose fault failures are."""
    fair: bool = False
    """One version per batch, and no batch but the usual: then a hard bound drops nothing."""


class Player:
    """One machine, its book, and the world around them."""

    def __init__(self, settings: Settings, habits: Habits, seed: int | str) -> None:
        self.settings = settings
        self.habits = habits
        self.rng = Random(seed)
        self.machine = Machine(settings)
        self.book = Book(settings)
        self.now = 0.0
        self.journal: list[tuple[float, e.AnyEvent]] | None = None
        self.steps = dict.fromkeys(habits.consumers, 0)
        self.ordinals = dict.fromkeys(MODES, 0)
        self.trained: list[int] = []
        weights = {**WEIGHTS, **habits.weights}
        self.menu: list[Callable[[], e.AnyEvent | None]] = [self._bound(name) for name in weights]
        total = 0.0
        self.cumulative = [total := total + weight for weight in weights.values()]

    def _bound(self, name: str) -> Callable[[], e.AnyEvent | None]:
        method = Player.__dict__[f"_{name}"]
        return lambda: method(self)

    # playing

    def play(self, events: int, check_every: int) -> None:
        """Play so many events; the machine checks itself at every so many of them."""
        machine, book = self.machine, self.book
        for count in range(1, events + 1):
            self.step(self.next_event())
            if count % check_every == 0:
                machine.check()
                book.compare(machine)
                self._reasons()

    def step(self, event: e.AnyEvent) -> list[AnyCommand]:
        """One event; refused if and only if the book says so."""
        refusal = self.must_refuse(event)
        try:
            commands = self.machine.step(event, self.now)
        except Refused:
            assert refusal, f"{event} was refused and need not be"
            return []
        assert not refusal, f"{event} was not refused"
        if self.journal is not None:
            self.journal.append((self.now, event))
        self.book.saw(event, self.now, commands)
        return commands

    def next_event(self) -> e.AnyEvent:
        """Something that can happen now, at a time not before now."""
        rng = self.rng
        self.now += self.pick(TICKS)
        total = self.cumulative[-1]
        while True:
            event = self.menu[bisect(self.cumulative, rng.random() * total)]()
            if event is not None:
                return event

    def pick(self, options: Sequence[T]) -> T:
        """One of them, any of them."""
        return options[int(self.rng.random() * len(options))]

    def _reasons(self) -> None:
        """Whoever waits is told why, and nobody else."""
        for consumer in self.habits.consumers:
            waits = consumer in self.book.waiting
            assert bool(self.machine.why_waiting(consumer)) == waits, f"why does {consumer} wait?"

    def must_refuse(self, event: e.AnyEvent) -> bool:
        """A request that would break a promise."""
        match event:
            case e.ShrinkWanted(devices=devices):
                return self._unknown(devices) or self._leaves_none(devices)
            case e.ExpandWanted(devices=devices):
                return self._unknown(devices) or self._lacks_devices(devices)
            case e.BatchWanted():
                return self._impossible(event)
            case _:
                return False

    def _unknown(self, devices: tuple[int, ...]) -> bool:
        known = {device for engine in self.book.engines.values() for device in engine.devices} | self.book.vacated
        return not devices or not known.issuperset(devices)

    def _leaves_none(self, devices: tuple[int, ...]) -> bool:
        engines = self.book.engines
        going = {name for name, x in self.book.on_devices(devices) if x.state not in ("leaving", "away")}
        for mode in MODES:
            able = {name for name, x in engines.items() if x.mode in (None, mode)}
            serving = {name for name in able if engines[name].state == "serving"}
            there = serving or {name for name in able if engines[name].state not in ("leaving", "away")}
            if going and there and going >= there:
                return True
        return False

    def _lacks_devices(self, devices: tuple[int, ...]) -> bool:
        coming = [x for _, x in self.book.on_devices(devices) if x.state in ("leaving", "away")]
        return any(not {*devices}.issuperset(engine.devices) for engine in coming)

    def _impossible(self, event: e.BatchWanted) -> bool:
        lane = self.book.lanes[event.mode]
        for batch in self.book.batches.values():
            same = (batch.consumer, batch.mode, batch.step) == (event.consumer, event.mode, event.step)
            if same and self.book.wanted[batch.batch] != event.n:
                return True
        if event.n == ALL:
            return bool(lane.limit)
        return event.n <= 0 or event.n % lane.size > 0

    # tasks and attempts

    def _arrive(self) -> e.AnyEvent | None:
        rng = self.rng
        asked = [(m, tag) for m, x in self.book.lanes.items() for tag, count in x.asked.items() if count]
        if not asked:
            return None
        mode, tag = self.pick(asked)
        self.ordinals[mode] += 1
        task = f"t{rng.randrange(self.habits.tasks)}" if rng.random() < 0.3 else ""
        return e.TaskArrived(mode, self.ordinals[mode], tag, self.pick(self.habits.kinds), task)

    def _end_source(self) -> e.AnyEvent | None:
        mode = self.pick(MODES)
        return e.SourceEnded(mode, self.pick([*self.book.lanes[mode].settings.shares]))

    def _open_source(self) -> e.AnyEvent | None:
        """A source that has ended has tasks again; now and then one that has not ended."""
        ended = [(mode, tag) for mode, lane in self.book.lanes.items() for tag in sorted(lane.ended)]
        if ended and self.rng.random() < 0.9:
            return e.SourceOpened(*self.pick(ended))
        mode = self.pick(MODES)
        return e.SourceOpened(mode, self.pick([*self.book.lanes[mode].settings.shares]))

    def _some_play(self) -> Play | None:
        running = self.book.running
        if not running:
            return None
        return self.pick([*running.values()])

    def _finish(self) -> e.AnyEvent | None:
        play = self._some_play()
        return None if play is None else e.AttemptEnded(play.id, self._finished(play))

    def _episode(self) -> e.AnyEvent | None:
        play = self._some_play()
        if play is None or play.scoring:
            return None
        return e.EpisodeEnded(play.id, play.tokens + self.rng.randrange(40), self._first_token(play))

    def _finished(self, play: Play) -> Finished:
        rng = self.rng
        return Finished(float(rng.randrange(2)), rng.randrange(1, 200), self._first_token(play))

    def _fail(self) -> e.AnyEvent | None:
        play = self._some_play()
        if play is None:
            return None
        return e.AttemptEnded(play.id, Failed(self.pick(self.habits.blames), "it broke", self.rng.randrange(50)))

    def _progress(self) -> e.AnyEvent | None:
        play = self._some_play()
        if play is None:
            return None
        return e.AttemptProgressed(play.id, play.tokens + self.rng.randrange(40), self._first_token(play))

    def _first_token(self, play: Play) -> int:
        """Which version its first token is of; -1 if it has none yet."""
        engine = self.book.engines.get(play.engine)
        if play.first >= 0 or engine is None or play.scoring or self.rng.random() < 0.1:
            return play.first
        if self.book.groups[play.id.group].mode == "val":
            return engine.version
        return self.rng.randint(play.granted, max(play.granted, engine.version))

    def _late(self) -> e.AnyEvent | None:
        """An answer for something forgotten, or an answer given twice."""
        rng, book = self.rng, self.book
        what = rng.randrange(9)
        if what == 8:
            scoring = [play.id for play in book.running.values() if play.scoring]
            options = scoring or [*book.gone]
            return e.EpisodeEnded(self.pick(options), rng.randrange(99)) if options else None
        if what < 4 and book.gone:
            attempt = self.pick(book.gone)
            if what == 0:
                return e.AttemptProgressed(attempt, rng.randrange(99), rng.randint(-1, book.version))
            if what == 1:
                return e.AttemptEnded(attempt, Failed(self.pick(BLAMES), "late"))
            return e.AttemptEnded(attempt, Finished(1.0, 10, rng.randint(-1, book.version)))
        if what == 4 and book.next_group:
            number = rng.randrange(max(0, book.next_group - 20), book.next_group)
            judged = number in book.groups and book.groups[number].state == "judging"
            return None if judged else e.GroupJudged(number, rng.random() < 0.5)
        if what == 5 and self.trained:
            return e.BatchTrained(self.pick(self.trained))
        return self._late_engine(f"e{rng.randrange(self.habits.engines)}")

    def _late_engine(self, name: str) -> e.AnyEvent | None:
        known = name in self.book.engines
        state = self.book.engines[name].state if known else ""
        if self.rng.random() < 0.5:
            return None if state in ("warming", "restoring") else e.EngineReady(name)
        if self.rng.random() < 0.5:
            return None if state == "leaving" else e.EngineReleased(name)
        return None if known else e.EngineLost(name)

    def _judge(self) -> e.AnyEvent | None:
        due = [group.id for group in self.book.groups.values() if group.state == "judging"]
        if not due:
            return None
        return e.GroupJudged(self.pick(due), self.rng.random() < 0.6, "as it is")

    # workers

    def _worker_join(self) -> e.AnyEvent | None:
        rng, habits = self.rng, self.habits
        name = f"w{rng.randrange(habits.workers)}"
        if name in self.book.workers:
            return None
        kinds = tuple(rng.sample(habits.kinds, rng.randint(1, len(habits.kinds))))
        return e.WorkerJoined(name, rng.randint(1, habits.slots), kinds)

    def _some_worker(self) -> str:
        return f"w{self.rng.randrange(self.habits.workers)}"

    def _worker_leave(self) -> e.AnyEvent | None:
        return e.WorkerLeft(self._some_worker())

    def _worker_lose(self) -> e.AnyEvent | None:
        return e.WorkerLost(self._some_worker(), "it fell over")

    def _beat(self) -> e.AnyEvent | None:
        return e.WorkerBeat(self._some_worker())

    # engines

    def _engine_join(self) -> e.AnyEvent | None:
        rng = self.rng
        number = rng.randrange(self.habits.engines)
        if f"e{number}" in self.book.engines:
            return None
        version = self.book.version if rng.random() < 0.5 else rng.randint(0, self.book.version)
        return e.EngineJoined(f"e{number}", version, rng.randint(1, 3), (2 * number, 2 * number + 1))

    def _engines_in(self, *states: str) -> list[str]:
        return [name for name, engine in self.book.engines.items() if engine.state in states]

    def _engine_ready(self) -> e.AnyEvent | None:
        names = self._engines_in("warming", "restoring")
        return e.EngineReady(self.pick(names)) if names else None

    def _engine_lose(self) -> e.AnyEvent | None:
        return e.EngineLost(f"e{self.rng.randrange(self.habits.engines)}", "it fell over")

    def _engine_load(self) -> e.AnyEvent | None:
        """An engine confirms its weights, sometimes those of a while ago."""
        rng, book = self.rng, self.book
        behind = [name for name, engine in book.engines.items() if engine.version < book.version]
        if not behind:
            return None
        late = rng.random() < 0.15
        return e.WeightsLoaded(self.pick(behind), rng.randint(0, book.version) if late else book.version)

    def _engine_release(self) -> e.AnyEvent | None:
        names = self._engines_in("leaving")
        return e.EngineReleased(self.pick(names)) if names else None

    def _assign(self) -> e.AnyEvent | None:
        if not self.book.engines or "val" not in self.habits.consumers.values():
            return None
        name = self.pick([*self.book.engines])
        return e.EngineAssigned(name, self.pick((None, None, "train", "val")))

    def _suspend(self) -> e.AnyEvent | None:
        rng = self.rng
        engines = [*self.book.engines]
        some = tuple(rng.sample(engines, rng.randint(0, len(engines)))) if rng.random() < 0.5 else ()
        return e.SuspendWanted(self.pick(HOLDERS), self.pick(HOWS), some)

    def _resume(self) -> e.AnyEvent | None:
        return e.ResumeWanted(self.pick(HOLDERS))

    def _some_devices(self) -> tuple[int, ...]:
        count = 2 * self.habits.engines
        if self.rng.random() < 0.5:
            number = self.rng.randrange(self.habits.engines)
            return (2 * number, 2 * number + 1)
        return tuple(self.rng.sample(range(count), self.rng.randint(0, min(count, 4))))

    def _shrink(self) -> e.AnyEvent | None:
        return e.ShrinkWanted(self._some_devices())

    def _expand(self) -> e.AnyEvent | None:
        return e.ExpandWanted(self._some_devices(), self.rng.random() < 0.3)

    # versions and batches

    def _publish(self) -> e.AnyEvent | None:
        if self.habits.fair and self.book.delivered_at < self.book.version:
            return None
        # the same version may be announced twice
        new = self.habits.fair or self.rng.random() < 0.9
        return e.VersionPublished(self.book.version + new, self.rng.random() < 0.3)

    def _want(self) -> e.AnyEvent | None:
        rng, book = self.rng, self.book
        consumer, mode = self.pick([*self.habits.consumers.items()])
        if consumer in book.waiting:
            return None
        pending = [batch for batch in book.batches.values() if batch.consumer == consumer]
        if self.habits.fair:
            if self.book.delivered_at == self.book.version:
                return None
            return self._ask(consumer, mode, self.settings.of(mode).batch_size)
        if pending and rng.random() < 0.3:
            batch = self.pick(pending)
            n = book.wanted[batch.batch] if rng.random() < 0.8 else self._some_size(mode)
            return e.BatchWanted(consumer, mode, n, batch.step)
        return self._ask(consumer, mode, self._some_size(mode))

    def _ask(self, consumer: str, mode: Mode, n: int) -> e.BatchWanted:
        self.steps[consumer] += 1
        return e.BatchWanted(consumer, mode, n, self.steps[consumer])

    def _some_size(self, mode: Mode) -> int:
        rng, settings = self.rng, self.settings.of(mode)
        luck = rng.random()
        if luck < 0.7:
            return settings.batch_size
        if luck < 0.75:
            return self.pick((ALL, 0, -2, settings.group_size + 1))
        return settings.group_size * rng.randint(1, settings.batch_groups + 1)

    def _withdraw(self) -> e.AnyEvent | None:
        consumer = self.pick([*self.habits.consumers])
        return e.WantWithdrawn(consumer)

    def _consumer_lose(self) -> e.AnyEvent | None:
        if self.habits.fair:
            return None
        consumer = self.pick([*self.habits.consumers])
        self.trained += [batch.batch for batch in self.book.batches.values() if batch.consumer == consumer]
        del self.trained[:-9]
        return e.ConsumerLost(consumer)

    def _train(self) -> e.AnyEvent | None:
        if not self.book.batches:
            return None
        batch = self.pick([*self.book.batches.values()])
        self.trained.append(batch.batch)
        del self.trained[:-9]
        return e.BatchTrained(batch.batch)

    # the rest

    def _time(self) -> e.AnyEvent | None:
        due = self.machine.next_deadline
        if due is not None and self.rng.random() < 0.5:
            self.now = max(self.now, due)
        return e.TimePassed()

    def _reset(self) -> e.AnyEvent | None:
        return e.BreakerReset() if self.book.halted else None

    def _pardon(self) -> e.AnyEvent | None:
        return e.TaskPardoned(f"t{self.rng.randrange(self.habits.tasks)}")

    def _illegal(self) -> e.AnyEvent | None:
        """Something that cannot have happened: it raises, and the walk goes on as if it had not been said."""
        event = self.pick(self.impossible_events())
        try:
            self.machine.step(event, self.now)
        except IllegalEvent:
            return None
        raise AssertionError(f"{event} was taken in")

    def impossible_events(self) -> list[e.AnyEvent]:
        """Events that cannot have happened."""
        book = self.book
        events: list[e.AnyEvent] = [
            e.TaskArrived("train", 0, "no such tag"),
            e.SourceEnded("train", "no such tag"),
            e.SourceOpened("val", "no such tag"),
            e.EpisodeEnded(AttemptId(book.next_group, 0), 1),
            e.AttemptEnded(AttemptId(book.next_group, 0), Finished(1.0, 1, 0)),
            e.AttemptProgressed(AttemptId(-1, 0), 1),
            e.GroupJudged(book.next_group, accepted=True),
            e.BatchTrained(book.next_batch),
            e.WorkerJoined("nobody", 0),
            e.WorkerJoined("nobody", 1, ()),
            e.EngineJoined("nobody", 0, 0),
            e.EngineAssigned("nobody", "val"),
            e.SuspendWanted("user", "drain", ("nobody",)),
        ]
        events += [e.WorkerJoined(name, 1) for name in book.workers]
        events += [e.EngineJoined(name) for name in book.engines]
        events += [e.TaskArrived("train", 0, tag) for tag in [*book.lanes["train"].ended]]
        events += [e.VersionPublished(book.version - 1)] if book.version else []
        return events

    # a fair world, in which everything that is wanted must come

    def be_fair(self) -> None:
        """Let everybody go, mend everything, open every source, bring one worker for everything."""
        for holder in HOLDERS:
            self.step(e.ResumeWanted(holder))
        self.step(e.BreakerReset())
        for mode, lane in self.book.lanes.items():
            for tag in sorted(lane.ended):
                self.step(e.SourceOpened(mode, tag))
        if not self.book.engines:
            self.step(e.EngineJoined("e0", self.book.version, 1, (0, 1)))
        for name, engine in [*self.book.engines.items()]:
            self._mend(name, engine)
        name = next(name for name in ("w0", "rescue") if name not in self.book.workers)
        self.step(e.WorkerJoined(name, self.habits.slots, self.habits.kinds))

    def _mend(self, name: str, engine: Engine) -> None:
        if engine.state in ("leaving", "away"):
            self.step(e.ExpandWanted(engine.devices))
        if engine.state in ("warming", "restoring"):
            self.step(e.EngineReady(name))
        if engine.mode is not None:
            self.step(e.EngineAssigned(name, None))
        if engine.version < self.book.version:
            self.step(e.WeightsLoaded(name, self.book.version))

    def get_batch(self, consumer: str, n: int) -> DeliverBatch | RefuseBatch | EndBatches:
        """What a fair world leads to: an answer; anything else is a stall."""
        mode = self.habits.consumers[consumer]
        self.step(e.WantWithdrawn(consumer))
        for batch in [*self.book.batches.values()]:
            self.step(e.BatchTrained(batch.batch))
        commands = self.step(self._ask(consumer, mode, n))
        for _ in range(FAIR_EVENTS):
            for command in commands:
                if isinstance(command, DeliverBatch | RefuseBatch | EndBatches) and command.consumer == consumer:
                    return command
            commands = self.step(self._fair_event(consumer))
        raise AssertionError(f"no batch after {FAIR_EVENTS} events: {self.machine.why_waiting(consumer)}")

    def _fair_event(self, consumer: str) -> e.AnyEvent:
        """Some answer that is due; time passes only when none is."""
        running = self._some_play()
        others = [batch.batch for batch in self.book.batches.values()]
        if others:
            return e.BatchTrained(others[0])
        options = [self._arrive(), self._accept()]
        if running is not None:
            score = self.rng.random()
            options.append(e.AttemptEnded(running.id, Finished(score, 10, self._first_token(running))))
        possible = [option for option in options if option is not None]
        if possible:
            return self.pick(possible)
        due = self.machine.next_deadline
        assert due is not None, f"silent stall: {self.machine.why_waiting(consumer)}"
        self.now = max(self.now, due)
        for worker in self.book.workers:
            self.step(e.WorkerBeat(worker))
        return e.TimePassed()

    def _accept(self) -> e.AnyEvent | None:
        due = [group.id for group in self.book.groups.values() if group.state == "judging"]
        return e.GroupJudged(due[0], accepted=True) if due else None
