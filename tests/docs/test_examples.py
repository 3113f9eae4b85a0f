"""Every example runs: scripts as they are written, files for the command with less of everything."""

import json
import runpy
from pathlib import Path

import pytest

from windrow.cli.main import main

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
LESS = {
    "rollout": ["batches=1", "rollout.rollout_batch_size=16"],
    "simulate": ["steps=2", "seeds=1"],
    "train": [
        "steps=1", "validate.tasks=6", "validate.every=1", "model.tiny.texts=8", "rollout.rollout_batch_size=16",
        "rollout.train_env_manager.filter=none", "rollout.train_env_manager.num_env_groups=4",
        "warm_start.episodes=12", "warm_start.supervised.steps=1",
    ],
}  # fmt: skip
"""What an example is cut down to, by its command."""
ALSO = {
    "sim/ten_thousand_engines.yaml": ["engines.count=100", "slots=1000", "machine.train.batch_size=320"],
    "train/rlvr.yaml": ["train.processes=0"],
    "train/sokoban.yaml": ["train.processes=0"],
}
"""What some of them can do with less of as well."""
COMMANDS = {"demo.yaml": "train", "train": "train", "ray": "train", "rollout": "rollout", "sim": "simulate"}
"""Which command a file is for, by the first part of its path."""


def cases() -> list[object]:
    """Each file with its command; what needs Ray is run where Ray is."""
    return [
        pytest.param(COMMANDS[name.split("/")[0]], name, id=name, marks=[pytest.mark.ray] if "ray/" in name else [])
        for name in sorted(str(path.relative_to(ROOT / "examples")) for path in ROOT.glob("examples/**/*.yaml"))
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_runs_as_it_is_written(script: Path, capsys: pytest.CaptureFixture[str]):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip(), "it says what it did"


@pytest.mark.parametrize(("command", "name"), cases())
def test_a_file_runs_with_less_of_everything(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main([command, str(ROOT / "examples" / name), *LESS[command], *ALSO.get(name, []), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    if command == "train":
        assert found["steps"] == 1
        assert found["ledger"]["train"]["attempts"]["trained"] >= 16
        assert {*found.get("domains", {})} == ({"math", "code", "general"} if "rlvr" in name else set())


def test_collecting_batches_takes_at_most_forty_lines():
    lines = (ROOT / "examples" / "collect_batches.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
