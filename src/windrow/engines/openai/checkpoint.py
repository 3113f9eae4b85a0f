"""A checkpoint on disk: what it is called by its content, and the one kind that a server would load wrongly."""

import hashlib
from pathlib import Path
from typing import TypeVar

from windrow.errors import ConfigError
from windrow.types import Value, from_json

T = TypeVar("T")

READ_AT_ONCE = 1 << 20
LONGEST_HEADER = 100 << 20
"""Bytes; what the safetensors format allows."""


def checksum_of(folder: Path) -> str:
    """Of the bytes of its safetensors files, in the order of their names."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files_of(folder):
        with file.open("rb") as stream:
            while block := stream.read(READ_AT_ONCE):
                digest.update(block)
    return digest.hexdigest()


def files_of(folder: Path) -> list[Path]:
    """Its safetensors files, in the order of their names."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ConfigError(f"{folder} holds no *.safetensors; save the weights there first")
    return found


def is_tied(folder: Path) -> bool:
    """Whether its output head is its input embedding; if the config is silent, whether a head of its own is missing."""
    config = folder / "config.json"
    if config.exists():
        said = _read(config.read_bytes(), _Config, config).tie_word_embeddings
        if said is not None:
            return said
    return not any("lm_head.weight" in names_in(file) for file in files_of(folder))


def names_in(file: Path) -> list[str]:
    """The names of the tensors in a safetensors file, from its header."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > LONGEST_HEADER:
            raise ConfigError(f"{file} is no safetensors file: its header would have {length} bytes")
        return list(_read(stream.read(length), dict[str, object], file))


class _Config(Value, frozen=True):
    tie_word_embeddings: bool | None = None


def _read(data: bytes, kind: type[T], file: Path) -> T:
    try:
        return from_json(data, kind)
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
