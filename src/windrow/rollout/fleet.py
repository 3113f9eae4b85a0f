"""The engines of a cluster and the hands that carry out what was decided about them.

Promises: orders for one engine are carried out one after the other, in the order in which they were given; different
engines do not wait for each other. Every order has a deadline. Draining that takes too long becomes an interruption. An
engine that cannot be suspended, resumed or brought to its version in time is lost; one that cannot give its devices
back, or take them again, says so to whoever asked; one that dies meanwhile is lost, and the others go on. New weights
are confirmed with version and checksum before they count, and engines that were given the same weights must agree.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from windrow.core.commands import LoadWeights, ReleaseEngine, RestoreEngine, ResumeEngine, SuspendEngine
from windrow.core.events import (
    AnyEvent,
    EngineJoined,
    EngineLost,
    EngineReady,
    EngineReleased,
    WeightsLoaded,
)
from windrow.engines.protocol import Acknowledgement, Engine, Weights
from windrow.errors import EngineError, Refused, WindrowError, blame
from windrow.errors import EngineLost as Gone
from windrow.rollout.supervision import Crew
from windrow.types import How, Record, Value

log = logging.getLogger(__name__)

EngineOrder = SuspendEngine | ResumeEngine | LoadWeights | ReleaseEngine | RestoreEngine

INTERRUPT_S = 5.0
"""How long an engine may take to interrupt when draining took too long: one token, with room to spare."""


class Patience(Value, frozen=True, kw_only=True):
    """How long an engine may take for each order."""

    start_s: float = 600.0
    suspend_s: float = 30.0
    load_s: float = 600.0
    devices_s: float = 120.0
    health_s: float = 10.0
    health_every_s: float = 30.0


class Given(Value, frozen=True, kw_only=True, gc=True):
    """The newest weights that we were told of."""

    version: int = 0
    weights: "Weights | None" = None
    by_others: bool = False
    """Somebody loads weights behind our back; we only hear which version they count as."""


class Hand(Record, gc=True):
    """Carries out the orders of one engine."""

    engine: Engine
    orders: deque[EngineOrder]
    wake: asyncio.Event
    idle: asyncio.Event
    """Nothing is left to be carried out."""
    changed: asyncio.Event
    """One of the two below may be another."""
    doing: EngineOrder | None = None
    held: bool = False
    """The last word was to suspend it."""
    quiet: bool = False
    """It cannot generate: suspended and not to be resumed, away, or lost."""
    lost: bool = False

    def become(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.changed.set()


class Fleet:
    """All engines, each with a hand of its own."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        tell: Callable[[AnyEvent], object],
        crew: Crew,
        patience: Patience,
        bury: Callable[[str], None] | None = None,
    ) -> None:
        """`bury` ends whatever is left of an engine that is lost, so that its devices are free for certain."""
        self.engines = dict(engines)
        self.lost: dict[str, str] = {}  # all and only the engines that died, with why
        self.coming_back: set[str] = set()  # all and only the engines of an expand that is under way
        self.failures: dict[str, EngineError] = {}  # by engine: why it could not lend its devices or take them back
        self.interrupted: dict[str, int] = {}  # by engine: requests that its last release interrupted
        self.checksums: dict[int, str] = {}  # by recent version: what the first engine that has it confirmed
        self.refusals: dict[str, Refused] = {}  # by engine: why new weights do not fit; it has what it had
        self.aside: set[str] = set()  # all and only the engines that keep their weights for a validation
        self.began_with: dict[str, int] = {}  # by engine: the version that it said it had when it was started
        self._given = Given()
        self._away: set[str] = set()  # all and only the engines that have given their devices back
        self._tell = tell
        self._crew = crew
        self._patience = patience
        self._bury = bury
        self._hands: dict[str, Hand] = {}

    async def start(self) -> None:
        """Start all engines at once; they serve as they get warm."""
        async with asyncio.TaskGroup() as group:
            for engine in self.engines.values():
                group.create_task(self._start(engine), name=f"start of engine {engine.name}")

    def order(self, order: EngineOrder) -> None:
        """Give an engine's hand something to do."""
        hand = self._hands.get(order.engine)
        if hand is None or hand.lost:
            return  # what is gone is quiet
        if isinstance(order, SuspendEngine):
            hand.held = True
        elif isinstance(order, ResumeEngine):
            hand.held = False
            hand.become(quiet=order.engine in self._away)
        hand.orders.append(order)
        hand.idle.clear()
        hand.wake.set()

    def give(self, given: Given) -> Given:
        """What engines are brought to from now on; says what it was before."""
        before, self._given = self._given, given
        self.checksums = {known: sum_ for known, sum_ in self.checksums.items() if known >= before.version}
        return before

    async def quiet(self, how: How) -> None:
        """Wait until no engine that was told to be quiet generates any more; one that does not obey is lost."""
        limit_s = self._patience.suspend_s + (INTERRUPT_S if how == "drain" else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                for hand in [*self._hands.values()]:
                    while hand.held and not hand.quiet:  # somebody may resume it meanwhile
                        hand.changed.clear()
                        await hand.changed.wait()
        except TimeoutError:
            for hand in [*self._hands.values()]:
                if hand.held and not hand.quiet:
                    self.lose(hand.engine.name, f"it was not quiet after {limit_s:g} s")

    async def settled(self, engines: Iterable[str] | None = None) -> None:
        """Wait until every order of some engines, or of all, has been carried out."""
        for name in [*(self._hands if engines is None else engines)]:
            await self._hands[name].idle.wait()

    def lose(self, name: str, why: str, *, is_gone: bool = False) -> None:
        """An engine died; one that is not gone may still use its devices, unless somebody buries it."""
        hand = self._hands.get(name)
        if hand is None or hand.lost:
            return
        is_free = is_gone or self._bury is not None
        if isinstance(hand.doing, ReleaseEngine | RestoreEngine) and not is_free:
            self.failures[name] = EngineError(f"engine {name} was lost meanwhile: {why}")
        self._let_down(hand)
        self.lost[name] = why
        log.error("engine %s lost: %s", name, why, extra={"engine": name, "why": why})
        if self._bury is not None:
            self._bury(name)
        self._tell(EngineLost(name, why))

    @staticmethod
    def _let_down(hand: Hand) -> None:
        """Nothing more is carried out here, and nobody waits for it."""
        hand.lost = True
        hand.orders.clear()
        hand.wake.set()
        hand.idle.set()
        hand.become(quiet=True)

    async def close(self) -> None:
        """Close all engines, within bounded time."""
        async with asyncio.TaskGroup() as group:
            for engine in self.engines.values():
                group.create_task(self._close(engine), name=f"close of engine {engine.name}")

    # one engine

    async def _start(self, engine: Engine) -> None:
        with blame(EngineError, f"start of engine {engine.name}"):
            async with asyncio.timeout(self._patience.start_s):
                acknowledgement = await engine.start()
            self._check(engine, acknowledgement.version, acknowledgement)
        hand = Hand(engine, deque(), asyncio.Event(), asyncio.Event(), asyncio.Event())
        hand.idle.set()
        self._hands[engine.name] = hand
        self.began_with[engine.name] = acknowledgement.version
        if acknowledgement.version > self._given.version:
            self.give(Given(version=acknowledgement.version))
        traits = engine.traits
        self._tell(EngineJoined(engine.name, acknowledgement.version, traits.capacity, traits.devices))
        self._crew.spawn(self._serve(hand), f"hand of engine {engine.name}")
        self._crew.spawn(self._watch(hand), f"watch over engine {engine.name}")
        await hand.idle.wait()  # it may have been told to be quiet
        if not hand.lost:
            self._tell(EngineReady(engine.name))

    async def _serve(self, hand: Hand) -> None:
        """Carry out orders.

        consumes      an order
        waits for     the engine to have carried it out, or its deadline
        unblocked by  order(), lose()
        """
        try:
            while not hand.lost:
                if not hand.orders:
                    hand.idle.set()
                    hand.wake.clear()
                    await hand.wake.wait()
                    continue
                await self._carry_out(hand, hand.orders.popleft())
        finally:
            self._let_down(hand)

    async def _carry_out(self, hand: Hand, order: EngineOrder) -> None:
        hand.doing = order
        try:
            with blame(EngineError, type(order).__name__):
                await self._perform(hand, order)
        except WindrowError as error:
            name = order.engine
            if isinstance(order, LoadWeights) and isinstance(error, Refused):
                self.refusals[name] = error
            elif isinstance(error, Gone):
                self.lose(name, str(error), is_gone=True)
            elif isinstance(order, ReleaseEngine | RestoreEngine) or name in self.coming_back:
                self.failures[name] = EngineError(f"engine {name}: {error}")
            else:
                self.lose(name, str(error))
        finally:
            hand.doing = None

    async def _perform(self, hand: Hand, order: EngineOrder) -> None:
        engine, patience = hand.engine, self._patience
        match order:
            case SuspendEngine():
                await self._suspend(engine, order)
                hand.become(quiet=hand.held)
            case ResumeEngine():
                async with asyncio.timeout(patience.suspend_s):
                    await engine.resume()
            case LoadWeights(version=version):
                await self._load(engine, version)
            case ReleaseEngine():
                async with asyncio.timeout(patience.devices_s):
                    await self._release(hand)
            case RestoreEngine():
                async with asyncio.timeout(patience.devices_s):
                    await self._restore(hand, load=order.load)
            case _:
                assert_never(order)

    async def _release(self, hand: Hand) -> None:
        engine = hand.engine
        report = await engine.load_report()
        self.interrupted[engine.name] = report.running + report.waiting
        await engine.release()
        self._away.add(engine.name)
        hand.become(quiet=True)
        self._tell(EngineReleased(engine.name))

    async def _restore(self, hand: Hand, *, load: bool) -> None:
        engine = hand.engine
        await engine.restore()
        if engine.name not in self.aside and (self._given.by_others or not load):  # what it has is the newest
            self._check(engine, self._given.version, await engine.load(self._given.version, None))
        if hand.held:
            await engine.suspend("interrupt")  # before anything is sent there
        self._away.discard(engine.name)
        hand.become(quiet=hand.held)
        self._tell(EngineReady(engine.name))

    async def _suspend(self, engine: Engine, order: SuspendEngine) -> None:
        limit_s = self._patience.suspend_s
        how = order.how if order.how != "freeze" or engine.traits.can_freeze else "interrupt"
        if how != "drain":
            async with asyncio.timeout(limit_s):
                await engine.suspend(how)
            return
        try:
            async with asyncio.timeout(limit_s):
                await engine.suspend("drain")
        except TimeoutError:
            async with asyncio.timeout(min(limit_s, INTERRUPT_S)):
                await engine.suspend("interrupt")

    async def _load(self, engine: Engine, version: int) -> None:
        if engine.name in self._away:
            return  # it is told when it comes back
        weights = self._given.weights if engine.traits.can_load else None
        async with asyncio.timeout(self._patience.load_s):
            said = await engine.load(version, weights)
        self._check(engine, version, said)
        self._tell(WeightsLoaded(engine.name, version))

    def _check(self, engine: Engine, version: int, said: Acknowledgement) -> None:
        if said.version != version:
            raise EngineError(f"it was given version {version} and says that it serves {said.version}")
        if not said.checksum:
            return
        known = self.checksums.setdefault(version, said.checksum)
        if known and known != said.checksum:
            raise EngineError(
                f"version {version} has checksum {known} elsewhere and {said.checksum} on engine {engine.name}; "
                f"give all engines the same weights"
            )

    async def _watch(self, hand: Hand) -> None:
        """Look now and then whether an engine still lives.

        consumes      nothing
        waits for     the time of the next look
        unblocked by  the clock, lose()
        """
        patience = self._patience
        while not hand.lost:
            await asyncio.sleep(patience.health_every_s)
            try:
                with blame(EngineError, "it did not say how it is"):
                    async with asyncio.timeout(patience.health_s):
                        health = await hand.engine.health()
            except WindrowError as error:
                self.lose(hand.engine.name, str(error))
                return
            if health.state == "dead":
                self.lose(hand.engine.name, health.why or "it says that it is dead", is_gone=True)
                return

    async def _close(self, engine: Engine) -> None:
        try:
            with blame(EngineError, "close"):
                async with asyncio.timeout(self._patience.suspend_s):
                    await engine.close()
        except WindrowError as error:
            log.warning("engine %s did not close: %s", engine.name, error, extra={"engine": engine.name})
