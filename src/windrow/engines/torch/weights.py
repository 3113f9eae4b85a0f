"""The weights of a live model: what they are, and how others take their place.

Promises: either all weights are replaced or none; weights that share memory stay shared; the checksum is the same for
the same names, shapes, kinds of number and bits, in every engine.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from windrow.engines.buckets import Checksum, shared
from windrow.errors import Refused
from windrow.nearest import did_you_mean


def checksum(model: PreTrainedModel) -> str:
    """A word for all weights of a model; those that share memory count once."""
    return checksum_of(model.state_dict())


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """The word of a model that has exactly these weights, shared where these share memory."""
    checksum = Checksum()
    for names, tensor in sorted(shared(tensors).items(), key=lambda item: item[0]):
        plain = tensor.detach().to("cpu").contiguous()
        data = plain.view(-1).view(torch.uint8).numpy().data  # a scalar has bytes only as a vector
        checksum.add(names, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
    return checksum.word


def replace(model: PreTrainedModel, weights: Mapping[str, Tensor] | Path) -> None:
    """Copy other weights over a model's own, in place; raises Refused and changes nothing if they do not fit."""
    given = read(weights) if isinstance(weights, Path) else weights
    own = model.state_dict()
    for name, tensor in given.items():
        if name not in own:
            raise Refused(f"weights have a tensor {name} that the model has not{did_you_mean(name, own)}")
        if tensor.shape != own[name].shape:
            raise Refused(f"weights have {name} as {tuple(tensor.shape)}, the model as {tuple(own[name].shape)}")
    chosen = {}
    for names, tensor in shared(own).items():
        found = [name for name in names if name in given]
        if not found:
            raise Refused(f"weights lack {names[0]}; send all {len(own)} tensors of the model's state_dict")
        for name in found[1:]:
            _check_tied(found[0], given[found[0]], name, given[name])
        chosen[found[0]] = tensor
    with torch.no_grad():
        for name, tensor in chosen.items():
            tensor.copy_(given[name])


def read(folder: Path) -> dict[str, Tensor]:
    """The tensors of all safetensors files in a folder, or of one such file."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    if not files or not all(file.is_file() for file in files):
        raise Refused(f"weights: no safetensors file in {folder}; save them with save_pretrained")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise Refused(f"weights: {file} cannot be read: {error}") from error
    return found


def _check_tied(one: str, first: Tensor, other: str, second: Tensor) -> None:
    if first.data_ptr() != second.data_ptr() and not torch.equal(first, second):
        raise Refused(f"weights differ in {one} and {other}, which the model shares; send one of them")
