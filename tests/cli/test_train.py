"""`windrow train` as a whole: it tells what it does, and whatever ends it, it goes on from what it had saved."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest
import yaml
from tests.cli.given import Windrow
from tests.cli.test_interrupt import interrupted
from tests.pipelines.kit import LESSON, exact, losses, small

from windrow.cli.output import Output
from windrow.cli.train import _opened_ground
from windrow.cluster.local import ResourceManager
from windrow.cluster.ray.session import RayConfig, Session
from windrow.pipelines import grounds
from windrow.pipelines.config import Agentic
from windrow.pipelines.grounds import Ground
from windrow.store.run import RunFolder
from windrow.types import but, to_plain

STEPS = 6
PATIENCE_S = 120.0


def write(folder: Path, file: Agentic) -> str:
    """A configuration as a file of the folder."""
    (folder / "small.yaml").write_text(yaml.safe_dump(to_plain(file)))
    return "small.yaml"


def only_run(folder: Path) -> Path:
    [path] = (folder / "runs").iterdir()
    return path


def test_a_run_gives_what_scripts_rely_on(windrow: Windrow, folder: Path):
    said = windrow("train", write(folder, small(steps=2)), "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out.splitlines()[-1])
    run = Path(found["run"])
    assert run == only_run(folder).relative_to(folder)
    assert (found["steps"], found["heldout_tasks"], found["overlap"]) == (2, 16, 0)
    assert all(0 <= found[name] <= 1 for name in ("before", "after", "before_greedy", "after_greedy"))
    assert found["ledger"]["train"]["attempts"]["trained"] == 2 * 16
    assert [point["step"] for point in found["curve"]] == [0, 2]
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.optimzer.lr=1", "command line: unknown setting train.optimzer; did you mean train.optimizer?"),
        ("rollout.train_env_manager.env_args.sise=4", "unknown setting frozen_lake.sise; did you mean size?"),
        ("warm_start.env_args.sise=4", "unknown setting frozen_lake.sise; did you mean size?"),
    ],
)
def test_a_misspelt_setting_is_found_before_there_is_a_run_folder(
    override: str, words: str, windrow: Windrow, folder: Path
):
    said = windrow("train", write(folder, small()), override)
    assert said.code == 2
    assert words in said.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:{free}", "no Ray cluster answers at"),
        ("ray://head:10001", "auto or HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_soon_and_leaves_no_run_folder(address: str, words: str, folder: Path):
    config = write(folder, but(small(), runtime="ray"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = address.format(free=nobody.getsockname()[1])
        command = [sys.executable, "-m", "windrow", "train", config, f"ray.address={there}"]
        # in a process of its own: whoever is connected to Ray stays connected
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (said.returncode, "Traceback" in said.stderr) == (2, False)
    assert words in " ".join(said.stderr.split())
    assert not (folder / "runs").exists()


def test_the_first_line_is_said_before_anything_heavy_is_loaded(folder: Path):
    code = (
        "import sys\n"
        "from windrow.cli.main import main\n"
        "from windrow.cli.output import Output\n"
        "Output.say = lambda self, text: (print(text, 'torch' in sys.modules), sys.exit())\n"
        f"main(['train', '{write(folder, small())}'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == "windrow train: small.yaml False\n"


def test_ctrl_c_stops_it_cleanly_and_it_goes_on_where_it_was(windrow: Windrow, folder: Path):
    config = write(folder, small(steps=STEPS))
    said = interrupted(folder, ("train", config, "--json"), "s/step", times=3)
    assert said.code == 130, said.err
    run = only_run(folder).relative_to(folder)
    assert f"go on with: windrow train --resume {run}" in " ".join(said.err.split())
    assert said.out == ""
    made = RunFolder.read(run).checkpoints.steps()[-1]
    assert 0 < made < STEPS, "it was interrupted too late to tell"
    resumed = windrow("train", "--resume", str(run), "--json")
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out.splitlines()[-1])["steps"] == STEPS
    lines = [line.step for line in RunFolder.read(run).metrics if "run/learn_s" in line.values]
    assert lines == [*range(1, STEPS + 1)]


def test_ctrl_c_is_heard_in_the_warm_start_too(folder: Path):
    lesson = but(LESSON, supervised=but(LESSON.supervised, steps=10**6))
    config = write(folder, small(warm_start=lesson))
    said = interrupted(folder, ("train", config), "loss")
    assert said.code == 130, said.err
    assert "stopped before the first update" in " ".join(said.err.split())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_is_killed_at_any_moment_comes_to_the_same_numbers(seed: int, windrow: Windrow, folder: Path):
    config = write(folder, exact(small(steps=STEPS)))
    rng = Random(seed)
    with subprocess.Popen(
        [sys.executable, "-m", "windrow", "train", config], cwd=folder, stderr=subprocess.DEVNULL
    ) as it:
        try:
            run = _run_with_steps(folder, rng.randint(2, 4))
            sleep(0.3 * rng.random())
        finally:
            it.send_signal(signal.SIGKILL)
    made = RunFolder.read(run).checkpoints.steps()[-1]
    assert made < STEPS, "it was killed too late to tell"
    assert windrow("train", "--resume", str(run)).code == 0
    assert windrow("train", config, "name=undisturbed").code == 0
    [other] = (folder / "runs").glob("undisturbed*")
    found = losses(RunFolder.read(run))
    assert found == losses(RunFolder.read(other))
    assert any(step > made for step in found), "nothing was learnt after the kill, so nothing was compared"


def _run_with_steps(folder: Path, steps: int) -> Path:
    """The run in this folder, once it has made so many steps."""
    until = monotonic() + PATIENCE_S
    while monotonic() < until:
        for run in (folder / "runs").glob("small*"):
            if len([line for line in RunFolder.read(run).metrics if "run/learn_s" in line.values]) >= steps:
                return run
        sleep(0.01)
    raise AssertionError(f"no {steps} steps within {PATIENCE_S:g} s in {folder}")


def test_what_auto_has_found_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    found = Session(started=False, connected=False, logs=Path(), address="10.0.0.7:6379")
    monkeypatch.setattr(grounds, "open_ground", lambda _: Ground(ResourceManager(1), found))
    joined = but(small(), runtime="ray", ray=RayConfig(address="auto"))
    _opened_ground(joined, Output())
    said = capsys.readouterr()
    assert "joined 10.0.0.7:6379" in said.out + said.err
