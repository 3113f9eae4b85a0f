"""The command in a folder of its own."""

from pathlib import Path

import pytest
from tests.cli.given import EXAMPLES, Said, Windrow

from windrow.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: nothing is in it but the examples."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def windrow(folder: Path, capsys: pytest.CaptureFixture[str]) -> Windrow:
    """Runs the command there."""

    def run(*argv: str) -> Said:
        code = main(argv)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
