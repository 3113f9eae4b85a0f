"""A process that is killed while it saves leaves its last checkpoint whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killing.py")


def killed(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_kill_before_any_operation_of_a_save_leaves_the_last_checkpoint_and_the_best(memory: Path):
    found = killed(memory, "everywhere")
    assert found["kills"] > 40, "files and folders are made, synced, renamed and removed"
    assert found["damage"] == [], "a half-written save is not even taken for a damaged one"
    assert len(found["left"]) == 2, "what the killed ones left was swept away"


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_any_time_loses_nothing_that_was_reported_as_saved(seed: int, memory: Path):
    found = killed(memory, 25, seed)
    assert found["steps"] >= 25
    assert found["damage"] == []


def test_a_kill_before_any_operation_of_an_export_leaves_a_whole_model_or_none(memory: Path):
    assert killed(memory, "export")["kills"] > 10
