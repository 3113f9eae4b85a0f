"""All engines of a run: they join, take new weights, die and come back.

Promises: an engine that came back is another one with the same name, and has the first weights until it is
told to load newer ones. What the scheduler tells a dead engine is ignored; its death was told already.
"""

from collections.abc import Callable
from math import log

from windrow.core.events import EngineJoined, EngineLost, EngineReady, EngineReleased, WeightsLoaded
from windrow.sim.clock import Clock
from windrow.sim.config import SimConfig
from windrow.sim.draws import Draws
from windrow.sim.engines import Engine, Pace, Request
from windrow.sim.scheduler import Tell
from windrow.types import How


class Fleet:
    """The engines by name, as long as they live."""

    def __init__(self, config: SimConfig, draws: Draws, clock: Clock, tell: Tell) -> None:
        self.config = config.engines
        self.draws = draws
        self.clock = clock
        self.tell = tell
        self.count = max(1, self.config.count)
        self.capacity = self.config.capacity if self.config.count else config.slots
        self.pace = Pace.of(self.config) if self.config.count else None
        self.engines: dict[str, Engine] = {}  # all and only the living ones
        self.buried_s = 0.0  # busy seconds of the dead
        self.buried_active_s = 0.0  # the same, however busy they were

    def open(self, answer: Callable[[Request], None]) -> None:
        """All engines join, warm."""
        self.answer = answer
        for number in range(self.count):
            self._join((number, 0))

    def suspend(self, name: str, how: How) -> None:
        if engine := self.engines.get(name):
            engine.suspend(how)

    def resume(self, name: str) -> None:
        if engine := self.engines.get(name):
            engine.resume()

    def load(self, name: str, version: int) -> None:
        """One engine takes new weights, in its time."""
        if engine := self.engines.get(name):
            self.clock.after(self.config.update_s, self._loaded, (engine, version))

    def publish(self, version: int) -> None:
        """All engines have new weights at once."""
        for engine in self.engines.values():
            engine.load(version)

    def confirm(self, version: int) -> None:
        """All engines that are behind have taken the new weights and say so."""
        for engine in self.engines.values():
            self._loaded((engine, version))

    def release(self, name: str) -> None:
        """An engine gives its devices back, in its time."""
        self.clock.after(self.config.hand_over_s, self._released, name)

    def restore(self, name: str, version: int) -> None:
        """An engine takes its devices again, and the weights of a version, in its time."""
        if engine := self.engines.get(name):
            self.clock.after(self.config.hand_over_s, self._restored, (engine, version))

    def busy_share(self, until: float) -> float:
        """Share of the engines' capacity that was in use."""
        for engine in self.engines.values():
            engine.look()
        busy_s = self.buried_s + sum(engine.busy_s for engine in self.engines.values())
        return busy_s / (self.count * self.capacity * until) if until else 0.0

    def active_share(self, until: float) -> float:
        """Share of the engines' time in which they generated for anybody; 0 if they need no time."""
        active_s = self.buried_active_s + sum(engine.active_s for engine in self.engines.values())
        return active_s / (self.count * until) if until else 0.0

    def _join(self, life: tuple[int, int]) -> None:
        """An engine begins one of its lives."""
        number, _ = life
        name = f"e{number}"
        self.engines[name] = Engine(name, self.pace, self.capacity, self.clock, self.answer)
        devices = tuple(range(number * self.config.devices, (number + 1) * self.config.devices))
        self.tell(EngineJoined(name, 0, self.capacity, devices))
        self.tell(EngineReady(name))
        if self.config.mean_time_to_restart_s is not None:
            chance = float(self.draws.numbers("uniform", "engine", life, 1)[0])
            self.clock.after(-self.config.mean_time_to_restart_s * log(1.0 - chance), self._die, life)

    def _die(self, life: tuple[int, int]) -> None:
        number, lives = life
        engine = self.engines.pop(f"e{number}")
        engine.die()
        self.buried_s += engine.busy_s
        self.buried_active_s += engine.active_s
        self.tell(EngineLost(engine.name, "died"))
        self.clock.after(self.config.restart_s, self._join, (number, lives + 1))

    def _loaded(self, news: tuple[Engine, int]) -> None:
        engine, version = news
        if engine.is_alive and engine.version < version:
            engine.load(version)
            self.tell(WeightsLoaded(engine.name, version))

    def _released(self, name: str) -> None:
        if name in self.engines:
            self.tell(EngineReleased(name))

    def _restored(self, news: tuple[Engine, int]) -> None:
        engine, _ = news
        if engine.is_alive:
            self.tell(EngineReady(engine.name))
            self._loaded(news)
