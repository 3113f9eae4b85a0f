"""Every promise of the contract suite is played over real Ray actors, or it is written down why not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rollout.conftest import ON_RAY
from tests.rollout.ray.left_out import NOT_NEXT_DOOR, NOT_ON_RAY

pytest.importorskip("ray")

ROLLOUT = Path(__file__).parents[1]


def promises() -> set[tuple[str, str]]:
    """File and name of each test of the suite."""
    files = [file for file in ROLLOUT.glob("test_*.py") if file.name.startswith(ON_RAY)]
    return {
        (file.name, node.name)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def played_on_ray() -> set[tuple[str, str]]:
    """The same of those that pytest would play on Ray."""
    files = sorted({str(ROLLOUT / file) for file, _ in promises()})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "ray", "-p", "no:cacheprovider", *files],
        cwd=ROLLOUT.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = [line.rpartition("/")[2].partition("::") for line in done.stdout.splitlines() if "[on ray" in line]
    return {(file, test.partition("[")[0]) for file, _, test in found}


def test_every_promise_of_the_contract_is_played_on_ray_or_left_out_with_a_reason():
    left_out = {(file, name) for file, name in promises() if name in NOT_ON_RAY}
    assert promises() - played_on_ray() == left_out
    assert {file for file, _ in promises()} >= {file.name for file in ROLLOUT.glob("test_contract_*.py")}


def test_whatever_is_left_out_exists_and_says_why():
    names = {name for _, name in promises()}
    assert [*filter(lambda name: name not in names, NOT_ON_RAY)] == []
    assert NOT_NEXT_DOOR.items() <= NOT_ON_RAY.items()
    assert all(len(why.split()) > 5 for why in NOT_ON_RAY.values())
