"""Checkpoints by content, and those with tied embeddings."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from windrow.engines.openai.checkpoint import checksum_of, is_tied, names_in
from windrow.errors import ConfigError


def saved(folder: Path, *names: str, value: float = 0.0, config: dict[str, object] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({name: np.full(3, value, np.float32) for name in names}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_equal_weights_have_equal_checksums(tmp_path: Path):
    one = checksum_of(saved(tmp_path / "one", "a", "b"))
    assert one == checksum_of(saved(tmp_path / "two", "a", "b", config={"x": 1}))
    assert one != checksum_of(saved(tmp_path / "three", "a", "b", value=1.0))


def test_files_count_in_the_order_of_their_names(tmp_path: Path):
    for name, order in (("one", ("x", "y")), ("two", ("y", "x"))):
        (tmp_path / name).mkdir()
        for file, content in zip(("a", "b"), order, strict=True):
            (tmp_path / name / f"{file}.safetensors").write_text(content)
    assert checksum_of(tmp_path / "one") != checksum_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("names", "config", "tied"),
    [
        (("embed",), {"tie_word_embeddings": True}, True),
        (("embed", "lm_head.weight"), {"tie_word_embeddings": True}, True),
        (("embed", "lm_head.weight"), {"tie_word_embeddings": False}, False),
        (("embed", "lm_head.weight"), {}, False),
        (("embed",), {}, True),
        (("embed", "lm_head.weight"), None, False),
    ],
)
def test_tied_embeddings_are_seen(tmp_path: Path, names, config, tied):
    assert is_tied(saved(tmp_path / "one", *names, config=config)) is tied


def test_a_folder_without_weights_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no"):
        checksum_of(tmp_path)


@pytest.mark.parametrize("content", [b"\xff" * 16, (4).to_bytes(8, "little") + b"nope"], ids=["length", "header"])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        names_in(file)
