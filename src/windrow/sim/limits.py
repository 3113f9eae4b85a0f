"""The limits that stand beside every figure: what nobody can beat, and what one who knew all durations could do.

Promises: everybody plays the same tasks, a whole epoch of them: as many as the timed steps need, to the last. Times
are seconds per step. Nothing fails; training takes the time that the world draws, the update of the engines
included. Episodes of turns are refused: how long they take is up to the engines.

The bound of a hard bound holds for whoever begins tasks in the order of the source. Those who put long tasks off, to
play them together, may pass it; `gathering` is such a schedule and has a line of its own.
"""

from heapq import heapreplace
from statistics import fmean

from windrow.errors import ConfigError
from windrow.sim.clairvoyant import (
    Clairvoyant,
    Order,
    begun_then_arrival,
    begun_then_longest,
    begun_then_shortest,
    longest,
)
from windrow.sim.config import SimConfig
from windrow.sim.rivals import Barrier
from windrow.sim.workload import Workload
from windrow.sim.world import World
from windrow.types import Value

BOUNDS = (1, 2, 4)
PROMPT: tuple[Order, ...] = (begun_then_longest, longest, begun_then_arrival)
"""Orders that put no task off on purpose."""
GATHERING: tuple[Order, ...] = (begun_then_shortest,)


class HardLimit(Value, frozen=True, kw_only=True):
    """What can be had under a hard bound on the lag."""

    bound: int
    bound_s: float
    """The floor, or (longest episode begun under a version + training) ÷ (bound + 1), if that is more."""
    bound_steps_per_s: float
    clairvoyant_s: float
    """The best of the clairvoyant schedules that put no task off on purpose."""
    clairvoyant_steps_per_s: float
    gathering_s: float
    """The best of those that do."""
    gathering_steps_per_s: float


class Limits(Value, frozen=True, kw_only=True):
    """All limits of one workload."""

    seed: int
    steps: int
    """Over which the means are taken."""
    work_s_per_step: float
    """Work ÷ slots."""
    training_s: float
    steps_per_s: float
    """Nobody makes more: slots and trainer are busy at best all the time."""
    sync_oracle_s: float
    """Each batch by itself, longest attempt first, and then its training."""
    sync_oracle_steps_per_s: float
    hard: dict[int, HardLimit]
    """By bound."""


class Epoch(Value, frozen=True):
    """What is to be played."""

    tasks: list[list[float]]
    """Durations of the attempts of each task."""
    training_s: list[float]
    """Of each step."""
    slots: int
    batch: int
    """Tasks in a batch."""

    @property
    def batches(self) -> list[list[list[float]]]:
        """The tasks, in batches by the order of the source."""
        return [self.tasks[first : first + self.batch] for first in range(0, len(self.tasks), self.batch)]


def limits(config: SimConfig, seed: int) -> Limits:
    """The limits of a config's workload, whatever its policy."""
    epoch = _epoch(config, seed)
    work_s = sum(map(sum, epoch.tasks)) / epoch.slots / len(epoch.training_s)
    training_s = fmean(epoch.training_s)
    floor_s = max(work_s, training_s)
    oracle_s = sync_oracle_s(epoch)
    return Limits(
        seed=seed,
        steps=len(epoch.training_s),
        work_s_per_step=work_s,
        training_s=training_s,
        steps_per_s=_rate(floor_s),
        sync_oracle_s=oracle_s,
        sync_oracle_steps_per_s=_rate(oracle_s),
        hard={bound: hard_limit(epoch, bound, floor_s) for bound in BOUNDS},
    )


def sync_oracle_s(epoch: Epoch) -> float:
    """Seconds per step if each batch is played by itself, longest attempt first."""
    spans = [longest_first_s([time for task in batch for time in task], epoch.slots) for batch in epoch.batches]
    return fmean(spans) + fmean(epoch.training_s)


def longest_first_s(times: list[float], slots: int) -> float:
    """When the last of these attempts ends, if a free slot always plays the longest one left."""
    free_at = [0.0] * slots  # a heap
    last = 0.0
    for time in sorted(times, reverse=True):
        end = free_at[0] + time
        heapreplace(free_at, end)
        last = max(last, end)
    return last


def hard_limit(epoch: Epoch, bound: int, floor_s: float) -> HardLimit:
    """What can be had if no lag may exceed `bound`."""
    bound_s = max(floor_s, lifetime_s(epoch) / (bound + 1))
    clairvoyant_s = min(play(epoch, bound, order) for order in PROMPT)
    gathering_s = min(play(epoch, bound, order) for order in GATHERING)
    return HardLimit(
        bound=bound,
        bound_s=bound_s,
        bound_steps_per_s=_rate(bound_s),
        clairvoyant_s=clairvoyant_s,
        clairvoyant_steps_per_s=_rate(clairvoyant_s),
        gathering_s=gathering_s,
        gathering_steps_per_s=_rate(gathering_s),
    )


def lifetime_s(epoch: Epoch) -> float:
    """Mean over versions of the longest episode begun under it and its training: `bound` + 1 steps last as long."""
    return fmean(max(map(max, batch)) for batch in epoch.batches) + fmean(epoch.training_s)


def play(epoch: Epoch, bound: int, order: Order) -> float:
    """Seconds per step of one clairvoyant schedule."""
    scheduler = Clairvoyant(
        epoch.tasks, epoch.training_s, slots=epoch.slots, batch=epoch.batch, bound=bound, order=order
    )
    return scheduler.run()


def _epoch(config: SimConfig, seed: int) -> Epoch:
    """What the timed steps of a config play."""
    world = World(config, Barrier(config.machine), seed=seed)  # nobody plays in it; it knows the chance
    policy = config.policy
    steps = config.steps
    if config.source.tasks is not None:
        steps = min(steps, config.source.tasks // policy.batch_groups)
    if not steps:
        raise ConfigError(
            f"source.tasks must fill a batch ({policy.batch_groups} groups) for limits, got {config.source.tasks}"
        )
    return Epoch(
        [
            _durations(world.workloads["train"], ordinal, policy.group_size)
            for ordinal in range(steps * policy.batch_groups)
        ],
        [world.trainer.time_s(step) + config.engines.update_s for step in range(steps)],
        config.slots,
        policy.batch_groups,
    )


def _durations(workload: Workload, ordinal: int, group_size: int) -> list[float]:
    """How long the attempts of a task occupy a slot."""
    plans = [workload.plan(ordinal, seat) for seat in range(group_size)]
    if any(plan.turns for plan in plans):
        raise ConfigError(
            "limits need episodes of known seconds, got turns (task "
            f"{ordinal}); use episode.kind: duration, or a trace with seconds"
        )
    return [plan.seconds + plan.reward_s for plan in plans]


def _rate(seconds: float) -> float:
    return 1.0 / seconds if seconds else 0.0
