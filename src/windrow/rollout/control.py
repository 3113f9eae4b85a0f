"""What a caller may ask of all engines together: be quiet, go on, take new weights, lend devices, take them back.

Promises: each call ends in bounded time. `suspend` and `resume` are one holder of the gate; a weight update holds it
for itself and lets go on every exit, so nobody undoes another's hold. A shrink or an expand that fails is undone before
it raises; an engine that dies meanwhile is no failure: its devices are free. Nothing that was sampled is lost by any of
them.

Engines that are set aside play validation alone and keep their weights, whatever the others are given meanwhile; when
they are brought back they take the newest ones before they play anything. A validation that is pinned without engines
of its own ends before there are new weights: they are refused until then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from windrow.core.commands import LoadWeights, MoveAttempt, ReleaseEngine, RestoreEngine
from windrow.core.events import (
    BreakerReset,
    EngineAssigned,
    ExpandWanted,
    ResumeWanted,
    ShrinkWanted,
    SuspendWanted,
    VersionPublished,
)
from windrow.core.status import EngineStatus
from windrow.errors import EngineError, Refused
from windrow.nearest import did_you_mean
from windrow.rollout.fleet import Given
from windrow.rollout.queue import GroupQueueManager
from windrow.types import How

if TYPE_CHECKING:
    from windrow.engines.protocol import Weights

CALLER = "caller"
WEIGHTS = "weight update"


class Control:
    """One gate, one set of devices and one version for all engines of a queue."""

    def __init__(self, queue: GroupQueueManager) -> None:
        self._queue = queue
        self._fleet = queue.fleet
        self._updating = asyncio.Lock()  # one version after the other: callers wait here, decisions do not
        self.pinned = ""  # who validates at the version that all engines have, and is waited for

    async def suspend(self, how: How) -> None:
        """Returns when nothing generates any more."""
        began = _now()
        self._queue.tell(SuspendWanted(CALLER, how))
        await self._fleet.quiet(how)
        self._queue.meter.observe("engine/suspend_s", [_now() - began])

    async def resume(self) -> None:
        """Generation goes on, unless somebody else holds it."""
        self.let_go()
        await self._fleet.settled()

    def let_go(self) -> None:
        """The same, without waiting until every engine has heard of it."""
        self._queue.tell(ResumeWanted(CALLER))

    async def update_weights(self, version: int, weights: "Weights | None", how: How) -> dict[str, object]:
        """Bring every engine to new weights; they serve when they have confirmed version and checksum."""
        queue = self._queue
        began = _now()
        lost_before = set(self._fleet.lost)
        self._check_pin("new weights are")
        async with self._updating, self._held(WEIGHTS, how):
            self._check_pin("new weights are")  # it may have begun since
            newest = queue.machine.version - queue.lacks_weights  # a restored run needs what it had
            if version <= newest:
                raise Refused(f"new weights need a version above {newest}, got {version}")
            held_s = _now() - began
            await self._load(Given(version=version, weights=weights))
            queue.tell(VersionPublished(version))
            queue.steps_are_versions = False
            queue.have_weights()
            if queue.machine.halted:
                queue.tell(BreakerReset())  # what failed so often may have been the weights
        seconds = _now() - began
        queue.meter.observe("engine/load_s", [seconds])
        return {
            "version": version,
            "checksum": self._fleet.checksums.get(version, ""),
            "lost": [name for name in self._fleet.lost if name not in lost_before],
            "bytes": _bytes(weights),
            "update_duration_ms": 1000 * seconds,
            "suspend_duration_ms": 1000 * held_s,
        }

    async def set_aside(self, engines: int | Sequence[str]) -> tuple[str, ...]:
        """Have some engines play validation alone, and the others training alone; says which."""
        async with self._updating:
            if self._fleet.aside:
                raise Refused(f"engines are set aside already: {', '.join(self._fleet.aside)}; bring them back first")
            chosen = self._chosen(engines)
            self._fleet.aside = set(chosen)
            for name in chosen:
                self._queue.tell(EngineAssigned(name, "val"))
            for engine in self._queue.status().engines:
                if engine.engine not in chosen:
                    self._queue.tell(EngineAssigned(engine.engine, "train"))
        return chosen

    async def bring_back(self) -> None:
        """Engines that were set aside take the newest weights and play everything again, as all others do."""
        if not self._queue.is_closed:
            await self._queue.pledges.see_through(self._bring_back(), "end of a validation aside")

    def check_step(self, step: int) -> None:
        """Refuse a step that counts as new weights while a validation is pinned."""
        if self._queue.steps_are_versions and step > self._queue.machine.version:
            self._check_pin(f"step {step} counts as new weights, which are")

    async def shrink(self, devices: Sequence[int]) -> dict[str, object]:
        """Engines on these devices give them back; what they play goes on elsewhere."""
        return await self._queue.pledges.see_through(self._shrink(devices), f"shrink of devices {[*devices]}")

    async def expand(self, devices: Sequence[int], *, skip_load: bool) -> dict[str, object]:
        """Engines on these devices serve again."""
        return await self._queue.pledges.see_through(
            self._expand(devices, skip_load), f"expand to devices {[*devices]}"
        )

    async def _shrink(self, devices: Sequence[int]) -> dict[str, object]:
        began = _now()
        commands = self._queue.tell(ShrinkWanted(tuple(devices)))
        leaving = sorted(command.engine for command in commands if isinstance(command, ReleaseEngine))
        error = await self._settled(leaving)
        if error is not None:
            await self._undo(leaving, lambda theirs: ExpandWanted(theirs, skip_load=True))
            raise EngineError(f"shrink of devices {[*devices]} was undone: {error}") from error
        return {
            "shrink_duration_ms": 1000 * (_now() - began),
            "offload_ranks": self._ranks(leaving),
            "engines": leaving,
            "aborted": sum(self._fleet.interrupted.get(name, 0) for name in leaving),
            "remapped": sum(isinstance(command, MoveAttempt) for command in commands),
        }

    async def _expand(self, devices: Sequence[int], skip_load: bool) -> dict[str, object]:  # noqa: FBT001
        began = _now()
        queue = self._queue
        moved = queue.moved
        commands = queue.tell(ExpandWanted(tuple(devices), skip_load=skip_load))
        coming = sorted(command.engine for command in commands if isinstance(command, RestoreEngine))
        self._fleet.coming_back.update(coming)
        try:
            error = await self._settled(coming)
        finally:
            self._fleet.coming_back.difference_update(coming)
        if error is not None:
            await self._undo(coming, ShrinkWanted)
            raise EngineError(f"expand to devices {[*devices]} was undone: {error}") from error
        coming = [name for name in coming if name not in self._fleet.lost]
        return {
            "expand_duration_ms": 1000 * (_now() - began),
            "load_ranks": [] if skip_load else self._ranks(coming),
            "engines": coming,
            "remapped": queue.moved - moved,
        }

    async def _bring_back(self) -> None:
        async with self._updating:
            back, self._fleet.aside = self._fleet.aside, set()
            for engine in self._queue.status().engines:
                self._queue.tell(EngineAssigned(engine.engine, None))
            await self._fleet.settled(back)

    def _chosen(self, engines: int | Sequence[str]) -> tuple[str, ...]:
        """The engines that are meant: of so many the least busy ones, the last of those first."""
        there = [engine for engine in self._queue.status().engines if engine.state == "serving"]
        current = [engine for engine in there if engine.version >= self._queue.machine.version]
        current.reverse()
        names = [engine.engine for engine in sorted(current, key=_attempts)]
        chosen = tuple(names[:engines] if isinstance(engines, int) else engines)
        wanted = engines if isinstance(engines, int) else len(engines)
        for name in chosen:
            if name not in names:
                raise Refused(f"engine {name!r} cannot be set aside{did_you_mean(name, names)}")
        if not 0 < wanted < len(names):
            raise Refused(
                f"of {len(names)} engines that serve the newest weights 1 to {len(names) - 1} can be set aside, "
                f"so that the others play training; got {wanted}"
            )
        return chosen

    def _check_pin(self, what: str) -> None:
        if self.pinned and not self._fleet.aside:
            raise Refused(
                f"{what} refused while {self.pinned!r} is played, which is pinned to version "
                f"{self._queue.machine.version}; await it before, or set engines aside for it"
            )

    async def _load(self, given: Given) -> None:
        """Bring all that serve to new weights; if those fit nowhere, nothing has changed."""
        if self._queue.lacks_weights:  # engines of a restored run call what they have by the number of what they lack
            await self._fleet.settled()
            self._fleet.checksums.pop(given.version, None)
        before = self._fleet.give(given)
        serving = [
            engine.engine
            for engine in self._queue.status().engines
            if engine.state == "serving" and engine.engine not in self._fleet.aside
        ]
        for name in serving:
            self._fleet.order(LoadWeights(name, given.version))
        await self._fleet.settled(serving)
        self._queue.check_open()
        refused = {name: self._fleet.refusals.pop(name) for name in serving if name in self._fleet.refusals}
        if refused and not set(serving) - set(refused) - set(self._fleet.lost):
            self._fleet.give(before)
            raise next(iter(refused.values()))
        for name, error in refused.items():
            self._fleet.lose(name, f"the others took weights that it refused: {error}")

    @asynccontextmanager
    async def _held(self, holder: str, how: How) -> AsyncIterator[None]:
        """Nothing generates inside, but for what engines that are set aside play."""
        aside = self._fleet.aside
        others = [engine.engine for engine in self._queue.status().engines if engine.engine not in aside]
        if aside and not others:
            raise EngineError("all engines but those set aside for validation are lost; bring these back first")
        self._queue.tell(SuspendWanted(holder, how, tuple(others) if aside else ()))
        try:
            await self._fleet.quiet(how)
            yield
        finally:
            self._queue.tell(ResumeWanted(holder))

    async def _settled(self, engines: Sequence[str]) -> EngineError | None:
        """Wait until some engines have done what they were told; what went wrong, if something did."""
        await self._fleet.settled(engines)
        self._queue.check_open()
        failed = [self._fleet.failures.pop(name) for name in engines if name in self._fleet.failures]
        return failed[0] if failed else None

    async def _undo(
        self, engines: Sequence[str], back: Callable[[tuple[int, ...]], ShrinkWanted | ExpandWanted]
    ) -> None:
        """Put those that were changed back to what they were; an engine that cannot follow is lost."""
        left = [name for name in engines if name not in self._fleet.lost]
        devices = tuple(device for name in left for device in self._fleet.engines[name].traits.devices)
        if devices:
            self._queue.tell(back(devices))
        await self._fleet.settled(left)
        for name in left:
            error = self._fleet.failures.pop(name, None)
            if error is not None:
                self._fleet.lose(name, str(error))

    def _ranks(self, names: Sequence[str]) -> list[int]:
        order = [*self._fleet.engines]
        return [order.index(name) for name in names]


def _attempts(engine: EngineStatus) -> int:
    return engine.attempts


@runtime_checkable
class Stored(Protocol):
    """Something that knows how much memory it takes, as a tensor does."""

    @property
    def nbytes(self) -> int: ...


def _bytes(weights: "Weights | None") -> int:
    """How much each engine was given; 0 if it reads the weights itself."""
    tensors: Iterable[object] = weights.values() if isinstance(weights, Mapping) else [weights]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Stored))


def _now() -> float:
    return asyncio.get_running_loop().time()
