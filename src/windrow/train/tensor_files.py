"""A safetensors file that is written piece by piece, by somebody who never has all of it.

Promises: where each tensor goes is decided before the first one comes, from what they will be, so they may come in any
order. A file in which all have arrived is like one that safetensors wrote: the largest kinds of number first, so that
every tensor begins at a multiple of its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from windrow.engines.buckets import Bucket
from windrow.errors import TrainError
from windrow.train.streams import Whole

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them."""
ALIGNED = 8
"""The tensors begin at a multiple of it."""


class TensorFile:
    """A safetensors file with room for some weights, each under the name that comes first in the model."""

    def __init__(self, path: Path, weights: Sequence[Whole]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places: dict[tuple[str, ...], int] = {}
        end = 0
        for whole in sorted(weights, key=lambda each: (-each.dtype.itemsize, each.first)):
            begin, end = end, end + whole.shape.numel() * whole.dtype.itemsize
            header[whole.first] = {"dtype": _code(whole), "shape": [*whole.shape], "data_offsets": [begin, end]}
            places[whole.names] = begin
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % ALIGNED)
        self._places = places
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add(self, bucket: Bucket) -> None:
        """Write the tensors of a bucket to their places."""
        for entry in bucket.entries:
            self._file.seek(self._start + self._places[entry.names])
            self._file.write(bucket.bytes_of(entry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _code(whole: Whole) -> str:
    code = CODES.get(whole.dtype)
    if code is None:
        raise TrainError(f"{whole.first} has numbers of the kind {whole.dtype}, which weights in a file cannot have")
    return code
