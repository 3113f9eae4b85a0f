"""Small batches in one line."""

import copy
from contextlib import contextmanager

import numpy as np
import pytest

from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.protocol.columns import same, tensors_of

torch = pytest.importorskip("torch")


def proto(rows: int = 4, **meta: object) -> DataProto:
    """Two tensors, two arrays: a number, a vector, a text and a number per row."""
    return DataProto.from_dict(
        tensors={"number": torch.arange(rows), "vector": torch.arange(2.0 * rows).reshape(rows, 2)},
        non_tensors={"text": [f"row {row}" for row in range(rows)], "half": np.arange(rows) / 2},
        meta_info=meta,
    )


def numbers(data: DataProto) -> list[int]:
    """Which rows these are; every other column must say the same."""
    rows: list[int] = data["number"].tolist()
    assert data["text"].tolist() == [f"row {row}" for row in rows]
    assert data["half"].tolist() == [row / 2 for row in rows]
    assert data["vector"].tolist() == [[2.0 * row, 2.0 * row + 1] for row in rows]
    return rows


def equal(one: DataProto, other: DataProto) -> bool:
    """The same columns in the same order, and the same meta information."""
    return (
        one.keys() == other.keys()
        and (one.batch is None) == (other.batch is None)
        and len(one) == len(other)
        and same(tensors_of(one.batch), tensors_of(other.batch))
        and same(one.non_tensor_batch, other.non_tensor_batch)
        and same(one.meta_info, other.meta_info)
    )


@contextmanager
def refused(words: str, *untouched: DataProto):
    """A DataError with these words, after which everything is as it was."""
    before = [copy.deepcopy(data) for data in untouched]
    with pytest.raises(DataError) as caught:
        yield
    assert words in str(caught.value)
    for data, was in zip(untouched, before, strict=True):
        assert equal(data, was)
