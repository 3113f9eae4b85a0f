"""A run learns the same wherever its reference and its critic sit, and goes on with them elsewhere."""

import asyncio
import os
import signal
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from tests.isolation.kit import Born
from tests.pipelines.kit import Notes, exact, go_on, small, train

from windrow.errors import TrainError
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic, Validation
from windrow.pipelines.learning import TRAINER, Learning
from windrow.pipelines.placing import Role, Roles, Workers
from windrow.pipelines.training import Training
from windrow.store.run import RunFolder
from windrow.train.config import CriticConfig, EstimatorConfig, OptimizerConfig
from windrow.train.spread import Spread
from windrow.train.team import Company
from windrow.types import but

TOGETHER = Roles(actor_infer=Workers(device_mapping=0))
APART = but(TOGETHER, critic=Role(device_mapping=1), reference=Role(device_mapping=2))
BOTH = but(TOGETHER, critic=Role(device_mapping="1-2"), reference=Role(device_mapping="1-2"))
WHOLE = ("train/loss", "train/kl", "critic/loss", "critic/explained_variance")


def ppo(roles: Roles = TOGETHER, **more: Any) -> Agentic:
    """Two steps with a critic, held near a reference; it moves enough for that to matter."""
    validate = Validation(tasks=4, every=0, at_once=4, greedy=False)
    file = exact(small(devices=3, steps=2, validate=validate, roles=roles, **more))
    return but(
        file,
        train=but(
            file.train,
            optimizer=OptimizerConfig(lr=1e-2),
            critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-2)),
            estimator=EstimatorConfig(kind="gae"),
            loss=but(file.train.loss, kl=0.1),
        ),
    )


def told(run: RunFolder) -> dict[int, list[float]]:
    """By step: what actor and critic said."""
    return {line.step: [line.values[name] for name in WHOLE] for line in run.metrics if "train/loss" in line.values}


def critic_of(run: RunFolder) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(run.checkpoints.load().path(TRAINER), weights_only=True)["critic"][
        "weights"
    ]
    return weights


def assert_same(run: RunFolder, other: RunFolder) -> None:
    ours, theirs = told(run), told(other)
    assert [*ours] == [*theirs] == [1, 2]
    for step in ours:
        assert ours[step] == pytest.approx(theirs[step], rel=1e-3, abs=1e-5)
    weights = critic_of(other)
    assert all(torch.allclose(each, weights[name], atol=1e-4) for name, each in critic_of(run).items())


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with everybody in one place."""
    _, run = train(ppo(), tmp_path_factory.mktemp("together"))
    assert told(run)[2][1] > 0, "the policy has gone away from its reference"
    return run


@pytest.mark.parametrize(
    ("roles", "runtime"),
    [
        (APART, "local"),
        pytest.param(BOTH, "local", marks=pytest.mark.slow),
        pytest.param(APART, "ray", marks=pytest.mark.ray),
        pytest.param(BOTH, "ray", marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
    ids=["apart", "both", "apart on ray", "both on ray"],
)
def test_it_learns_the_same_wherever_they_sit_and_goes_on_with_them_elsewhere(
    roles: Roles, runtime: str, together: RunFolder, tmp_path: Path, request: pytest.FixtureRequest, born: Born
):
    if runtime == "ray":
        request.getfixturevalue("ray_session")
    _, run = train(ppo(roles, runtime=runtime), tmp_path)
    assert_same(run, together)
    go_on(ppo(), run.path, step=1)
    assert_same(RunFolder.read(run.path), together)
    other = Path(copytree(together.path, tmp_path / "other"))
    go_on(ppo(roles, runtime=runtime), other, step=1)
    assert_same(RunFolder.read(other), together)
    if runtime == "local":
        assert born() == set()


def test_a_critic_whose_process_is_killed_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, born: Born
):
    learn = Learning.train

    def killed(self: Learning, batch: Any) -> dict[str, float]:
        assert isinstance(self._roles, Spread)
        company = self._roles._places[-1]
        assert isinstance(company, Company)
        os.kill(company.processes.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]  # they are here
        return learn(self, batch)

    monkeypatch.setattr(Learning, "train", killed)
    with RunFolder.create(tmp_path, "small", "pipeline: agentic\n") as folder:
        run = Training(ppo(APART), folder, Notes())
        with pytest.raises(TrainError, match=r"trainer process 0 of 1, critic.train: its process was killed by SIGK"):
            asyncio.run(train_agent(run))
    assert born() == set()
