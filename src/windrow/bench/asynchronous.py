"""Asynchronous training beside the synchronous barrier: the scheduler at work, in real time.

Two shapes of `workloads` are played by the real scheduler, with the verbs of the pipelines in their order; engines,
environments, verifiers and the trainer sleep instead of computing. All have the same tasks, and as many slots as there
are attempts in a batch. The barrier (staleness 0) trains when its batch is complete and plays when it is trained. With
a bound, generation goes on meanwhile. With a spare each group begins one attempt more than it needs, in a slot more,
and the slowest is given up: published measurements do so too. That is faster, and what is handed out is shorter than
what was asked for. A barrier might lend the devices of generation to the trainer, which then takes half as long, say;
since a barrier's step is generation and then training, that is computed and not played.

The physical limit follows from what the barrier measured: nobody makes a step in less than the work of a batch ÷ slots,
than training, or, with a bound b, than (mean time of a group + training) ÷ (b + 1), since no more than b + 1 batches of
groups may be under way. Batches are whole: a group that ends at any time of a step waits half a step for the batch to
be full, on average, so (mean time of a group + training) ÷ (b + 1/2) is what can be had without knowing beforehand how
long each will take.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from windrow.bench import Result, Say, compared
from windrow.bench.workloads import CODEC, Shape, agentic, rlvr
from windrow.cluster.local import Cluster, EngineConfig, ResourceManager
from windrow.engines.protocol import Engine
from windrow.protocol import DataProto
from windrow.rollout.config import RolloutConfig
from windrow.rollout.scheduler import RolloutScheduler
from windrow.rollout.sharing import InferCluster
from windrow.trajectory import Trajectory
from windrow.types import Value, but

WHAT = "async: asynchronous training beside the synchronous barrier, in real time, RLVR and agentic"


class Manner(Value, frozen=True, kw_only=True):
    """One way to go about it."""

    name: str
    staleness: float = 0.0
    spares: int = 0
    """Attempts of a group beyond those that it needs; the slowest are given up when it is full."""


BARRIER = Manner(name="barrier")
HALF = 0.5
LENT = 0.5
"""What is left of training's time if it has the devices of generation as well."""
BOUNDS = (
    Manner(name="bound 1", staleness=1.0),
    Manner(name="bound 1 and a spare", staleness=1.0, spares=1),
    Manner(name="bound 2", staleness=2.0),
)


class Size(Value, frozen=True, kw_only=True):
    """How much is measured."""

    rounds: int
    warm: int
    """Steps before the clock counts, until early and late groups are mixed as they will be."""
    steps: int
    manners: tuple[Manner, ...]


FULL = Size(rounds=2, warm=3, steps=9, manners=(BARRIER, *BOUNDS))
QUICK = Size(rounds=1, warm=2, steps=3, manners=(BARRIER, *BOUNDS))


class Pace(Value, frozen=True, kw_only=True):
    """What one run came to."""

    step_s: float
    busy: float
    """Share of the slots' time in which an episode is played."""
    lag_mean: float
    lag_max: float
    episode_s: float
    """Mean time of an episode that was handed out."""
    group_s: float
    """Mean time from the beginning of an episode to its score, of the longest of each group."""
    longest_s: float
    """The longest of each batch, on average."""


def run(say: Say) -> list[Result]:
    """Both shapes, all manners in turns."""
    return measured(FULL, [rlvr(), agentic()], say)


def run_quick(say: Say) -> list[Result]:
    """The same with few steps, in half a minute."""
    return measured(QUICK, [rlvr(), agentic()], say)


def run_learning(say: Say) -> list[Result]:
    """A model that learns in both ways, in minutes."""
    from windrow.bench.cycle import learning

    return learning(say)


def measured(size: Size, shapes: Sequence[Shape], say: Say) -> list[Result]:
    """Every shape in every manner."""
    say(f"{size.rounds} rounds in turns, {size.steps} steps each after {size.warm} that do not count")
    return [result for shape in shapes for result in _one_shape(size, shape, say)]


def limit_s(shape: Shape, barrier: Pace, bound: float, waiting: float = 0.0) -> float:
    """Seconds that a step takes at the very least, if groups wait for so many steps until their batch is full."""
    work_s = barrier.episode_s  # as many slots as episodes in a batch
    return max(work_s, shape.train_s, (barrier.group_s + shape.train_s) / (bound + 1.0 - waiting))


async def play(shape: Shape, manner: Manner, size: Size, seed: int) -> Pace:
    """One run, step by step as the pipelines go."""
    clock = asyncio.get_running_loop().time
    rollouts = _scheduler(shape, manner, seed)
    batches: list[Sequence[Trajectory]] = []
    lags: list[tuple[float, float]] = []
    ended: list[float] = []
    rollouts.listeners.append(batches.append)
    async with rollouts:
        untrained = None
        for step in range(size.warm + size.steps):
            await rollouts.suspend()
            if step:
                await rollouts.update_weights(step)
            if untrained is not None:
                await rollouts.mark_trained(untrained)
            batch = await rollouts.get_batch(DataProto(meta_info={"global_step": step}), shape.batch)
            assert batch is not None, "there are always more tasks"
            untrained = batch.meta_info["batch_id"]
            found = batch.meta_info["metrics"]
            lags.append((found["batch/lag_versions/mean"], found["batch/lag_versions/max"]))
            await asyncio.sleep(shape.train_s)
            ended.append(clock())
    slots = shape.batch + manner.spares * shape.groups
    return _pace(slots, size, ended, batches, lags)


def _one_shape(size: Size, shape: Shape, say: Say) -> Iterator[Result]:
    runs: dict[str, list[Pace]] = defaultdict(list)
    for seed in range(size.rounds):
        for manner in size.manners:
            pace = asyncio.run(play(shape, manner, size, seed))
            runs[manner.name].append(pace)
            say(f"{shape.name}, {manner.name}: {_told(pace)}")
    barrier = _median(runs[BARRIER.name])
    say(
        f"{shape.name}: the longest episode of a batch takes {barrier.longest_s / barrier.episode_s:.1f} times the "
        f"mean, training {shape.train_s / barrier.episode_s:.1f} times; "
        f"{1 - shape.train_s / barrier.step_s:.0%} of the barrier's time is generation"
    )
    for manner in size.manners:
        if manner.staleness:
            yield from _results(shape, manner, runs)


def _results(shape: Shape, manner: Manner, runs: dict[str, list[Pace]]) -> Iterator[Result]:
    """A bound in figures."""
    ours, barrier = _median(runs[manner.name]), _median(runs[BARRIER.name])
    what = f"{shape.name}, {manner.name}"
    alone = runs[BARRIER.name]
    ratio = median(one.step_s / other.step_s for one, other in zip(alone, runs[manner.name], strict=True))
    limit = median(each.step_s / limit_s(shape, each, manner.staleness) for each in alone)
    steady = median(each.step_s / limit_s(shape, each, manner.staleness, HALF) for each in alone)
    yield compared(f"{what} (alternative: synchronous barrier)", 1 / ours.step_s, 1 / barrier.step_s, "steps/s")
    if not manner.spares:  # who gives up the slowest is not held to the time of all
        yield compared(f"{what}: times as fast (alternative: the physical limit)", ratio, limit, "×")
        yield compared(f"{what}: times as fast (alternative: the limit of whole batches)", ratio, steady, "×")
    lending_s = barrier.step_s - LENT * shape.train_s
    yield compared(f"{what} (alternative: barrier that lends its devices)", 1 / ours.step_s, 1 / lending_s, "steps/s")
    yield compared(f"{what}: slots in use", ours.busy, barrier.busy, "share")
    yield compared(f"{what}: mean lag (alternative: the bound)", ours.lag_mean, manner.staleness, "versions")
    yield compared(f"{what}: largest lag (alternative: the bound)", ours.lag_max, manner.staleness, "versions")
    yield compared(f"{what}: mean time of the episodes handed out", ours.episode_s, barrier.episode_s, "s")


def _scheduler(shape: Shape, manner: Manner, seed: int) -> RolloutScheduler:
    devices = ResourceManager(1)

    def make(name: str, on: tuple[int, ...], _: EngineConfig) -> Engine:
        return shape.make_engine(name, on)

    cluster: InferCluster = Cluster("engine", make, devices, EngineConfig(codec=CODEC))
    env = but(shape.env, group_size_redundancy=manner.spares)
    config = RolloutConfig(rollout_batch_size=shape.batch, train_env_manager=env, staleness=manner.staleness, seed=seed)
    return RolloutScheduler(config, env, devices, cluster, "train")


def _pace(
    slots: int,
    size: Size,
    ended: Sequence[float],
    batches: Sequence[Sequence[Trajectory]],
    lags: Sequence[tuple[float, float]],
) -> Pace:
    """Figures of the steps that count."""
    counted = batches[size.warm :]
    episodes = [_seconds(each) for batch in counted for each in batch]
    groups: dict[int, float] = defaultdict(float)
    for each in (each for batch in counted for each in batch):
        groups[each.attempt.group] = max(groups[each.attempt.group], _seconds(each) + _judged(each))
    seconds = ended[-1] - ended[size.warm - 1]
    return Pace(
        step_s=seconds / size.steps,
        busy=sum(episodes) / (seconds * slots),
        lag_mean=fmean(mean for mean, _ in lags[size.warm :]),
        lag_max=max(most for _, most in lags[size.warm :]),
        episode_s=fmean(episodes),
        group_s=fmean(groups.values()),
        longest_s=fmean(max(map(_seconds, batch)) for batch in counted),
    )


def _seconds(trajectory: Trajectory) -> float:
    return trajectory.ended_at - trajectory.began_at


def _judged(trajectory: Trajectory) -> float:
    """What its reward took."""
    return trajectory.reward_ended_at - trajectory.ended_at if trajectory.reward_ended_at else 0.0


def _median(paces: Sequence[Pace]) -> Pace:
    """The median of each figure."""
    return Pace(**{name: median(getattr(pace, name) for pace in paces) for name in Pace.__struct_fields__})


def _told(pace: Pace) -> str:
    return f"{pace.step_s:.2f} s per step, {pace.busy:.0%} of the slots in use, lag {pace.lag_mean:.2f}"
