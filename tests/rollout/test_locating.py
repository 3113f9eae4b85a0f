"""Where the environments of somebody's own are looked for."""

from pathlib import Path

import pytest

from windrow.rollout.env_config import EnvConfig
from windrow.rollout.locating import located_env


def test_the_working_directory_comes_first_and_then_the_folder_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in here, there:
        folder.mkdir()
        (folder / "mine.py").touch()
    monkeypatch.chdir(here)
    named = EnvConfig(env="mine.py:Mine")
    assert located_env(named, there).env == f"{here / 'mine.py'}:Mine"
    (here / "mine.py").unlink()
    assert located_env(named, there).env == f"{there / 'mine.py'}:Mine"
    (there / "mine.py").unlink()
    assert located_env(named, there) == named, "whoever loads it complains"
