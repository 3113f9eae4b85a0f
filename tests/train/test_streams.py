"""Nobody holds a copy of a model on its way to engines, though what arrives is the whole of it."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from windrow.engines.torch.weights import checksum_of, read
from windrow.tiny import tiny_model
from windrow.train.networks import Policy
from windrow.train.processes import TrainerProcesses
from windrow.train.sharding import Shards
from windrow.train.streams import weight_stream, wholes
from windrow.train.weights import bring_shards, engine_weights, read_weights, write_weights

SAFETY_S = 300.0
LIMIT = 512 << 10
"""Of a bucket; the model has about 6 MB, and its largest tensor 256 KB."""
LARGE = 32 << 10
"""Half of the model's smallest matrix: Python's own objects are smaller, a copy of a matrix is not."""


PLAIN = {torch.Tensor, torch.nn.Parameter}


class Alive(TorchDispatchMode):
    """Counts the bytes that came into being since it began and are there: of tensors, arrays and large strings."""

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[StorageWeakRef, int] = {}
        self.most = 0

    def __enter__(self) -> Self:
        tracemalloc.start()
        super().__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        tracemalloc.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not PLAIN.issuperset(types):
            return NotImplemented  # what has no memory of its own asks again with what it stands for
        result = func(*args, **(kwargs or {}))
        old = {storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        for made in tree_leaves(result):
            if type(made) in PLAIN and storage(made) not in old:  # no view, and not written in place
                self._born[StorageWeakRef(made.untyped_storage())] = made.untyped_storage().nbytes()
        self._count()
        return result

    def _count(self) -> None:
        self._born = {each: size for each, size in self._born.items() if not each.expired()}
        tensors = sum(self._born.values())
        if tensors + tracemalloc.get_traced_memory()[0] <= self.most:
            return  # a closer look, which takes long, would not find more
        blocks = (trace.size for trace in tracemalloc.take_snapshot().traces)
        self.most = max(self.most, tensors + sum(size for size in blocks if size >= LARGE))


def storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Desk:
    """A sharded network in every process."""

    def __init__(self, peers: Shards) -> None:
        self.peers = peers
        self.model = tiny_model("llama", 0, 512, 64, hidden=128, heads=4, layers=10)
        self.whole = engine_weights(self.model)
        peers.adopt(Policy(self.model))

    def bytes(self) -> tuple[int, int]:
        """Of all weights, and of the largest."""
        sizes = [tensor.nbytes for tensor in self.whole.values()]
        return sum(sizes), max(sizes)

    def checksum(self) -> str:
        return checksum_of(self.whole)

    def written(self, root: Path, dtype: Any) -> int:
        """As trainers pack; the bytes that were held beyond the shards."""
        with Alive() as alive:
            weights = wholes(self.model, dtype)
            if self.peers.rank:
                bring_shards(weights)
            else:
                write_weights(root, 1, weights, LIMIT)
        return alive.most

    def copied(self) -> int:
        """The same for a copy of everything."""
        with Alive() as alive:
            engine_weights(self.model)
        return alive.most


@pytest.fixture(scope="module")
def pair() -> Iterator[TrainerProcesses]:
    with TrainerProcesses(2, Desk, SAFETY_S) as processes:
        yield processes


def test_no_process_holds_more_than_a_bucket_and_a_tensor_beyond_its_shards(pair, tmp_path: Path):
    total, largest = pair.call("bytes")
    pair.call_all("written", tmp_path, None)  # modules that are first needed here are loaded now, and do not count
    first, second = pair.call_all("written", tmp_path, None)
    assert first <= LIMIT + largest
    assert second <= largest
    assert pair.call("copied") >= total >= 5 * (LIMIT + largest)  # a copy of everything would have been seen


def test_what_arrives_is_the_whole(pair, tmp_path: Path):
    pair.call_all("written", tmp_path, None)
    assert checksum_of(read(tmp_path / "v1")) == pair.call("checksum")


def test_the_order_is_that_of_names_and_a_tied_tensor_comes_once():
    model = tiny_model()
    model.tie_weights()
    names = [names for names, _ in weight_stream(model)]
    assert names == sorted(names)
    assert {name for each in names for name in each} == set(model.state_dict())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_a_file_that_is_written_piece_by_piece_is_like_any_other(dtype, tmp_path: Path):
    model = tiny_model("gpt2")
    model.register_buffer("steps", torch.tensor(7))
    model.register_buffer("flags", torch.tensor([True, False, True]))
    packed = write_weights(tmp_path, 1, wholes(model, dtype), 1000)
    assert isinstance(packed.weights, Path)
    found, expected = read_weights(packed.weights), engine_weights(model, dtype=dtype)
    assert checksum_of(found) == checksum_of(expected) == packed.checksum
