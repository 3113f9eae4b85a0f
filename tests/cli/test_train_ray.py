"""`windrow train runtime=ray`: the same command, and nothing is left of it however it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from tests.cli.given import Windrow
from tests.cli.test_interrupt import interrupted
from tests.cli.test_train import only_run, write
from tests.isolation.kit import descendants
from tests.pipelines.kit import small

from windrow.pipelines.config import Agentic
from windrow.store.run import RunFolder
from windrow.types import but

pytestmark = pytest.mark.ray

PATIENCE_S = 150.0
STEPS = 4


def on_ray(**more: object) -> Agentic:
    return but(small(**{"steps": STEPS} | more), runtime="ray")


def test_a_run_with_trainers_and_engines_in_hosts_ends_like_one_in_a_process(windrow: Windrow, folder: Path):
    file = on_ray(steps=2, devices=2)
    said = windrow("train", write(folder, but(file, train=but(file.train, processes=1))), "--json")
    assert said.code == 0, said.err
    assert "Ray's own logs: /" in said.err
    found = json.loads(said.out.splitlines()[-1])
    assert (found["steps"], found["heldout_tasks"], found["overlap"]) == (2, 16, 0)
    assert found["ledger"]["train"]["attempts"]["trained"] == 2 * 16
    assert found["ledger"]["train"]["attempts"]["alive"] == 0


def test_ctrl_c_stops_it_cleanly_and_it_goes_on_where_it_was(windrow: Windrow, folder: Path):
    said = interrupted(folder, ("train", write(folder, on_ray()), "--json"), "this step", times=2)
    assert said.code == 130, said.err
    run = only_run(folder).relative_to(folder)
    assert f"go on with: windrow train --resume {run}" in " ".join(said.err.split())
    resumed = windrow("train", "--resume", str(run), "--json")
    assert resumed.code == 0, resumed.err
    trained = [line.step for line in RunFolder.read(run).metrics if "train/steps" in line.values]
    assert trained == [*range(1, STEPS + 1)]


def test_nothing_is_left_of_a_run_whose_driver_is_killed(folder: Path):
    config = write(folder, on_ray(steps=1000))
    it = subprocess.Popen([sys.executable, "-m", "windrow", "train", config], cwd=folder, stderr=subprocess.DEVNULL)
    started: set[int] = set()
    try:
        until = monotonic() + 2 * PATIENCE_S
        while monotonic() < until and not _has_trained(folder):
            started |= {*descendants(it.pid)}
            sleep(0.2)
        assert _has_trained(folder)
    finally:
        it.send_signal(signal.SIGKILL)
        it.wait()
    assert len(started) > 3, "Ray's processes were not seen"
    until = monotonic() + PATIENCE_S
    while monotonic() < until and (left := [pid for pid in started if _lives(pid)]):
        sleep(0.2)
    assert left == []


def _has_trained(folder: Path) -> bool:
    runs = [*(folder / "runs").glob("small*")]
    return bool(runs) and bool([*RunFolder.read(runs[0]).metrics])


AGENTS = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")
"""Of Ray itself: they look every minute or so whether their node is still there, and end then."""


def _lives(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes()
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text("ascii") and not name.startswith(AGENTS)
    except (FileNotFoundError, ProcessLookupError):
        return False
