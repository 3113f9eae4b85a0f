"""A model taken out of a run can be loaded by others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.given import parts

from windrow.errors import ConfigError, DataError
from windrow.store.export import export
from windrow.store.run import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "runs", "demo", "") as made:
        for step, score in [(1, 0.9), (2, 0.1), (3, None)]:
            made.checkpoints.save(step, parts(step), score=score, keep=True)
        yield made


@pytest.mark.parametrize(("which", "step"), [("latest", 3), ("best", 1), (2, 2)])
def test_the_model_of_the_checkpoint_that_is_meant_is_copied(run: RunFolder, tmp_path: Path, which, step: int):
    to = tmp_path / "deep" / "model"
    assert export(RunFolder.read(run.path), to, which).step == step
    assert sorted(path.name for path in to.iterdir()) == ["config.json", "nested"]
    assert (to / "config.json").read_text(encoding="utf-8") == f"{step} "
    assert [path.name for path in to.parent.iterdir()] == ["model"]


def test_an_empty_folder_may_be_there_already(run: RunFolder, tmp_path: Path):
    (tmp_path / "model").mkdir()
    export(run, tmp_path / "model")
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_nothing_is_written_over(run: RunFolder, tmp_path: Path, taken: str):
    to = tmp_path / "model"
    if taken == "folder":
        to.mkdir()
        (to / "mine").touch()
    else:
        to.touch()
    with pytest.raises(ConfigError, match="exists already; export to a folder that is new or empty"):
        export(run, to)


def test_a_damaged_checkpoint_is_not_exported(run: RunFolder, tmp_path: Path):
    (run.checkpoints.load(2).path("model") / "config.json").write_bytes(b"0 ")
    with pytest.raises(DataError, match="is damaged"):
        export(run, tmp_path / "model", 2)
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_without_a_model_says_so(run: RunFolder, tmp_path: Path):
    run.checkpoints.save(4, {"trainer.pt": Path.touch})
    with pytest.raises(DataError, match=r"has no part 'model'; it has trainer.pt"):
        export(run, tmp_path / "model", 4)


def test_an_exported_model_and_its_tokenizer_are_loaded_by_transformers(tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from windrow.tiny import tiny_model, tiny_tokenizer

    model, tokenizer = tiny_model(seed=3), tiny_tokenizer()

    def save(path: Path) -> None:
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)

    with RunFolder.create(tmp_path / "runs", "demo", "") as run:
        run.checkpoints.save(1, {"model": save})
        export(run, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    weights = loaded.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    again = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert again("left 1")["input_ids"] == tokenizer("left 1")["input_ids"]
