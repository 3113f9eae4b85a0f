"""Every example runs as it is written."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_runs_as_it_is_written(script: Path, capsys: pytest.CaptureFixture[str]):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip(), "it says what it did"


def test_collecting_batches_takes_at_most_forty_lines():
    lines = (ROOT / "examples" / "collect_batches.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
