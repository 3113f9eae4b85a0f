"""The run folder: whole from its beginning, written by one, read by all."""

import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.store.given import parts

from windrow.errors import ConfigError, DataError, Refused
from windrow.store.checkpoints import Keep
from windrow.store.run import ABOUT, LOCK, RunFolder, find_run, runs_in

HOLDER = Path(__file__).with_name("holding.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def run(root: Path) -> Iterator[RunFolder]:
    with RunFolder.create(root, "demo", "steps: 5\n", {"steps": "demo.yaml:1"}) as made:
        yield made


def test_a_run_has_its_configuration_origins_and_versions_from_the_beginning(run: RunFolder):
    assert run.config_file.read_text(encoding="utf-8") == "steps: 5\n"
    assert run.origins == {"steps": "demo.yaml:1"}
    assert {"windrow", "python", "platform", "numpy", "torch"} <= run.versions.keys()
    assert run.about.name == "demo"
    assert run.path.name.startswith("demo-20")


def test_versions_are_found_without_importing_anything_heavy():
    program = "import sys; from windrow.store.versions import versions; versions(); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'torch'" not in done.stdout


def test_many_runs_begun_at_once_have_folders_of_their_own(root: Path):
    with ThreadPoolExecutor(8) as pool:
        runs = [*pool.map(lambda _: RunFolder.create(root, "demo", ""), range(24))]
    assert len({run.path for run in runs}) == 24
    assert sorted(run.path for run in runs) == runs_in(root)
    for run in runs:
        run.close()


def test_a_run_that_cannot_be_begun_leaves_nothing(root: Path):
    with pytest.raises(UnicodeEncodeError):
        RunFolder.create(root, "demo", "\ud800")
    assert [*root.iterdir()] == []


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "ä"])
def test_a_run_has_a_plain_name(root: Path, name: str):
    with pytest.raises(ConfigError, match="a run cannot be called"):
        RunFolder.create(root, name, "")
    assert not root.exists()


def test_folders_that_are_no_runs_are_not_listed(root: Path, run: RunFolder):
    (root / "empty").mkdir()
    (root / ".demo-x.new").mkdir()
    (root / ".demo-x.new" / ABOUT).touch()
    assert runs_in(root) == [run.path]


def test_settings_that_it_goes_on_with_take_the_place_of_those_before(run: RunFolder):
    run.configure("steps: 9\n", {"steps": "command line"})
    seen = RunFolder.read(run.path)
    assert seen.config_file.read_text(encoding="utf-8") == "steps: 9\n"
    assert seen.origins == {"steps": "command line"}
    with pytest.raises(Refused, match="open for reading alone"):
        seen.configure("", {})


def test_a_run_that_begins_anew_tells_its_first_step_once(run: RunFolder):
    for step in (0, 1):
        run.metrics.append(step, {"validation/success": 0.5})
    run.rewind(None)
    assert [*run.metrics] == []


@contextmanager
def held(run: Path, *more: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Another process that has taken this run, and its pid as it says it."""
    command = [sys.executable, str(HOLDER), str(run), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_a_run_is_written_by_one_process_and_the_other_learns_by_which(run: RunFolder):
    run.close()
    with held(run.path) as (_, pid):
        with pytest.raises(Refused, match=f"is being written by process {pid}; wait until it ends"):
            RunFolder.open(run.path)
        seen = RunFolder.read(run.path)
        assert (seen.state, str(seen.owner)) == ("running", f"process {pid}")
    assert RunFolder.read(run.path).state == "stopped"
    RunFolder.open(run.path).close()


def test_a_run_whose_process_was_killed_can_be_taken_at_once(run: RunFolder):
    run.close()
    with held(run.path) as (process, _):
        process.kill()
        process.wait()
        assert RunFolder.read(run.path).state == "stopped"
        RunFolder.open(run.path).close()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_run(run: RunFolder):
    run.close()
    with held(run.path, "fork") as (process, _):
        process.kill()
        process.wait()
        assert RunFolder.read(run.path).owner is None
        RunFolder.open(run.path).close()


def test_the_same_process_cannot_take_a_run_twice(run: RunFolder):
    with pytest.raises(Refused, match="is being written by process"):
        RunFolder.open(run.path)
    run.metrics.append(1, {})
    assert run.state == "running", "the refusal took nothing away"


def test_a_look_that_is_under_way_does_not_keep_others_from_taking_a_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    run.close()
    look = os.open(run.path / LOCK, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)  # as `owner_of` holds it, for a moment
    monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))  # which is over at the first pause
    RunFolder.open(run.path).close()
    os.close(look)


def test_who_reads_does_not_write(run: RunFolder):
    seen = RunFolder.read(run.path)
    for write in (lambda: seen.write_result({}), lambda: seen.rewind(0), lambda: seen.record(1, [])):
        with pytest.raises(Refused, match="open for reading alone"):
            write()


def test_no_such_run_names_the_nearest(run: RunFolder, root: Path):
    meant = run.path.with_name(run.path.name[:-1] + "x")
    with pytest.raises(ConfigError, match=f"there is no run {meant}; did you mean {run.path}"):
        RunFolder.open(meant)
    with pytest.raises(ConfigError, match=f"there is no run {root}/zzz; the newest in {root} is {run.path.name}"):
        RunFolder.read(root / "zzz")
    with pytest.raises(ConfigError, match=r"there is no run /nowhere/at/all$"):
        RunFolder.read("/nowhere/at/all")


def test_what_is_no_run_folder_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match=f"{path} is no run folder, it has no run.json"):
            RunFolder.open(path)


def test_a_run_of_another_format_is_refused_and_a_damaged_one_too(run: RunFolder):
    run.close()
    about = run.path / ABOUT
    about.write_text(about.read_text(encoding="utf-8").replace('"format":1', '"format":7'), encoding="utf-8")
    with pytest.raises(ConfigError, match="has format 7; this version reads format 1"):
        RunFolder.open(run.path)
    about.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"run.json cannot be read"):
        RunFolder.open(run.path)


def test_a_run_is_found_by_its_path_or_its_name(run: RunFolder, root: Path):
    assert find_run(str(run.path), "elsewhere") == run.path
    assert find_run(run.path.name, root) == run.path
    with pytest.raises(ConfigError, match="did you mean"):
        find_run(run.path.name + "0", root)


def test_a_result_makes_a_run_finished(run: RunFolder):
    assert run.result is None
    run.write_result({"after": 0.9, "steps": 3})
    run.write_result({"after": 0.95, "steps": 4})
    run.close()
    seen = RunFolder.read(run.path)
    assert (seen.result, seen.state) == ({"after": 0.95, "steps": 4}, "finished")
    assert [path.name for path in run.path.glob("*.tmp")] == []


def test_trajectories_are_kept_by_step_exactly(run: RunFolder):
    run.record(3, [trajectory(0, 0), trajectory(0, 1)])
    run.record(3, [trajectory(1, 0)])
    run.record(12, [])
    assert run.recorded_steps() == [3, 12]
    found = [*RunFolder.read(run.path).recording(3)]
    assert [str(one.attempt) for one in found] == ["g0.a0", "g0.a1", "g1.a0"]
    assert found[0].chains[0].token_ids.tolist() == trajectory(0, 0).chains[0].token_ids.tolist()
    with pytest.raises(DataError, match="there is no recording"):
        run.recording(4)


def test_a_run_that_goes_on_tells_every_step_once(run: RunFolder, caplog: pytest.LogCaptureFixture):
    for step in range(1, 5):
        run.metrics.append(step, {"loss": 1 / step})
        run.record(step, [trajectory(step)])
        run.checkpoints.save(step, parts(step), keep=True)
    run.write_result({})
    run.close()
    with RunFolder.open(run.path) as again:
        again.rewind(2)
        assert [line.step for line in again.metrics] == [1, 2]
        assert again.recorded_steps() == [1, 2]
        assert again.checkpoints.steps() == [1, 2]
        assert again.result is None
    assert "aside-step-00000003" in caplog.text


def test_what_a_killed_save_left_is_removed_when_the_run_is_taken_again(run: RunFolder):
    run.checkpoints.save(1, parts(1))
    run.close()
    half = run.path / "checkpoints" / ".saving-2-99"
    half.mkdir()
    (half / "trainer.pt").touch()
    RunFolder.open(run.path).close()
    assert [path.name for path in half.parent.iterdir()] == ["step-00000001"]


def test_how_many_checkpoints_are_kept_is_said_when_a_run_is_taken(root: Path):
    with RunFolder.create(root, "demo", "", keep=Keep(last=1)) as run:
        for step in (1, 2):
            run.checkpoints.save(step, parts(step))
    assert run.checkpoints.steps() == [2]
    with RunFolder.open(run.path, keep=Keep(last=3)) as again:
        for step in (3, 4, 5):
            again.checkpoints.save(step, parts(step))
    assert again.checkpoints.steps() == [3, 4, 5]


def test_going_on_with_other_software_is_said(run: RunFolder, caplog: pytest.LogCaptureFixture):
    run.close()
    path = run.path / "versions.json"
    path.write_text(json.dumps({**run.versions, "torch": "0.1", "ancient": "2"}), encoding="utf-8")
    RunFolder.open(run.path).close()
    assert "torch was 0.1 and is" in caplog.text
    assert "ancient was 2 and is missing" in caplog.text
    assert "numpy" not in caplog.text


def test_what_windrow_says_is_in_the_log_of_the_run(run: RunFolder):
    ours = logging.getLogger("windrow.somewhere")
    before = logging.getLogger("windrow").level
    with run.logged():
        ours.info("step %d", 7)
        ours.debug("nobody needs this")
    ours.info("afterwards")
    said = run.log_file.read_text(encoding="utf-8")
    assert said.rstrip().endswith("INFO windrow.somewhere: step 7")
    assert said.count("\n") == 1
    assert logging.getLogger("windrow").level == before
