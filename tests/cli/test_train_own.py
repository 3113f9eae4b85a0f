"""`windrow train` and `windrow rollout` with an environment of somebody's own, which a file names."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.given import Windrow
from tests.cli.test_train import only_run

from windrow.store.run import RunFolder

FILE = """
pipeline: agentic
name: own
steps: 2
model: {tiny: {hidden: 32, layers: 1, context: 256, texts: 16}}
rollout:
  rollout_batch_size: 8
  train_env_manager:
    env: mine/caesar.py:Caesar
    env_args: {tries: 2}
    num_env_groups: 2
    group_size: 4
    sampling: {max_tokens: 6}
warm_start: {episodes: 8, supervised: {steps: 2}}
validate: {tasks: 4, every: 0}
save: {every: 1}
"""
ENV = "rollout.train_env_manager.env"


@pytest.fixture
def config(folder: Path) -> str:
    """A configuration in a folder, with its environment in a folder beside it."""
    (folder / "there" / "mine").mkdir(parents=True)
    shutil.copy(folder / "examples" / "own_environment.py", folder / "there" / "mine" / "caesar.py")
    (folder / "there" / "own.yaml").write_text(FILE, encoding="utf-8")
    return "there/own.yaml"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has files of its own under the same names."""
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in "caesar", "own_environment":
        monkeypatch.delitem(sys.modules, name, raising=False)


def learnt(said: str) -> tuple[int, int]:
    """Updates, and attempts that were trained on."""
    found = json.loads(said.splitlines()[-1])
    return found["steps"], found["ledger"]["train"]["attempts"]["trained"]


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_an_environment_beside_the_file_is_trained(isolation: str, windrow: Windrow, config: str, folder: Path):
    said = windrow("train", config, f"rollout.train_env_manager.isolation={isolation}", "--json")
    assert said.code == 0, said.err
    assert learnt(said.out) == (2, 16)
    absolute = folder / "there" / "mine" / "caesar.py"
    assert f"env: {absolute}:Caesar" in RunFolder.read(only_run(folder)).config_file.read_text(encoding="utf-8")


def test_a_run_goes_on_with_its_environment_from_another_folder(
    windrow: Windrow, config: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    assert windrow("train", config, "--json").code == 0
    run = only_run(folder)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    said = windrow("train", "--resume", str(run), "steps=3", "--json")
    assert said.code == 0, said.err
    assert learnt(said.out)[0] == 3


def test_an_environment_of_the_working_directory_is_played(windrow: Windrow, folder: Path):
    said = windrow(
        "rollout", "examples/rollout/guess.yaml", f"{ENV}=examples/own_environment.py:Caesar",
        "rollout.rollout_batch_size=8", "batches=1", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads(said.out.splitlines()[-1])["trajectories"] >= 8


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"{ENV}=mine/cesar.py:Caesar", "mine/cesar.py: no such file"),
        (f"{ENV}=mine/caesar.py:Ceasar", "caesar.py has no 'Ceasar'; did you mean Caesar?"),
        (f"{ENV}=mine/caesar.py:WORDS", "name a class with start, step and close"),
        ("rollout.train_env_manager.env_args.trys=2", "give arguments with env_args"),
    ],
)
def test_what_cannot_be_played_is_told_before_there_is_a_run_folder(
    override: str, words: str, windrow: Windrow, config: str, folder: Path
):
    said = windrow("train", config, override)
    assert said.code == 2
    assert words in " ".join(said.err.split())
    assert not (folder / "runs").exists()


@pytest.mark.ray
def test_an_environment_of_ones_own_is_played_in_processes_of_hosts(windrow: Windrow, config: str):
    more = ["runtime=ray", "rollout.train_env_manager.isolation=process"]
    said = windrow("train", config, *more, "--json")
    assert said.code == 0, said.err
    assert learnt(said.out) == (2, 16)
