"""Two nodes, of which one is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.ray
def test_a_run_on_two_nodes_survives_the_loss_of_one_in_the_middle_of_a_step(tmp_path: Path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.rollout.ray.two_nodes", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes"] == 2, "those who play were not spread over both nodes"
    assert found["sizes"] == [32] * 5
    assert len(found["lost_engines"]) == 2
    assert found["balance"] == 0
