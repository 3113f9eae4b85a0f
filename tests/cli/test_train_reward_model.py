"""`windrow train` with a reward model that a file names."""

import json
from pathlib import Path

import pytest
from tests.cli.given import Windrow
from tests.rewards.given_model import save_reward_model

from windrow.store.run import RunFolder

FILE = """
pipeline: agentic
name: judged
steps: 2
model: {tiny: {hidden: 32, layers: 1, context: 256, texts: 16}}
rollout:
  rollout_batch_size: 8
  train_env_manager:
    env: guess
    reward: {env: 1.0, model: 0.5}
    reward_args: {model: {path: judge}}
    num_env_groups: 2
    group_size: 4
    sampling: {max_tokens: 6}
validate: {tasks: 4, every: 0}
"""


@pytest.fixture
def config(folder: Path) -> str:
    save_reward_model(folder / "judge")
    (folder / "judged.yaml").write_text(FILE, encoding="utf-8")
    return "judged.yaml"


@pytest.mark.parametrize(
    "placed",
    [
        pytest.param((), id="anywhere"),
        pytest.param(("devices=2", "roles.reward.device_mapping=1"), id="on a device"),
        pytest.param(("devices=2", "roles.reward.device_mapping=1", "runtime=ray"), id="on Ray", marks=pytest.mark.ray),
    ],
)
def test_what_the_model_says_is_part_of_the_score(placed: tuple[str, ...], windrow: Windrow, config: str, folder: Path):
    said = windrow("train", config, *placed, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out.splitlines()[-1])
    assert (found["steps"], found["ledger"]["train"]["attempts"]["trained"]) == (2, 16)
    lines = [line for line in RunFolder.read(found["run"]).metrics if "train/steps" in line.values]
    assert lines
    assert all(line.values["reward/part/model/mean"] != 0.0 for line in lines)


def test_a_model_that_is_not_there_is_told_before_there_is_a_run_folder(windrow: Windrow, config: str, folder: Path):
    said = windrow("train", config, "rollout.train_env_manager.reward_args.model.path=nowhere")
    assert said.code == 2
    assert "reward model nowhere has no config.json" in " ".join(said.err.split())
    assert not (folder / "runs").exists()
