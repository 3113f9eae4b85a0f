"""`windrow doctor CONFIG`: whether trainer and engine of a training file agree, before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.given import Windrow
from tests.pipelines.kit import small

from windrow.pipelines.config import Cloning
from windrow.train import weights
from windrow.train.config import LossConfig, TrainConfig
from windrow.types import but, to_plain


@pytest.fixture
def config(folder: Path) -> str:
    """On two devices with a trainer process, and groups that a policy without a warm start never has."""
    file = small(devices=2, train=TrainConfig(processes=1))
    varied = but(file.rollout.train_env_manager, filter="varied")
    file = but(file, rollout=but(file.rollout, train_env_manager=varied))
    (folder / "small.yaml").write_text(yaml.safe_dump(to_plain(file)))
    return "small.yaml"


def test_a_chain_that_is_whole_is_said_to_be(config: str, windrow: Windrow, folder: Path):
    said = windrow("doctor", config, "--json")
    assert said.code == 0, said.err
    assert [(each["name"], each["state"]) for each in said.result["checks"]] == [
        ("idle update", "ok"),
        ("old and new", "ok"),
        ("trainer and engine", "ok"),
    ]
    assert not (folder / "runs").exists()


def test_an_engine_with_other_weights_is_found(config: str, windrow: Windrow, monkeypatch: pytest.MonkeyPatch):
    """Somewhere on their way to the engine the weights become smaller, and their checksum is made afterwards."""
    whole = weights.engine_weights

    def other(*args: Any, **settings: Any) -> Any:
        return {name: 0.9 * each for name, each in whole(*args, **settings).items()}

    monkeypatch.setattr(weights, "engine_weights", other)
    said = windrow("doctor", config, "--json")
    assert said.code == 1, said.err
    last = said.result["checks"][-1]
    assert (last["name"], last["state"]) == ("trainer and engine", "bad")
    assert "compare their weights, dtype and temperature" in last["advice"]


def test_a_loss_that_asks_engines_can_be_tried_too(windrow: Windrow, folder: Path):
    train = TrainConfig(loss=LossConfig(kind="topr"))
    (folder / "topr.yaml").write_text(yaml.safe_dump(to_plain(small(train=train))))
    assert windrow("doctor", "topr.yaml", "seed=1").code == 0


def test_a_file_without_a_chain_is_refused(windrow: Windrow, folder: Path):
    (folder / "sft.yaml").write_text(yaml.safe_dump(to_plain(Cloning())))
    said = windrow("doctor", "sft.yaml")
    assert said.code == 2
    assert "pipeline sft trains on nothing that an engine sampled" in said.err
