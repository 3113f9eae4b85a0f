"""Going on with a run: with other settings, from another checkpoint, after a failure; what fails changes nothing."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.given import Windrow
from tests.cli.test_train import PATIENCE_S, _run_with_steps, only_run, write
from tests.pipelines.kit import small

from windrow.cli.main import main
from windrow.errors import EnvError
from windrow.pipelines.config import Saving, Validation
from windrow.rollout.scheduler import RolloutScheduler
from windrow.store.run import RunFolder

QUICK = Validation(tasks=4, every=1, at_once=4, greedy=False)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that has come to its end."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(
        yaml.safe_dump({**_plain(small(steps=2, validate=QUICK)), "runs": str(folder / "runs")})
    )
    assert main(["train", str(folder / "small.yaml")]) == 0
    return only_run(folder)


def _plain(file: object) -> dict[str, Any]:
    from windrow.types import to_plain

    found: dict[str, Any] = to_plain(file)
    return found


@pytest.fixture
def finished(two_steps: Path, folder: Path) -> Path:
    """A copy of it."""
    (folder / "runs").mkdir()
    return Path(shutil.copytree(two_steps, folder / "runs" / "small"))


def steps_of(run: Path) -> object:
    return yaml.safe_load((run / "config.yaml").read_text())["steps"]


def test_settings_that_a_run_goes_on_with_are_its_own_from_then_on(windrow: Windrow, finished: Path):
    seed = RunFolder.read(finished).origins["seed"]
    assert windrow("train", "--resume", str(finished), "steps=3").code == 0
    origins = RunFolder.read(finished).origins
    assert (steps_of(finished), origins["steps"], origins["seed"]) == (3, "command line", seed)
    again = windrow("train", "--resume", str(finished))
    assert f"run {finished} is finished; steps=N above 3 lets it go on" in again.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.tiny.hidden=64", "the network as (297, 64)"),
        ("train.loss.kl=0.1", "has no reference, which these settings need"),
        ("rollout.train_env_manager.group_size=2", "group_size"),
    ],
)
def test_settings_that_it_cannot_go_on_with_leave_a_finished_run_finished(
    override: str, words: str, windrow: Windrow, finished: Path
):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "console.log"}
    said = windrow("train", "--resume", str(finished), "steps=3", override)
    assert said.code in (1, 2), said.err
    assert words in said.err
    assert "go on with: " not in said.err
    assert RunFolder.read(finished).state == "finished"
    after = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "console.log"}
    assert after == before


def test_fewer_steps_than_it_has_made_are_refused(windrow: Windrow, finished: Path):
    (finished / "result.json").unlink()
    said = windrow("train", "--resume", str(finished), "steps=1")
    assert said.code == 2
    assert "steps must be 2 or more, got 1: so many updates has run" in said.err


def test_a_run_goes_on_from_an_earlier_checkpoint_and_sets_later_ones_aside(windrow: Windrow, finished: Path):
    said = windrow("train", "--resume", str(finished), "--step", "1", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out.splitlines()[-1])["steps"] == 2
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "aside-step-00000002",
        "step-00000001",
        "step-00000002",
    ]
    lines = [line.step for line in RunFolder.read(finished).metrics if "run/learn_s" in line.values]
    assert lines == [1, 2]


def test_the_best_checkpoint_can_be_gone_on_from_and_exported(windrow: Windrow, finished: Path):
    best = RunFolder.read(finished).checkpoints.best()
    assert best is not None
    assert windrow("export", str(finished), "--to", "best", "--step", "best").code == 0
    said = windrow("train", "--resume", str(finished), "--step", "best", "steps=3", "--json")
    assert said.code == 0, said.err
    assert f"goes on after step {best.step}" in (finished / "console.log").read_text()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--resume", "RUN", "--step", "7"], "no checkpoint of step 7; there are steps 1, 2"),
        (["--resume", "RUN", "--step", "last"], "--step must be a step, best or latest, got 'last'"),
        (["examples/demo.yaml", "--step", "1"], "--step needs --resume RUN"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_one_line(argv: list[str], words: str, windrow: Windrow, finished: Path):
    said = windrow("train", *(str(finished) if word == "RUN" else word for word in argv))
    assert said.code == 2
    assert words in said.err
    assert RunFolder.read(finished).state == "finished"


def test_a_failure_is_in_the_log_and_says_how_to_go_on(
    windrow: Windrow, finished: Path, monkeypatch: pytest.MonkeyPatch
):
    get_batch = RolloutScheduler.get_batch

    async def failing(self: RolloutScheduler, data: Any, size: int) -> Any:
        if self.mode == "train" and data.meta_info["global_step"] == 3:
            logging.getLogger("windrow.rollout").warning("the ice is thin\nand this is where")
            raise EnvError("the lake is dry")
        return await get_batch(self, data, size)

    monkeypatch.setattr(RolloutScheduler, "get_batch", failing)
    said = windrow("train", "--resume", str(finished), "steps=4", "save.every=0")
    assert said.code == 1
    assert "windrow: warning: the ice is thin\n" in said.err
    assert f"failed, 3 updates are saved; go on with: windrow train --resume {finished}" in said.err
    assert said.err.count("the lake is dry") == 1
    log = (finished / "console.log").read_text()
    assert "ERROR windrow.cli.train: the run failed: the lake is dry" in log
    assert "Traceback" in log


def test_sigterm_saves_what_there_is_and_says_how_to_go_on(folder: Path):
    config = write(folder, small(steps=10**6, save=Saving(every=0), validate=Validation(tasks=4, every=0)))
    command = [sys.executable, "-m", "windrow", "train", config]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as it:
        try:
            run = _run_with_steps(folder, 2)
            it.send_signal(signal.SIGTERM)
            _, err = it.communicate(timeout=PATIENCE_S)
        finally:
            it.kill()
    assert it.returncode == 143, err
    made = RunFolder.read(run).checkpoints.steps()
    assert made[-1] >= 2
    assert f"stopped after {made[-1]} updates; go on with: windrow train --resume runs/{run.name}" in err
