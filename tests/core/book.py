"""What an outsider knows of a machine: a second set of books, kept from events and commands alone.

Promises: it never looks inside the machine. From the event it foretells what must follow and what may; every command
must have been foretold or be allowed, and nothing foretold may be missing when the step is over. What cannot be seen
from outside (is a slot idle beside work that could use it?) is left to `machine.check()`.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil, floor, isclose
from typing import Any, Literal

from windrow.core import commands as c
from windrow.core import events as e
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.types import CAUSE_OF, MODES, AttemptId, Blame, Failed, How, Mode, Outcome, Reason

ALL = -1
POISONOUS = ("env", "reward", "task")
LONGEST_REST_S = 300.0
SICK = 3
"""Failures in a row by which an engine is sick."""
OVERLOAD = 2
"""How many times its share an engine may have while others take new weights."""


def tally() -> defaultdict[Any, int]:
    """Counts by whatever there is."""
    return defaultdict(int)


@dataclass(slots=True)
class Play:
    """An attempt that plays, or was played and waits for its score."""

    id: AttemptId
    seat: int
    worker: str
    engine: str
    granted: int
    """The version under which it was granted."""
    granted_at: float
    first: int = -1
    """Version of its first token; -1 before there is one."""
    tokens: int = 0
    seconds: float = -1.0
    """How long it was played; negative while it plays."""

    @property
    def scoring(self) -> bool:
        return self.seconds >= 0

    @property
    def version(self) -> int:
        return self.granted if self.first < 0 else self.first


@dataclass(slots=True)
class Result:
    """An attempt that has finished."""

    seat: int
    version: int
    score: float
    tokens: int
    seconds: float


@dataclass(slots=True)
class Group:
    """One task and its attempts."""

    id: int
    mode: Mode
    ordinal: int
    tag: str
    kind: str
    task: str
    state: Literal["open", "judging", "ready", "aside", "delivered"] = "open"
    used: set[int] = field(default_factory=set)
    """All and only the indices ever granted."""
    running: dict[int, Play] = field(default_factory=dict)
    finished: dict[int, Result] = field(default_factory=dict)
    rests: list[float] = field(default_factory=list)
    failures: defaultdict[Blame, int] = field(default_factory=tally)

    @property
    def version(self) -> int:
        """Its oldest; -1 if it has not begun."""
        return min((member.version for member in self.members()), default=-1)

    def members(self) -> "list[Play | Result]":
        """Attempts that play or have finished."""
        return [*self.running.values(), *self.finished.values()]

    def finished_ids(self) -> tuple[AttemptId, ...]:
        return tuple(AttemptId(self.id, index) for index in sorted(self.finished))


@dataclass(slots=True)
class Worker:
    """One worker."""

    slots: int
    kinds: tuple[str, ...]
    heard: float
    leaving: bool = False
    plays: set[AttemptId] = field(default_factory=set)


@dataclass(slots=True)
class Engine:
    """One engine."""

    version: int
    devices: tuple[int, ...]
    capacity: int = 1
    state: Literal["warming", "serving", "leaving", "away", "restoring"] = "warming"
    mode: Mode | None = None
    holds: dict[str, How] = field(default_factory=dict)
    quiet: How | None = None
    """How it was last told to be quiet; None if it generates."""
    fresh: bool = True
    """It has not had current weights since it joined or came back."""
    strikes: int = 0
    """Failures in a row."""
    plays: set[AttemptId] = field(default_factory=set)


@dataclass(slots=True)
class Waste:
    """Work that no batch used."""

    attempts: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Count:
    """One account."""

    admitted: int = 0
    trained: int = 0
    delivered: int = 0
    dropped: defaultdict[Reason, int] = field(default_factory=tally)

    @property
    def alive(self) -> int:
        return self.admitted - self.trained - self.delivered - sum(self.dropped.values())


@dataclass(slots=True)
class Lane:
    """One mode."""

    settings: ModeSettings
    largest: int
    """Groups in the largest batch ever wanted."""
    asked: defaultdict[str, int] = field(default_factory=tally)
    ended: set[str] = field(default_factory=set)
    ready: dict[int, int] = field(default_factory=dict)
    """Version by group."""
    rejected: int = 0
    groups: Count = field(default_factory=Count)
    attempts: Count = field(default_factory=Count)
    waste: dict[str, Waste] = field(default_factory=dict)
    lags: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How many, their sum, the largest."""

    @property
    def size(self) -> int:
        return self.settings.group_size

    @property
    def limit(self) -> int | None:
        """The lag that no delivered group may have more of."""
        return None if self.settings.stale_policy == "keep" else floor(self.settings.staleness)

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.settings.shares)


class Book:
    """Everything an outsider knows."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = 0.0
        self.version = 0
        self.closed = self.halted = False
        self.late = 0
        self.events = 0
        self.lanes = {mode: Lane(settings.of(mode), settings.of(mode).batch_groups) for mode in MODES}
        self.groups: dict[int, Group] = {}
        self.next_group = 0
        self.running: dict[AttemptId, Play] = {}
        self.homeless: set[AttemptId] = set()
        self.kinds: defaultdict[str, int] = tally()
        self.leases: deque[tuple[float, AttemptId]] = deque()
        self.gone: deque[AttemptId] = deque(maxlen=64)  # attempts that ended or were cancelled lately
        self.workers: dict[str, Worker] = {}
        self.engines: dict[str, Engine] = {}
        self.vacated: set[int] = set()  # devices of engines that died
        self.holds: dict[str, How] = {}
        self.waiting: dict[str, e.BatchWanted] = {}
        self.batches: dict[int, c.DeliverBatch] = {}
        self.wanted: dict[int, int] = {}  # by batch: the `n` that was asked for
        self.next_batch = 0
        self.delivered_at = -1  # version at which training last got a batch
        self.recent: deque[bool] = deque(maxlen=settings.breaker_window)
        self.dead: set[str] = set()
        self._forget_expectations()

    def _forget_expectations(self) -> None:
        self.cancels: dict[AttemptId, Reason] = {}  # must come
        self.may_cancel: set[AttemptId] = set()  # may come, since two workers can die in one step
        self.drops: dict[int, Reason] = {}
        self.moves: set[AttemptId] = set()
        self.retires: set[int] = set()
        self.orders: set[tuple[str, str]] = set()  # (name of a command, engine)
        self.judges: set[int] = set()
        self.resets: set[int] = set()
        self.again: c.DeliverBatch | None = None
        self.halt_due = False

    def saw(self, event: e.AnyEvent, now: float, commands: list[c.AnyCommand]) -> None:
        """One step of the machine: foretell, compare, and see that nothing is missing."""
        self.now = now
        self.events += 1
        EVENTS[event.__class__](self, event)
        for command in commands:
            COMMANDS[command.__class__](self, command)
        self._nothing_missing(event)

    def _nothing_missing(self, event: e.AnyEvent) -> None:
        assert not self.cancels, f"not cancelled after {event}: {self.cancels}"
        assert not self.drops, f"not dropped after {event}: {self.drops}"
        assert not self.moves, f"not moved after {event}: {self.moves}"
        assert not self.retires, f"not retired after {event}: {self.retires}"
        assert not self.orders, f"not ordered after {event}: {self.orders}"
        assert not self.judges, f"not judged after {event}: {self.judges}"
        assert not self.resets, f"not reset after {event}: {self.resets}"
        assert self.again is None, f"not handed over again after {event}: {self.again}"
        assert not self.halt_due, f"so much fails that the run must halt, after {event}"
        if self.may_cancel:
            self.may_cancel.clear()
        for attempt in self.homeless:
            usable = self.usable(self.groups[attempt.group].mode)
            full = self._is_anyone_full(usable)
            assert full or not usable, f"{attempt} has no engine after {event}, and {usable} serve"
        if self.waiting:
            self._nobody_forgotten(event)

    def _nobody_forgotten(self, event: e.AnyEvent) -> None:
        assert not self.closed, f"{self.waiting} wait for a closed machine after {event}"
        assert not self.halted, f"{self.waiting} wait for a halted machine after {event}"
        for want in self.waiting.values():
            lane = self.lanes[want.mode]
            if want.n == ALL:
                continue
            free = lane.limit is None or lane.settings.stale_policy == "drop"
            enough = free and len(lane.ready) >= want.n // lane.size
            assert not enough, f"{len(lane.ready)} groups are ready and {want} waits after {event}"
            rounds = lane.settings.max_filter_rounds * (want.n // lane.size)
            exhausted = lane.rejected >= rounds and (free or not lane.ready)
            assert not exhausted, f"{lane.rejected} groups were rejected and {want} still waits after {event}"

    # what may be asked of it

    def usable(self, mode: Mode) -> list[str]:
        """Engines that new work of a mode may go to."""
        return [name for name, engine in self.engines.items() if self._is_usable(engine, mode)]

    def is_current(self, engine: Engine) -> bool:
        return engine.version >= self.version or engine.mode == "val"

    def _is_usable(self, engine: Engine, mode: Mode) -> bool:
        """It serves the mode, and has the weights or will have them when it generates again."""
        has_or_gets = self.is_current(engine) or (bool(engine.holds) and not engine.fresh)
        return engine.state == "serving" and engine.mode in (None, mode) and has_or_gets

    def _has_its_share(self, engine: Engine) -> bool:
        """While others take new weights, it has more than it should."""
        serving = [other for other in self.engines.values() if other.state == "serving"]
        if engine.holds or all(self.is_current(other) for other in serving):
            return False
        capacity = sum(other.capacity for other in serving)
        playing = sum(len(other.plays) for other in self.engines.values())
        return len(engine.plays) * capacity > OVERLOAD * (playing + capacity) * engine.capacity

    def _is_anyone_full(self, names: list[str]) -> bool:
        return any(self._has_its_share(self.engines[name]) for name in names)

    def in_play(self, mode: Mode) -> int:
        """Groups that are open, judged or ready."""
        states = ("open", "judging", "ready")
        return sum(1 for group in self.groups.values() if group.mode == mode and group.state in states)

    def untrained(self, mode: Mode) -> int:
        return sum(len(batch.groups) for batch in self.batches.values() if batch.mode == mode)

    def compare(self, machine: Machine) -> None:
        """The machine's ledgers say what this book says."""
        assert machine.late == self.late, f"late: {machine.late}, seen {self.late}"
        assert bool(machine.halted) == self.halted, f"halted: {machine.halted!r}, seen {self.halted}"
        assert machine.version == self.version
        for mode, lane in self.lanes.items():
            ledger = machine.ledgers[mode]
            for account, count in ((ledger.groups, lane.groups), (ledger.attempts, lane.attempts)):
                said = (account.admitted, account.trained, account.delivered, account.alive)
                seen = (count.admitted, count.trained, count.delivered, count.alive)
                assert said == seen, f"{mode}: {account}, seen {count}"
                assert account.dropped == count.dropped, f"{mode}: {account.dropped}, seen {count.dropped}"
            assert [ledger.lags, ledger.lag_sum, ledger.lag_max] == lane.lags, f"{mode} lags"
            _compare_waste(ledger.waste, lane.waste)
        alive = sum(1 for group in self.groups.values() if group.state != "delivered")
        assert alive == sum(lane.groups.alive for lane in self.lanes.values())
        attempts = sum(len(group.running) + len(group.finished) for group in self.groups.values())
        assert attempts == sum(lane.attempts.alive + lane.attempts.delivered for lane in self.lanes.values())

    # events: tasks, attempts, groups

    def task_arrived(self, event: e.TaskArrived) -> None:
        lane = self.lanes[event.mode]
        lane.asked[event.tag] -= 1
        lane.groups.admitted += 1
        group = Group(self.next_group, event.mode, event.ordinal, event.tag, event.kind, event.task)
        self.next_group += 1
        self.groups[group.id] = group
        if self.closed:
            self._drop(group, "shutdown")
        elif not lane.settings.ahead and not any(want.mode == event.mode for want in self.waiting.values()):
            self._drop(group, "cancelled")
        elif event.task and event.task in self.dead:
            self._note(failed=True)
            self._drop(group, "poisoned")

    def source_ended(self, event: e.SourceEnded) -> None:
        lane = self.lanes[event.mode]
        lane.asked[event.tag] = 0
        lane.ended.add(event.tag)

    def source_opened(self, event: e.SourceOpened) -> None:
        self.lanes[event.mode].ended.discard(event.tag)

    def attempt_progressed(self, event: e.AttemptProgressed) -> None:
        play = self.running.get(event.attempt)
        if play is None:
            self.late += 1
            return
        self._heard_of(play)
        play.tokens = max(play.tokens, event.tokens)
        if event.oldest_version >= 0:
            play.first = event.oldest_version

    def _heard_of(self, play: Play) -> None:
        if play.worker in self.workers:  # it may be gone before the score comes
            self.workers[play.worker].heard = self.now

    def episode_ended(self, event: e.EpisodeEnded) -> None:
        play = self.running.get(event.attempt)
        if play is None or play.scoring:
            self.late += 1
            return
        self._heard_of(play)
        play.tokens = max(play.tokens, event.tokens)
        if event.oldest_version >= 0:
            play.first = event.oldest_version
        self._leave(self.groups[event.attempt.group], play)
        play.seconds = self.now - play.granted_at

    def attempt_ended(self, event: e.AttemptEnded) -> None:
        play = self.running.get(event.attempt)
        if play is None:
            self.late += 1
            return
        self._heard_of(play)
        group = self.groups[event.attempt.group]
        outcome: Outcome = event.outcome
        engine = self.engines.get(play.engine)
        if isinstance(outcome, Failed):
            if engine is not None and outcome.blame == "engine":
                engine.strikes += 1
            play.tokens = max(play.tokens, outcome.tokens)
            self._note(failed=True)
            self._fail(group, play, outcome.blame, "failed")
            return
        if engine is not None:
            engine.strikes = 0
        self._vacate(group, play)
        if outcome.oldest_version >= 0:
            play.first = outcome.oldest_version
        result = Result(play.seat, play.version, outcome.score, max(play.tokens, outcome.tokens), self._seconds(play))
        group.finished[play.id.index] = result
        self._note(failed=False)
        if len(group.finished) == self.lanes[group.mode].size:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        lane = self.lanes[group.mode]
        for play in [*group.running.values()]:
            self._stop(group, play, "spare")
        group.rests.clear()
        if lane.settings.filter == "external":
            group.state = "judging"
            self.judges.add(group.id)
        elif lane.settings.filter == "varied" and len({r.score for r in group.finished.values()}) == 1:
            self._reject(group)
        else:
            self._ready(group)

    def group_judged(self, event: e.GroupJudged) -> None:
        group = self.groups.get(event.group)
        if group is None or group.state != "judging":
            self.late += 1
        elif event.accepted:
            self._ready(group)
        else:
            self._reject(group)

    def _ready(self, group: Group) -> None:
        group.state = "ready"
        self.lanes[group.mode].ready[group.id] = group.version

    def _reject(self, group: Group) -> None:
        self.lanes[group.mode].rejected += 1
        self._drop(group, "filtered")

    def _fail(self, group: Group, play: Play, blame: Blame, why: Reason, *, charge: bool = True) -> None:
        """An attempt ended without a score; its group tries again unless its budget is spent."""
        self._vacate(group, play)
        self._waste(group.mode, why, play.tokens, self._seconds(play))
        group.failures[blame] += charge
        budget = 0 if blame == "task" else _budget(self.settings, blame)
        if group.failures[blame] > budget:
            if blame in POISONOUS:
                self._quarantine(group)
            else:
                self._drop(group, "failed")
            return
        times = sum(group.failures.values())
        rest_s = min(LONGEST_REST_S, self.settings.backoff_s * 2.0 ** (times - 1))
        if rest_s > 0 and blame != "worker":
            group.rests.append(self.now + rest_s)

    def _quarantine(self, group: Group) -> None:
        """A task is played no more, in this group and in any other."""
        alike = [x for x in self.groups.values() if x.task == group.task and x.state in ("open", "aside")]
        if group.task:
            self.dead.add(group.task)
        for other in alike if group.task else [group]:
            self._drop(other, "poisoned")

    def _note(self, *, failed: bool) -> None:
        """Count one ended attempt or lost worker towards the breaker, which opens on a failure."""
        self.recent.append(failed)
        share = self.settings.breaker_share
        full = len(self.recent) == self.settings.breaker_window
        if failed and full and not self.halted and share < 1.0 and sum(self.recent) >= share * len(self.recent):
            self.halted = self.halt_due = True

    def _drop(self, group: Group, why: Reason) -> None:
        """A group is given up: whatever it has must be cancelled and dropped in this step."""
        for play in [*group.running.values()]:
            self._stop(group, play, why)
        for result in group.finished.values():
            self._waste(group.mode, why, result.tokens, result.seconds)
        lane = self.lanes[group.mode]
        lane.ready.pop(group.id, None)
        lane.groups.dropped[why] += 1
        del self.groups[group.id]
        self.drops[group.id] = why

    def _stop(self, group: Group, play: Play, why: Reason) -> None:
        """A playing attempt is of no use any more."""
        here = play.scoring or play.worker in self.workers
        self._vacate(group, play)
        self._waste(group.mode, why, play.tokens, self._seconds(play))
        if here:
            self.cancels[play.id] = why

    def _seconds(self, play: Play) -> float:
        return play.seconds if play.scoring else self.now - play.granted_at

    def _vacate(self, group: Group, play: Play) -> None:
        del group.running[play.id.index]
        del self.running[play.id]
        self.gone.append(play.id)
        if not play.scoring:
            self._leave(group, play)

    def _leave(self, group: Group, play: Play) -> None:
        """A playing attempt gives its slot and its engine back."""
        self.kinds[group.kind] -= 1
        self.homeless.discard(play.id)
        worker = self.workers.get(play.worker)
        if worker is not None:
            worker.plays.discard(play.id)
            if worker.leaving and not worker.plays:
                del self.workers[play.worker]
        if play.engine:
            self.engines[play.engine].plays.discard(play.id)

    def _waste(self, mode: Mode, why: Reason, tokens: int, seconds: float) -> None:
        lane = self.lanes[mode]
        lane.attempts.dropped[why] += 1
        waste = lane.waste.setdefault(CAUSE_OF[why], Waste())
        waste.attempts += 1
        waste.tokens += tokens
        waste.seconds += seconds

    # workers and time, as they are told

    def worker_joined(self, event: e.WorkerJoined) -> None:
        self.workers[event.worker] = Worker(event.slots, event.kinds, self.now)

    def worker_beat(self, event: e.WorkerBeat) -> None:
        worker = self.workers.get(event.worker)
        if worker is None:
            self.late += 1
        else:
            worker.heard = self.now

    def worker_left(self, event: e.WorkerLeft) -> None:
        worker = self.workers.get(event.worker)
        if worker is None:
            self.late += 1
            return
        worker.leaving = True
        if not worker.plays:
            del self.workers[event.worker]

    def worker_lost(self, event: e.WorkerLost) -> None:
        if event.worker in self.workers:
            self._lose([event.worker])
        else:
            self.late += 1

    def _lose(self, names: list[str]) -> None:
        lost = [self.workers.pop(name) for name in names]
        played = [sorted(worker.plays) for worker in lost]
        for plays in played:
            self._note(failed=True)  # however much it played, one worker is one fault
            charged: set[int] = set()
            for attempt in plays:
                self.may_cancel.add(attempt)
                if attempt in self.running:
                    group, new = self.groups[attempt.group], attempt.group not in charged
                    self._fail(group, self.running[attempt], "worker", "lost", charge=new)
                charged.add(attempt.group)

    def time_passed(self, event: e.TimePassed) -> None:
        beat_s = self.settings.beat_s
        if beat_s:
            silent = [name for name, worker in self.workers.items() if worker.heard + beat_s <= self.now]
            self._lose(silent)
        for group in self.groups.values():
            if group.rests:
                group.rests = [at for at in group.rests if at > self.now]
        due = []
        while self.leases and self.leases[0][0] <= self.now:
            due.append(self.leases.popleft()[1])
        for attempt in sorted(due):
            self._expire(attempt)

    def _expire(self, attempt: AttemptId) -> None:
        play = self.running.get(attempt)
        if play is None:
            return
        if play.scoring or not play.engine or self.engines[play.engine].holds:
            self.leases.append((self.now + self.settings.lease_s, attempt))  # it cannot play, or need not
        else:
            if play.worker in self.workers:
                self.cancels[attempt] = "failed"
            self._note(failed=True)
            self._fail(self.groups[attempt.group], play, "env", "failed")

    # engines, as they are told

    def engine_joined(self, event: e.EngineJoined) -> None:
        engine = Engine(event.version, event.devices, event.capacity, holds=dict(self.holds))
        self.engines[event.engine] = engine
        self._hush(event.engine, engine)

    def engine_ready(self, event: e.EngineReady) -> None:
        engine = self.engines.get(event.engine)
        if engine is None or engine.state not in ("warming", "restoring"):
            self.late += 1
            return
        engine.state = "serving"
        engine.strikes = 0
        self._must_load(event.engine, engine)

    def engine_released(self, event: e.EngineReleased) -> None:
        engine = self.engines.get(event.engine)
        if engine is None or engine.state != "leaving":
            self.late += 1
        else:
            engine.state = "away"

    def engine_lost(self, event: e.EngineLost) -> None:
        engine = self.engines.pop(event.engine, None)
        if engine is None:
            self.late += 1
        else:
            self.moves |= engine.plays
            self.vacated |= {*engine.devices}

    def engine_assigned(self, event: e.EngineAssigned) -> None:
        engine = self.engines[event.engine]
        engine.mode = event.mode
        if event.mode is not None:
            self.moves |= {a for a in engine.plays if self.groups[a.group].mode != event.mode}
        self._must_load(event.engine, engine)

    def weights_loaded(self, event: e.WeightsLoaded) -> None:
        engine = self.engines.get(event.engine)
        if engine is None:
            self.late += 1
            return
        engine.version = event.version
        engine.strikes = 0
        self._must_load(event.engine, engine)

    def _must_load(self, name: str, engine: Engine) -> None:
        """An engine was heard of: it has what it needs by now, or must be told."""
        if engine.state != "serving":
            return
        if self.is_current(engine):
            engine.fresh = False
        else:
            self.orders.add(("LoadWeights", name))

    def suspend_wanted(self, event: e.SuspendWanted) -> None:
        if not event.engines:
            self.holds[event.holder] = event.how
        for name in event.engines or [*self.engines]:
            self.engines[name].holds[event.holder] = event.how
            self._hush(name, self.engines[name])

    def _hush(self, name: str, engine: Engine) -> None:
        """A held engine is quiet, and interrupted if anybody wants it interrupted."""
        harder = "interrupt" in engine.holds.values() and engine.quiet != "interrupt"
        if engine.holds and (engine.quiet is None or harder):
            self.orders.add(("SuspendEngine", name))

    def resume_wanted(self, event: e.ResumeWanted) -> None:
        self.holds.pop(event.holder, None)
        for name, engine in self.engines.items():
            held = engine.holds.pop(event.holder, None)
            if held is not None and not engine.holds:
                self.orders.add(("ResumeEngine", name))

    def shrink_wanted(self, event: e.ShrinkWanted) -> None:
        for name, engine in self.on_devices(event.devices):
            if engine.state not in ("leaving", "away"):
                engine.state = "leaving"
                self.moves |= engine.plays
                self.orders.add(("ReleaseEngine", name))

    def expand_wanted(self, event: e.ExpandWanted) -> None:
        for name, engine in self.on_devices(event.devices):
            if engine.state in ("leaving", "away"):
                engine.state = "restoring"
                engine.fresh = True
                engine.version = self.version if event.skip_load else engine.version
                self.orders.add(("RestoreEngine", name))

    def on_devices(self, devices: tuple[int, ...]) -> list[tuple[str, Engine]]:
        """Engines that hold any of these devices."""
        return [pair for pair in self.engines.items() if {*devices} & {*pair[1].devices}]

    # events: versions, batches, the rest

    def version_published(self, event: e.VersionPublished) -> None:
        new = event.version > self.version
        self.version = event.version
        for name, engine in self.engines.items():
            if event.loaded and engine.mode != "val":
                engine.version = event.version
            if engine.state == "serving" and not self.is_current(engine):
                self.orders.add(("LoadWeights", name))
        for group in [*self.groups.values()] if new else []:
            if self._is_too_old(group):
                self._drop(group, "stale")

    def _is_too_old(self, group: Group) -> bool:
        limit = self.lanes[group.mode].limit
        return limit is not None and group.state != "delivered" and 0 <= group.version < self.version - limit

    def batch_wanted(self, event: e.BatchWanted) -> None:
        for batch in [*self.batches.values()]:
            if (batch.consumer, batch.mode) == (event.consumer, event.mode):
                if batch.step < event.step:
                    self._train(batch)
                elif batch.step == event.step:
                    self.again = batch
        if self.again is not None:
            return
        lane = self.lanes[event.mode]
        lane.largest = max(lane.largest, event.n // lane.size)
        self.waiting[event.consumer] = event

    def want_withdrawn(self, event: e.WantWithdrawn) -> None:
        self._withdraw(event.consumer)

    def _withdraw(self, consumer: str) -> None:
        want = self.waiting.pop(consumer, None)
        if want is None or self.lanes[want.mode].settings.ahead:
            return
        if not any(other.mode == want.mode for other in self.waiting.values()):
            for group in [*self.groups.values()]:
                if group.mode == want.mode and group.state != "delivered":
                    self._drop(group, "cancelled")

    def consumer_lost(self, event: e.ConsumerLost) -> None:
        back = [batch for batch in self.batches.values() if batch.consumer == event.consumer]
        for batch in back:
            del self.batches[batch.batch]
            lane = self.lanes[batch.mode]
            lane.groups.delivered -= len(batch.groups)
            lane.attempts.delivered -= len(batch.attempts)
            lane.lags = [lane.lags[0] - len(batch.groups), lane.lags[1] - sum(batch.lags), lane.lags[2]]
            for number in batch.groups:
                self._ready(self.groups[number])
        self._withdraw(event.consumer)
        for group in [self.groups[n] for batch in back for n in batch.groups if n in self.groups]:
            if self.closed:
                self._drop(group, "shutdown")
            elif self._is_too_old(group):
                self._drop(group, "stale")

    def batch_trained(self, event: e.BatchTrained) -> None:
        batch = self.batches.get(event.batch)
        if batch is not None:
            self._train(batch)

    def _train(self, batch: c.DeliverBatch) -> None:
        lane = self.lanes[batch.mode]
        del self.batches[batch.batch]
        for number in batch.groups:
            del self.groups[number]
        for count, many in ((lane.groups, len(batch.groups)), (lane.attempts, len(batch.attempts))):
            count.delivered -= many
            count.trained += many
        self.retires.add(batch.batch)

    def task_pardoned(self, event: e.TaskPardoned) -> None:
        self.dead.discard(event.task)

    def breaker_reset(self, event: e.BreakerReset) -> None:
        self.halted = False
        self.recent.clear()

    def shutdown_wanted(self, event: e.ShutdownWanted) -> None:
        self.closed = True
        for group in [*self.groups.values()]:
            if group.state != "delivered":
                self._drop(group, "shutdown")

    # commands

    def fetch_task(self, command: c.FetchTask) -> None:
        lane = self.lanes[command.mode]
        assert not self.closed, f"{command} after shutdown"
        assert not self.halted, f"{command} while halted"
        assert command.count > 0
        assert command.tag in lane.settings.shares, f"{command} for an unknown tag"
        assert command.tag not in lane.ended, f"{command} from a source that has ended"
        lane.asked[command.tag] += command.count
        used = self.in_play(command.mode) + sum(lane.asked.values())
        wants = [want for want in self.waiting.values() if want.mode == command.mode]
        if any(want.n == ALL for want in wants):
            slots = sum(worker.slots for worker in self.workers.values() if not worker.leaving)
            assert used - len(lane.ready) <= ceil(slots / lane.size) + 1, f"{command} beyond the slots"
        elif not lane.settings.ahead:
            assert used <= sum(want.n // lane.size for want in wants), f"{command} beyond what is wanted"
        elif lane.settings.tail:
            assert used <= ceil(lane.largest * (1 + lane.settings.tail)), f"{command} beyond the round"
        else:
            bound = lane.settings.staleness if lane.limit is None else lane.limit
            cap = max(lane.largest, floor((bound + 1) * lane.largest + 1e-9))
            assert used + self.untrained(command.mode) <= cap, f"{command} beyond the cap of {cap}"

    def grant_lease(self, command: c.GrantLease) -> None:
        attempt = command.attempt
        group = self.groups.get(attempt.group)
        assert not self.closed, f"{command} after shutdown"
        assert not self.halted, f"{command} while halted"
        assert group is not None, f"{command} for a group that is gone"
        assert attempt.index not in group.used, f"{attempt} granted twice"
        if group.state == "aside":
            group.state = "open"  # its tail round has begun
        assert group.state == "open", f"{command} for a group that is {group.state}"
        named = (group.ordinal, group.tag, group.mode)
        assert (command.ordinal, command.tag, command.mode) == named, f"{command} is not {named}"
        lane = self.lanes[group.mode]
        total = len(group.running) + len(group.finished) + len(group.rests)
        assert total < lane.size + lane.settings.spares, f"{command} beyond size, spares and rests"
        self._take_slot(group, command)
        self._take_engine(command)
        assert command.deadline == self.now + self.settings.lease_s
        group.used.add(attempt.index)
        seats = {member.seat for member in group.members()}
        assert command.seat not in seats, f"{command} on a seat that is taken"
        assert 0 <= command.seat < lane.size + lane.settings.spares, f"{command} beyond size and spares"
        play = Play(attempt, command.seat, command.worker, command.engine, command.version, self.now)
        group.running[attempt.index] = self.running[attempt] = play
        self.leases.append((command.deadline, attempt))
        lane.attempts.admitted += 1

    def _take_slot(self, group: Group, command: c.GrantLease) -> None:
        worker = self.workers.get(command.worker)
        assert worker is not None, f"{command} to a worker that is gone"
        assert not worker.leaving, f"{command} to a worker that leaves"
        assert len(worker.plays) < worker.slots, f"{command} to a worker without a free slot"
        assert group.kind in worker.kinds, f"{command} to a worker that does not host {group.kind!r}"
        self.kinds[group.kind] += 1
        limit = self.settings.kinds.get(group.kind)
        assert limit is None or self.kinds[group.kind] <= limit, f"{command} beyond the limit of its kind"
        worker.plays.add(command.attempt)

    def _take_engine(self, command: c.GrantLease) -> None:
        engine = self.engines.get(command.engine)
        assert engine is not None, f"{command} on an engine that is gone"
        assert self._is_usable(engine, command.mode), f"{command} on an engine that is not: {engine}"
        version = engine.version if engine.mode == "val" else self.version
        assert command.version == version, f"{command} on an engine with other weights: {engine}"
        free = [name for name in self.usable(command.mode) if not self.engines[name].holds]
        if engine.holds:
            assert not free, f"{command} on a held engine beside {free}"
        else:
            room = [name for name in free if not self._has_its_share(self.engines[name])]
            assert room, f"{command} and every engine has its share"
            healthy = [name for name in free if self.engines[name].strikes < SICK]
            assert engine.strikes < SICK or not healthy, f"{command} on a sick engine beside {healthy}"
        engine.plays.add(command.attempt)

    def cancel_attempt(self, command: c.CancelAttempt) -> None:
        if command.attempt in self.may_cancel and command.attempt not in self.cancels:
            return
        why = self.cancels.pop(command.attempt, None)
        assert why == command.why, f"{command}, expected {why}"

    def move_attempt(self, command: c.MoveAttempt) -> None:
        play = self.running.get(command.attempt)
        assert play is not None, f"{command} of an attempt that does not play"
        assert play.worker == command.worker, f"{command} of an attempt on {play.worker}"
        mode = self.groups[command.attempt.group].mode
        source = self.engines.get(play.engine)
        if source is not None:
            source.plays.discard(command.attempt)
        self.moves.discard(command.attempt)
        play.engine = command.engine
        if not command.engine:
            usable = self.usable(mode)
            assert self._is_anyone_full(usable) or not usable, f"{command} to nowhere, and {usable} serve"
            self.homeless.add(command.attempt)
            return
        assert self._is_usable(self.engines[command.engine], mode), f"{command} to one that does not serve"
        self.engines[command.engine].plays.add(command.attempt)
        self.homeless.discard(command.attempt)

    def judge_group(self, command: c.JudgeGroup) -> None:
        assert command.group in self.judges, f"{command} was not due"
        assert command.attempts == self.groups[command.group].finished_ids()
        self.judges.remove(command.group)

    def drop_group(self, command: c.DropGroup) -> None:
        why = self.drops.pop(command.group, None)
        assert why == command.why, f"{command}, expected {why}"

    def deliver_batch(self, command: c.DeliverBatch) -> None:
        if command.batch in self.batches:
            assert command == self.again == self.batches[command.batch], f"{command}, expected {self.again}"
            self.again = None
            return
        assert command.batch == self.next_batch, f"{command} has a number out of turn"
        self.next_batch += 1
        want = self.waiting.pop(command.consumer)
        assert (want.mode, want.step) == (command.mode, command.step), f"{command} for {want}"
        lane = self.lanes[want.mode]
        self._batch_holds(lane, command, want)
        for number in command.groups:
            self.groups[number].state = "delivered"
            del lane.ready[number]
        self._over(lane, command)
        if command.mode == "train":
            self.delivered_at = command.version
        self.batches[command.batch] = command
        self.wanted[command.batch] = want.n
        lane.groups.delivered += len(command.groups)
        lane.attempts.delivered += len(command.attempts)
        lane.rejected = 0
        if lane.settings.tail and want.n != ALL:
            self._end_round(command.mode)

    def _batch_holds(self, lane: Lane, command: c.DeliverBatch, want: e.BatchWanted) -> None:
        """Complete, distinct, of the right size, oldest first, with the right lags."""
        assert command.version == self.version
        count = len(command.groups)
        assert len({*command.groups}) == count > 0, f"{command} holds a group twice, or none"
        if want.n == ALL:
            assert count == len(lane.ready), f"{command} is not everything: {lane.ready}"
        elif command.short or count != want.n // lane.size:
            assert count < want.n // lane.size, f"{command} is larger than wanted"
            assert command.last != command.short, f"{command} is smaller than wanted"
        assert all(number in lane.ready for number in command.groups), f"{command} holds what is not ready"
        attempts = tuple(a for number in command.groups for a in self.groups[number].finished_ids())
        assert command.attempts == attempts, f"{command} holds other attempts than {attempts}"
        assert len(attempts) == count * lane.size
        lags = tuple(self.version - self.groups[number].version for number in command.groups)
        assert command.lags == lags, f"{command} has lags {lags}"
        assert lane.limit is None or max(lags) <= lane.limit, f"{command} is too old"
        newest = max(lane.ready[number] for number in command.groups)
        left = [version for number, version in lane.ready.items() if number not in command.groups]
        assert all(newest <= version for version in left), f"{command} is not oldest first: {lane.ready}"
        lane.lags = [lane.lags[0] + count, lane.lags[1] + sum(lags), max(lane.lags[2], *lags)]

    def _over(self, lane: Lane, command: c.DeliverBatch) -> None:
        left = any(g.mode == command.mode and g.state != "delivered" for g in self.groups.values())
        assert command.last == (lane.is_over and not left), f"{command} is the last: {lane.is_over}, {left}"
        if command.short:
            rounds = lane.settings.max_filter_rounds
            assert lane.rejected >= rounds, f"{command} is short after {lane.rejected} rejections"

    def _end_round(self, mode: Mode) -> None:
        """What a round began and did not deliver is thrown away, and its tasks wait for a later one."""
        for group in [*self.groups.values()]:
            if group.mode != mode or group.state in ("aside", "delivered"):
                continue
            if group.running or group.finished or group.failures:
                self.resets.add(group.id)
            for play in [*group.running.values()]:
                self._stop(group, play, "tail")
            for result in group.finished.values():
                self._waste(mode, "tail", result.tokens, result.seconds)
            group.finished.clear()
            group.rests.clear()
            group.state = "aside"
            self.lanes[mode].ready.pop(group.id, None)

    def reset_group(self, command: c.ResetGroup) -> None:
        # a group that was put back into play and got no slot is reset once more
        due = command.group in self.resets or self.groups[command.group].state == "aside"
        assert due, f"{command} was not due"
        assert command.why == "tail"
        self.resets.discard(command.group)

    def retire_batch(self, command: c.RetireBatch) -> None:
        assert command.batch in self.retires, f"{command} was not acknowledged"
        self.retires.remove(command.batch)

    def end_batches(self, command: c.EndBatches) -> None:
        want = self.waiting.pop(command.consumer)
        alive = any(g.mode == want.mode and g.state != "delivered" for g in self.groups.values())
        over = self.lanes[want.mode].is_over and not alive
        assert self.closed or over, f"{command} and there is more"
        assert command.why

    def refuse_batch(self, command: c.RefuseBatch) -> None:
        want = self.waiting.pop(command.consumer)
        lane = self.lanes[want.mode]
        rounds = lane.settings.max_filter_rounds * want.n // lane.size
        filtered = want.n != ALL and lane.settings.filter != "none" and lane.rejected >= rounds
        assert self.halted or filtered, f"{command} without a reason; {lane.rejected} rejected"
        assert command.why
        if not self.halted:
            lane.rejected = 0

    def suspend_engine(self, command: c.SuspendEngine) -> None:
        self.orders.discard(("SuspendEngine", command.engine))  # to say it twice does no harm
        engine = self.engines[command.engine]
        if "interrupt" in engine.holds.values():
            assert command.how == "interrupt", f"{command} is too soft for {engine.holds}"
        assert command.how in engine.holds.values(), f"{command}, and nobody wants that: {engine.holds}"
        engine.quiet = command.how

    def resume_engine(self, command: c.ResumeEngine) -> None:
        self._ordered(command, command.engine)
        assert not self.engines[command.engine].holds, f"{command} of a held engine"
        self.engines[command.engine].quiet = None

    def load_weights(self, command: c.LoadWeights) -> None:
        self._ordered(command, command.engine)
        assert command.version == self.version

    def _ordered(self, command: c.AnyCommand, engine: str) -> None:
        """An order to an engine that was due, and comes once."""
        order = (command.__class__.__name__, engine)
        assert order in self.orders, f"{command} was not due: {self.orders}"
        self.orders.remove(order)

    def release_engine(self, command: c.ReleaseEngine) -> None:
        self._ordered(command, command.engine)

    def restore_engine(self, command: c.RestoreEngine) -> None:
        self._ordered(command, command.engine)

    def halt(self, command: c.Halt) -> None:
        assert self.halt_due, f"{command}, and only {sum(self.recent)} of {len(self.recent)} failed"
        self.halt_due = False


def _compare_waste(said: dict, seen: dict[str, Waste]) -> None:  # type: ignore[type-arg]
    assert {*said} == {*seen}, f"waste {said}, seen {seen}"
    for cause, waste in seen.items():
        assert (said[cause].attempts, said[cause].tokens) == (waste.attempts, waste.tokens), f"waste: {cause}"
        assert isclose(said[cause].seconds, waste.seconds, abs_tol=1e-6), f"waste: {cause} in seconds"


def _budget(settings: Settings, blame: Blame) -> int:
    budgets: dict[str, int] = {
        "env": settings.env_retries,
        "reward": settings.reward_retries,
        "engine": settings.engine_retries,
        "worker": settings.worker_retries,
    }
    return budgets[blame]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")


EVENTS = {kind: Book.__dict__[_snake(kind.__name__)] for kind in e.AnyEvent.__args__}
COMMANDS = {kind: Book.__dict__[_snake(kind.__name__)] for kind in c.AnyCommand.__args__}
