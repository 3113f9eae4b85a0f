"""The table of engines: who serves, who is behind, who is held, and who has least to do.

Promises: an engine is chosen only if it serves the mode, its weights are confirmed current (or it is set aside for
validation, or it is held and will have them when it generates again), and it is not leaving; one that keeps failing
and a held one are chosen only if no other is left. Among those the one with the least expected work per capacity,
except that a group stays with the engine that knows its prompt while that engine is not much busier. While others
take new weights the first ones that have them do not take much more than their share. Holds are counted by holder: an
engine generates when nobody holds it.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal

from windrow.types import AttemptId, How, Mode, Record

EngineState = Literal["warming", "serving", "leaving", "away", "restoring"]

HELD = 1e15
"""Added to the load of a held engine, so that it comes after every other."""
SICK = 1e12
"""Added to the load of an engine that keeps failing, so that it comes after every healthy one."""
STRIKES = 3
"""Failures in a row after which an engine counts as sick, until it succeeds, restarts or gets new weights."""
OVERLOAD = 2
"""How many times its share of the attempts an engine may take while others take new weights."""
AFFINITY = 1.5
"""How many attempts' worth of work an engine may be ahead and still keep a group that it knows."""
SLACK = 64
"""Outdated entries that a heap may hold beyond its living ones before it is rebuilt."""


class Engine(Record):
    """What the machine knows of one engine."""

    id: str
    joined: int
    """How many joined before it; breaks ties."""
    capacity: int
    devices: tuple[int, ...]
    version: int
    state: EngineState = "warming"
    mode: Mode | None = None
    """The only mode it serves; None for all."""
    holds: dict[str, How] = {}
    """All and only the holders that want it quiet."""
    work: float = 0.0
    """Tokens that its attempts were expected to cost."""
    load: float = 0.0
    """Work per capacity; more than any real load while it is held."""
    strikes: int = 0
    """Failures in a row."""
    fresh: bool = False
    """It has not served since it joined or came back, so it takes over a share of the work when it does."""
    attempts: dict[AttemptId, None] = {}
    """All and only the running attempts that generate here."""
    posted: float = -1.0
    """The lowest load under which the heap lists it; negative if it does not."""

    def weigh(self, work: float) -> None:
        """Its work or its holds are others now."""
        self.work = work
        load = work / self.capacity
        if self.strikes >= STRIKES:
            load += SICK
        self.load = load + HELD if self.holds else load


class EngineBook:
    """All engines, by name, and the order in which they take work."""

    def __init__(self) -> None:
        self.table: dict[str, Engine] = {}
        self.joined = 0
        self.vacated: dict[int, None] = {}  # devices of engines that died; free, unless another one has them now
        self.version = 0  # what an engine must have confirmed to serve
        self.updating: dict[str, None] = {}  # all and only the serving engines that have not confirmed it
        self.capacity = 0  # of all serving engines
        self.attempts = 0  # that generate somewhere
        # all usable engines, least load first, by the mode they serve; outdated entries are skipped
        self.heaps: dict[Mode | None, list[tuple[float, int, str]]] = {None: [], "train": [], "val": []}

    def is_current(self, engine: Engine) -> bool:
        """Its weights are the ones to sample from."""
        return engine.version >= self.version or engine.mode == "val"

    def is_open(self, engine: Engine) -> bool:
        """New work may wait there: it serves and is current, or will be when it generates again."""
        if engine.state != "serving":
            return False
        return self.is_current(engine) or (bool(engine.holds) and not engine.fresh)

    def enter(self, engine: Engine, state: EngineState) -> None:
        """An engine is in another state now."""
        self.capacity += engine.capacity * ((state == "serving") - (engine.state == "serving"))
        engine.state = state
        self.note_version(engine)

    def note_version(self, engine: Engine) -> None:
        """An engine's weights, or those that it needs, are others now."""
        if engine.state == "serving" and not self.is_current(engine):
            self.updating[engine.id] = None
        else:
            self.updating.pop(engine.id, None)

    def is_usable(self, engine: Engine, mode: Mode) -> bool:
        """New work of this mode may go there."""
        return engine.mode in (None, mode) and self.is_open(engine)

    def post(self, engine: Engine) -> None:
        """List an engine that became usable or has less to do than it is listed with."""
        if not self.is_open(engine):
            return
        load = engine.load
        if engine.posted < 0 or load < engine.posted:
            engine.posted = load
            heappush(self.heaps[engine.mode], (load, engine.joined, engine.id))

    def choose(self, mode: Mode, known: str) -> Engine | None:
        """The engine for one more attempt of a group whose prompt `known` has seen."""
        best = self._least(None)
        if self.heaps[mode]:
            reserved = self._least(mode)
            if best is None or (reserved is not None and reserved.load < best.load):
                best = reserved
        if best is not None and self.updating and self._has_its_share(best):
            return None
        if best is None or not known or known == best.id:
            return best
        familiar = self.table.get(known)
        if familiar is None or not self.is_usable(familiar, mode):
            return best
        typical = familiar.work / max(1, len(familiar.attempts))
        near = familiar.load <= best.load + AFFINITY * typical / familiar.capacity
        return familiar if near else best

    def _has_its_share(self, engine: Engine) -> bool:
        """It has so many attempts already that more should wait for the engines that take new weights."""
        if engine.holds:
            return False
        return len(engine.attempts) * self.capacity > OVERLOAD * (self.attempts + self.capacity) * engine.capacity

    def _least(self, mode: Mode | None) -> Engine | None:
        heap = self.heaps[mode]
        if len(heap) > 2 * len(self.table) + SLACK:
            self.rebuild(mode)
        while heap:
            load, joined, name = heap[0]
            engine = self.table.get(name)
            if engine is None or (engine.posted, engine.joined, engine.mode) != (load, joined, mode):
                heappop(heap)  # it is gone, or listed elsewhere or with another load since
            elif not self.is_open(engine):
                engine.posted = -1.0
                heappop(heap)
            elif engine.load > load:
                engine.posted = engine.load
                heapreplace(heap, (engine.load, engine.joined, name))
            else:
                return engine
        return None

    def rebuild(self, mode: Mode | None) -> None:
        """List all and only the usable engines of a mode, once each."""
        heap = self.heaps[mode]
        heap.clear()
        for engine in self.table.values():
            if engine.mode != mode:
                continue
            engine.posted = -1.0
            if self.is_open(engine):
                engine.posted = engine.load
                heap.append((engine.load, engine.joined, engine.id))
        heapify(heap)

    def book(self, engine: Engine, attempt: AttemptId, work: float) -> None:
        """An attempt generates here from now on."""
        engine.attempts[attempt] = None
        self.attempts += 1
        engine.weigh(engine.work + work)

    def unbook(self, engine: Engine, attempt: AttemptId, work: float) -> None:
        """An attempt no longer generates here."""
        del engine.attempts[attempt]
        self.attempts -= 1
        # an idle engine has exactly nothing to do, whatever rounding left behind
        engine.weigh(engine.work - work if engine.attempts else 0.0)
        self.post(engine)

    def strike(self, name: str, *, failed: bool) -> None:
        """An attempt ended there, by the engine's fault or well."""
        engine = self.table.get(name)
        if engine is None or not (failed or engine.strikes):
            return
        engine.strikes = engine.strikes + 1 if failed else 0
        engine.weigh(engine.work)
        self.post(engine)

    def hold(self, engine: Engine, holder: str, how: How) -> None:
        """One more wants it quiet."""
        engine.holds[holder] = how
        engine.weigh(engine.work)
        self.post(engine)

    def let_go(self, engine: Engine, holder: str) -> bool:
        """A holder lets go; true if nobody holds it any more and somebody did."""
        if engine.holds.pop(holder, None) is None or engine.holds:
            return False
        engine.weigh(engine.work)
        self.post(engine)
        return True

    def on_devices(self, devices: tuple[int, ...]) -> list[Engine]:
        """Engines that hold any of these devices, in order of joining."""
        wanted = set(devices)
        return [engine for engine in self.table.values() if wanted.intersection(engine.devices)]

    def unknown_devices(self, devices: tuple[int, ...]) -> list[int]:
        """Devices that no engine has or had."""
        known = self.known_devices()
        return [device for device in devices if device not in known]

    def known_devices(self) -> set[int]:
        """Devices of all engines, of those that died too."""
        return {device for engine in self.table.values() for device in engine.devices}.union(self.vacated)
