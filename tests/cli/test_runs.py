"""`windrow runs` and `windrow export`: what there is, and taking it out."""

import os
from pathlib import Path

import pytest
from tests.cli.given import Windrow
from tests.store.given import parts

from windrow.store.run import ABOUT, RunFolder


@pytest.fixture
def runs(folder: Path) -> list[RunFolder]:
    """One that was stopped, one that is finished; both closed."""
    made = []
    for name in ("first", "second"):
        with RunFolder.create(folder / "runs", name, "") as run:
            for step, score in [(1, 0.25), (2, 0.75), (3, 0.5)]:
                run.metrics.append(step, {"train/loss": 0.1})
                run.checkpoints.save(step, parts(step), score=score)
            run.metrics.append(4, {"train/loss": 0.1})
        made.append(run)
    with RunFolder.open(made[1].path) as run:
        run.write_result({"after": 0.5})
    return made


def test_runs_are_listed_with_how_far_they_came_and_how_good_they_are(windrow: Windrow, runs: list[RunFolder]):
    found = windrow("runs", "--json").result["runs"]
    assert [Path(run["run"]).name for run in found] == [run.path.name for run in runs]
    assert [run["state"] for run in found] == ["stopped", "finished"]
    for run in found:
        assert (run["step"], run["checkpoint"], run["score"], run["best"]) == (4, 3, 0.5, 0.75)


def test_people_read_the_same(windrow: Windrow, runs: list[RunFolder]):
    said = windrow("runs")
    assert said.code == 0
    (row,) = (line for line in said.out.splitlines() if runs[1].path.name in line)
    assert row.split()[1:6] == ["finished", "4", "3", "0.5", "0.75"]


def test_a_run_that_is_being_written_is_running(windrow: Windrow, runs: list[RunFolder]):
    with RunFolder.open(runs[0].path):
        assert windrow("runs", "--json").result["runs"][0]["state"] == "running"


def test_a_damaged_run_does_not_hide_the_others(windrow: Windrow, runs: list[RunFolder]):
    (runs[0].path / ABOUT).write_text("{", encoding="utf-8")
    said = windrow("runs")
    assert said.code == 0
    assert "damaged" in said.out
    assert runs[1].path.name in said.out
    assert f"{ABOUT} cannot be read" in said.err


def test_a_run_without_anything_is_listed(windrow: Windrow, folder: Path):
    RunFolder.create(folder / "other", "new", "").close()
    (run,) = windrow("runs", "other", "--json").result["runs"]
    assert (run["state"], run["step"], run["score"]) == ("stopped", None, None)


def test_no_runs_and_no_folder(windrow: Windrow, folder: Path):
    assert windrow("runs").line == "windrow: error: there is no folder runs; windrow train CONFIG begins a run"
    (folder / "runs").mkdir()
    assert windrow("runs").out == "no runs in runs\n"
    assert windrow("runs", "--json").result == {"runs": []}


def test_a_model_is_exported_by_the_path_or_the_name_of_its_run(windrow: Windrow, runs: list[RunFolder], folder: Path):
    run = runs[0].path
    for name, to in [(str(run), "one"), (run.name, "two")]:
        found = windrow("export", name, "--to", to, "--json").result
        assert (found["step"], found["score"], found["to"]) == (3, 0.5, to)
        assert (folder / to / "config.json").read_text(encoding="utf-8") == "3 "


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("latest", 3), ("2", 2)])
def test_which_checkpoint_is_exported_can_be_said(windrow: Windrow, runs: list[RunFolder], which: str, step: int):
    said = windrow("export", runs[0].path.name, "--to", "model", "--step", which)
    assert f"model has the model of step {step}, score" in said.out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["RUN", "--to", "model", "--step", "7"], 2, "no checkpoint of step 7; there are steps 2, 3"),
        (["RUN", "--to", "model", "--step", "last"], 2, "--step must be a step, best or latest, got 'last'"),
        (["RUN", "--to", "examples"], 2, "exists already"),
        (["nothing", "--to", "model"], 2, "there is no run nothing; the newest in runs is"),
        (["examples", "--to", "model"], 2, "examples is no run folder"),
        (["RUN"], 2, "--to"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    windrow: Windrow, runs: list[RunFolder], argv: list[str], code: int, words: str, folder: Path
):
    said = windrow("export", *(runs[0].path.name if word == "RUN" else word for word in argv))
    assert said.code == code
    assert words in said.line
    assert not os.path.lexists(folder / "model")
