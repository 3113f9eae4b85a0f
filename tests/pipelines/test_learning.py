"""The demo's task, in short: whatever the estimator, some updates make the policy better than its warm start was."""

import asyncio
from pathlib import Path

import pytest
from tests.pipelines.kit import Notes, train

from windrow.pipelines.config import Agentic, Cloning, Validation, read
from windrow.pipelines.sft import clone_behaviour
from windrow.store.run import RunFolder
from windrow.train.config import ModelConfig
from windrow.types import but

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"
SHORT = [
    "steps=10",
    "rollout.staleness=0",
    "rollout.rollout_batch_size=128",
    "rollout.train_env_manager.num_env_groups=16",
    "train.processes=0",
    "train.critic.optimizer.lr=1e-3",
    "validate.tasks=256",
    "validate.every=0",
    "validate.greedy=false",
    "validate.stop_at=null",
    "save.every=0",
    "save.trajectories=0",
]
BETTER = 0.05
"""Two deviations of the difference between two measurements of 256 tasks, at a success of one in eight."""


def demo(*changes: str) -> Agentic:
    file = read(DEMO, [*SHORT, *changes]).value
    assert isinstance(file, Agentic)
    return file


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model after the demo's warm start."""
    file = demo()
    assert file.warm_start is not None
    lesson = Cloning(
        model=file.model,
        engine=file.engine,
        demonstrations=file.warm_start,
        rollout=file.rollout,
        validate=Validation(tasks=1, every=0, greedy=False),
    )
    with RunFolder.create(tmp_path_factory.mktemp("warm"), "warm", "pipeline: sft\n") as folder:
        asyncio.run(clone_behaviour(lesson, folder, Notes()))
        return folder.checkpoints.load().path("model")


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["gae", "gigpo", "reinforce_pp"])
def test_every_estimator_learns_the_demo_s_task(estimator: str, warm: Path, tmp_path: Path):
    file = demo(f"train.estimator.kind={estimator}")
    outcome, _ = train(but(file, model=ModelConfig(path=str(warm)), warm_start=None), tmp_path)
    assert outcome.after.success > outcome.before.success + BETTER
    assert outcome.overlap == 0
