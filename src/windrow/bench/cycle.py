"""The cycle of an experiment: a tiny model learns a game whose steps take long now and then, in both ways.

The whole agentic pipeline trains a model that was warmed up on easier lakes, once behind the synchronous barrier and
once with a bound of 1, from the same weights, with the same settings and the same number of updates. The steps of the
environment sleep for times with a long tail; in the demonstrations and in validation they do not, for either. Time
counts from the end of the first validation, before any update, to the end of the last; those between are part of it.

Compared are success on held-out tasks in the end, the time that it took, and the time until the mean over all seeds was
first as high as both ways came in the end, so whichever learnt less sets the mark. What is computed is not slept: on a
busy machine both take longer by about as much, and the ratio of times is smaller than on a quiet one.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from windrow.bench import Result, Say, compared
from windrow.bench.workloads import Tail
from windrow.engines.torch.settings import TorchSettings
from windrow.envs.frozen_lake import FrozenLakeEnv
from windrow.envs.protocol import Step
from windrow.errors import InternalError
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic, Saving, Validation, WarmStart
from windrow.pipelines.training import Training
from windrow.pipelines.watching import Evaluation, Nobody, StepReport
from windrow.requests import Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.store.run import RunFolder
from windrow.train.config import (
    DemonstrationConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TinyConfig,
    TrainConfig,
)
from windrow.trajectory import Task
from windrow.types import Value, but

LAKE = {"size": 4, "view": "brief", "rules": False, "max_steps": 16, "holes": 0.45, "min_distance": 4, "detours": False}
TIMES = Tail(median=0.1, sigma=1.4, cap=50.0)
STEPS = 24
EVERY = 6
SEEDS = 3
GROUPS, GROUP = 16, 8


class SlowLake(FrozenLakeEnv):
    """A frozen lake whose steps take a time of their own; none if `pace` is 0."""

    def __init__(self, pace: float = 1.0, **settings: object) -> None:
        super().__init__(**settings)
        self._pace = pace
        self._key: tuple[object, ...] = ()

    async def start(self, task: Task) -> str:
        self._key = (task.seed,)
        return await super().start(task)

    async def step(self, action: str) -> Step:
        self._key = (*self._key, action)
        if self._pace:
            await asyncio.sleep(self._pace * TIMES.draw(*self._key))
        return await super().step(action)


class Course(Value, frozen=True, kw_only=True, gc=True):
    """How one run went."""

    seconds: tuple[float, ...]
    """At each evaluation, since the first."""
    success: tuple[float, ...]
    """On held-out tasks, sampled as in training."""
    lag: float


class Clock(Nobody):
    """Notes when what was said."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Evaluation]] = []
        self.lags: list[float] = []

    def stepped(self, report: StepReport) -> None:
        self.lags.append(report.lag)

    def evaluated(self, evaluation: Evaluation) -> None:
        self.seen.append((time.monotonic(), evaluation))


def learning(say: Say, *, seeds: int = SEEDS, steps: int = STEPS) -> list[Result]:
    """Train in both ways, in turns."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of every checkpoint
    say(f"{steps} updates of {GROUPS} groups of {GROUP}, {seeds} seeds in turns")
    barrier: list[Course] = []
    bound: list[Course] = []
    for seed in range(seeds):
        for courses, staleness in (barrier, 0.0), (bound, 1.0):
            courses.append(train(recipe(steps, staleness, seed)))
            say(f"seed {seed}, staleness {staleness:g}: {_told(courses[-1])}")
    return results(barrier, bound)


def recipe(steps: int, staleness: float, seed: int) -> Agentic:
    """What is trained."""
    env = EnvManagerConfig(
        env=SlowLake, env_args=LAKE, num_env_groups=GROUPS, group_size=GROUP, sampling=Sampling(max_tokens=3)
    )
    held_out = but(env, env_args={**LAKE, "pace": 0.0}, group_size=1, num_env_groups=128, max_tasks=256)
    return Agentic(
        name=f"cycle-{staleness:g}-{seed}",
        seed=seed,
        steps=steps,
        model=ModelConfig(tiny=TinyConfig(hidden=64, layers=2, texts=50)),
        engine=TorchSettings(capacity=128),
        rollout=RolloutConfig(
            rollout_batch_size=GROUPS * GROUP, train_env_manager=env, val_env_manager=held_out, staleness=staleness
        ),
        train=TrainConfig(
            minibatches=2,
            optimizer=OptimizerConfig(lr=7e-4, warmup_steps=3),
            loss=LossConfig(clip_high=0.28),
            processes=1,
        ),
        warm_start=WarmStart(
            episodes=500,
            env_args={"holes": 0.05, "pace": 0.0},
            noise=0.5,
            learn_noise=True,
            supervised=DemonstrationConfig(
                steps=120, batch_size=16, optimizer=OptimizerConfig(lr=3e-3, warmup_steps=20)
            ),
        ),
        validate=Validation(tasks=256, every=EVERY, greedy=False, at_once=128),
        save=Saving(every=0, trajectories=0),
    )


def train(file: Agentic) -> Course:
    """One run from its beginning to its end."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as root, RunFolder.create(Path(root), file.name, "pipeline: agentic\n") as run:
        asyncio.run(train_agent(Training(file, run, clock)))
    began = clock.seen[0][0]
    return Course(
        seconds=tuple(at - began for at, _ in clock.seen),
        success=tuple(each.success for _, each in clock.seen),
        lag=fmean(clock.lags),
    )


def results(barrier: Sequence[Course], bound: Sequence[Course]) -> list[Result]:
    """Both ways in figures."""
    ours, theirs = mean_course(bound), mean_course(barrier)
    goal = min(ours.success[-1], theirs.success[-1])
    spread = f"±{_deviation(bound):.2f} and ±{_deviation(barrier):.2f} over seeds, {theirs.success[0]:.2f} before"
    return [
        compared(f"held-out success in the end, {spread}", ours.success[-1], theirs.success[-1], "share"),
        compared("time of all updates", ours.seconds[-1], theirs.seconds[-1], "s"),
        compared("updates in the same time", 1 / ours.seconds[-1], 1 / theirs.seconds[-1], "1/s"),
        compared(f"time until held-out success was {goal:.2f}", reached_s(ours, goal), reached_s(theirs, goal), "s"),
        compared("mean lag (alternative: the bound)", ours.lag, 1.0, "versions"),
    ]


def mean_course(courses: Sequence[Course]) -> Course:
    """The mean over all seeds, evaluation by evaluation."""
    return Course(
        seconds=tuple(map(fmean, zip(*(each.seconds for each in courses), strict=True))),
        success=tuple(map(fmean, zip(*(each.success for each in courses), strict=True))),
        lag=fmean(each.lag for each in courses),
    )


def reached_s(course: Course, goal: float) -> float:
    """When success was first so high, on a line between evaluations; the goal must not be above where it ended."""
    points = [*zip(course.seconds, course.success, strict=True)]
    if points[0][1] >= goal:
        return points[0][0]
    for (before_s, before), (after_s, after) in pairwise(points):
        if after >= goal > before:
            return before_s + (after_s - before_s) * (goal - before) / (after - before)
    raise InternalError(f"success never was {goal:.3f}: {course.success}")


def _deviation(courses: Sequence[Course]) -> float:
    last = [each.success[-1] for each in courses]
    return stdev(last) if len(last) > 1 else 0.0


def _told(course: Course) -> str:
    curve = " ".join(f"{success:.2f}" for success in course.success)
    return f"held-out success {curve} in {course.seconds[-1]:.0f} s, lag {course.lag:.2f}"
