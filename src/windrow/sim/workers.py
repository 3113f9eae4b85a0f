"""The workers that host environments: they join, beat, die and come back.

Promises: a worker that lives beats twice in the time after which it would count as lost.
"""

from math import log

from windrow.core.events import WorkerBeat, WorkerJoined, WorkerLost
from windrow.sim.clock import Clock
from windrow.sim.config import SimConfig
from windrow.sim.draws import Draws
from windrow.sim.episodes import Episodes
from windrow.sim.scheduler import Tell

BEATS = 2
"""Signs of life in the time after which a silent worker is lost."""
HOUR_S = 3600.0


class Workers:
    """All workers of a run."""

    def __init__(
        self,
        config: SimConfig,
        draws: Draws,
        episodes: Episodes,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self.sizes = config.worker_slots
        self.kinds = tuple(config.source.kinds) or ("",)
        self.faults = config.faults
        self.draws = draws
        self.episodes = episodes
        self.clock = clock
        self.tell = tell
        self.living: dict[int, None] = {}  # all and only the living ones
        self.period_s = config.machine.beat_s / BEATS

    def open(self) -> None:
        """All workers join."""
        for number in range(len(self.sizes)):
            self._join((number, 0))
        if self.period_s:
            self.clock.after(self.period_s, self._beat, None)

    def _join(self, life: tuple[int, int]) -> None:
        """A worker begins one of its lives."""
        number, _ = life
        self.living[number] = None
        self.tell(WorkerJoined(f"w{number}", self.sizes[number], self.kinds))
        if self.faults.worker_losses_per_hour:
            chance = float(self.draws.numbers("uniform", "worker", life, 1)[0])
            lasts_s = -log(1.0 - chance) * HOUR_S / self.faults.worker_losses_per_hour
            self.clock.after(lasts_s, self._die, life)

    def _die(self, life: tuple[int, int]) -> None:
        number, lives = life
        del self.living[number]
        self.episodes.lose_worker(f"w{number}")
        self.tell(WorkerLost(f"w{number}", "died"))
        self.clock.after(self.faults.rejoin_s, self._join, (number, lives + 1))

    def _beat(self, _: None) -> None:
        for number in self.living:
            self.tell(WorkerBeat(f"w{number}"))
        self.clock.after(self.period_s, self._beat, None)
