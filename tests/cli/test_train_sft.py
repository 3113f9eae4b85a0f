"""`windrow train` with `pipeline: sft`: it is stopped, goes on and is refused like any other run."""

from pathlib import Path

import pytest
import yaml
from tests.cli.given import Windrow
from tests.cli.test_interrupt import interrupted
from tests.pipelines.test_sft import lesson

from windrow.store.run import RunFolder
from windrow.types import to_plain


def write(folder: Path, steps: int) -> str:
    (folder / "lesson.yaml").write_text(yaml.safe_dump(to_plain(lesson(steps))))
    return "lesson.yaml"


def only_run(folder: Path) -> str:
    [path] = (folder / "runs").iterdir()
    return str(path.relative_to(folder))


def test_a_finished_lesson_goes_on_with_more_steps(windrow: Windrow, folder: Path):
    first = windrow("train", write(folder, 2), "--json")
    assert first.code == 0, first.err
    run = only_run(folder)
    again = windrow("train", "--resume", run)
    assert again.code == 2
    assert "is finished; demonstrations.supervised.steps=N above 2 lets it go on" in " ".join(again.err.split())
    longer = windrow("train", "--resume", run, "demonstrations.supervised.steps=4", "--json")
    assert longer.code == 0, longer.err
    lines = RunFolder.read(run).metrics
    assert [line.step for line in lines if "supervised/loss" in line.values] == [1, 2, 3, 4]


def test_ctrl_c_keeps_what_was_learnt(folder: Path):
    said = interrupted(folder, ("train", write(folder, 10**6), "save.every=0"), "loss", times=3)
    assert said.code == 130, said.err
    made = RunFolder.read(folder / only_run(folder))
    assert "go on with: windrow train --resume" in " ".join(said.err.split())
    last = max(line.step for line in made.metrics)
    assert made.checkpoints.steps()[-1] == last


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.path=nowhere", "model folder nowhere has no config.json"),
        ("demonstrations.recording=nowhere.rec", "recording nowhere.rec is not there"),
        ("validate.how=aside", "validate.how aside needs engines that go on meanwhile"),
        ("save.trajectories=3", "save.trajectories 3 cannot be kept"),
    ],
)
def test_what_cannot_work_leaves_no_run_folder(override: str, words: str, windrow: Windrow, folder: Path):
    said = windrow("train", write(folder, 2), override)
    assert said.code == 2
    assert words in " ".join(said.err.split())
    assert not (folder / "runs").exists()
