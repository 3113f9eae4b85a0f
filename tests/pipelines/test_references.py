"""What the distance from the reference is measured from: the beginning, or a model of its own."""

from pathlib import Path

import pytest
from tests.pipelines.kit import Notes, exact, small, train

from windrow.errors import ConfigError
from windrow.pipelines.config import Agentic
from windrow.train.config import TrainConfig
from windrow.types import but


def held(reference: str = "", processes: int = 0, **more: object) -> Agentic:
    """A run of two steps that is held near a reference."""
    file = exact(small(steps=2, **more))
    loss = but(file.train.loss, kl=0.1)
    return but(file, train=but(file.train, loss=loss, reference=reference, processes=processes))


def distances(file: Agentic, root: Path) -> list[float]:
    notes = Notes()
    train(file, root, notes)
    return [report.metrics["train/kl"] for report in notes.steps]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of another run."""
    _, run = train(small(steps=1, seed=7, warm_start=None), tmp_path_factory.mktemp("other"))
    return run.path


def test_the_distance_from_another_model_is_not_that_from_the_beginning(other: Path, tmp_path: Path):
    start = distances(held(), tmp_path / "start")
    assert start[0] == pytest.approx(0.0, abs=1e-6)
    (checkpoint,) = (other / "checkpoints").glob("step-*")
    from_run = distances(held(str(other)), tmp_path / "run")
    assert from_run[0] > 0.01
    assert from_run == distances(held(str(checkpoint)), tmp_path / "checkpoint")
    assert from_run == distances(held(str(checkpoint / "model")), tmp_path / "model")


@pytest.mark.slow
def test_trainer_processes_compare_with_the_same_model(other: Path, tmp_path: Path):
    here, there = (distances(held(str(other), processes), tmp_path / str(processes)) for processes in (0, 1))
    assert there == pytest.approx(here, rel=1e-3)


def test_a_reference_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"train\.reference is nowhere, which is no model; give a folder that"):
        train(held("nowhere"), tmp_path)


def test_a_reference_with_other_tokens_is_refused(other: Path, tmp_path: Path):
    file = held(str(other))
    tiny = but(file.model.tiny, vocabulary=262)
    with pytest.raises(ConfigError, match="another tokenizer than the model"):
        train(but(file, model=but(file.model, tiny=tiny)), tmp_path)


def test_a_reference_that_nobody_asks_is_refused():
    with pytest.raises(ConfigError, match=r"nobody asks; set train\.loss\.kl or kl_in_reward"):
        TrainConfig(reference="somewhere")
