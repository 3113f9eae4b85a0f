"""A run small enough for a test: a model of a few thousand weights that walks over a frozen lake of 3 × 3."""

import asyncio
from pathlib import Path
from typing import Any

from windrow.engines.torch.settings import TorchSettings
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic, Saving, Validation, WarmStart
from windrow.pipelines.training import Outcome, Training
from windrow.pipelines.watching import Evaluation, StepReport
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
from windrow.types import but

LAKE = EnvManagerConfig(
    env="frozen_lake",
    env_args={"size": 3, "view": "words", "rules": False, "max_steps": 5},
    num_env_groups=4,
    group_size=4,
    sampling=Sampling(max_tokens=4),
)
MODEL = ModelConfig(tiny=TinyConfig(hidden=32, layers=1, heads=2, context=256, texts=20))
LESSON = WarmStart(
    episodes=40,
    noise=0.3,
    supervised=DemonstrationConfig(steps=30, batch_size=16, optimizer=OptimizerConfig(lr=3e-3)),
)


def small(**changes: Any) -> Agentic:
    """A configuration, with some settings otherwise."""
    file = Agentic(
        name="small",
        steps=3,
        model=MODEL,
        engine=TorchSettings(capacity=16),
        rollout=RolloutConfig(rollout_batch_size=16, train_env_manager=LAKE),
        train=TrainConfig(optimizer=OptimizerConfig(lr=1e-3), loss=LossConfig(clip_high=0.28)),
        warm_start=LESSON,
        validate=Validation(tasks=16, every=2, at_once=16),
        save=Saving(every=1),
    )
    return but(file, **changes)


def exact(file: Agentic) -> Agentic:
    """The same, so that two runs give the same numbers to the bit."""
    return but(
        file,
        engine=TorchSettings(capacity=16, deterministic=True),
        rollout=but(file.rollout, order_rows="task"),
    )


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.evaluations: list[Evaluation] = []
        self.stages: list[str] = []

    def say(self, text: str) -> None: ...

    def stage(self, name: str, done: float, total: float, note: str = "") -> None:
        self.stages.append(name)

    def stepped(self, report: StepReport) -> None:
        self.steps.append(report)

    def evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)


def train(file: Agentic, root: Path, notes: Notes | None = None) -> tuple[Outcome, RunFolder]:
    """Train to the end; what came out, and the folder, open for reading."""
    with RunFolder.create(root, file.name, "pipeline: agentic\n") as folder:
        outcome = asyncio.run(train_agent(Training(file, folder, notes or Notes())))
        return outcome, RunFolder.read(folder.path)


def go_on(file: Agentic, path: Path, step: int | None = None) -> Outcome:
    """Train on from a checkpoint."""
    with RunFolder.open(path) as folder:
        checkpoint = folder.checkpoints.load("latest" if step is None else step)
        folder.rewind(checkpoint.step)
        return asyncio.run(train_agent(Training(file, folder, Notes(), checkpoint)))


def losses(folder: RunFolder) -> dict[int, tuple[float, float]]:
    """By step: the loss and the length of the gradient; steps without anything to learn from have none."""
    return {
        line.step: (line.values["train/loss"], line.values["train/grad_norm"])
        for line in folder.metrics
        if "train/loss" in line.values
    }
