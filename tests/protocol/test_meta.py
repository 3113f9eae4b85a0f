"""What becomes of meta information when batches are concatenated."""

import numpy as np
import pytest
from tests.protocol.given import proto, refused

from windrow.protocol import DataProto

torch = pytest.importorskip("torch")


def joined(*metas: dict[str, object], rows: tuple[int, ...] = (1, 3)) -> dict[str, object]:
    return DataProto.concat([proto(count, **meta) for count, meta in zip(rows, metas, strict=True)]).meta_info


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1.0, 2.0, 1.75),
        (1, 3, 2.5),
        (np.float32(1), 3, 2.5),
        (5, 5, 5),
        ([1], [2, 3], [1, 2, 3]),
        ({"a": 0.0}, {"a": 4.0}, {"a": 3.0}),
        ("text", "text", "text"),
        (True, True, True),
        (None, None, None),
    ],
)
def test_metrics_are_aggregated_by_kind(one: object, other: object, expected: object):
    assert joined({"metrics": {"x": one}}, {"metrics": {"x": other}}) == {"metrics": {"x": expected}}


def test_a_metric_of_some_parts_is_aggregated_over_those():
    assert joined({"metrics": {"a": 1.0}}, {"metrics": {"b": 2.0}}) == {"metrics": {"a": 1.0, "b": 2.0}}
    assert joined({}, {"metrics": {"b": 2.0}}) == {"metrics": {"b": 2.0}}


def test_without_rows_every_part_weighs_the_same():
    metas = [DataProto(meta_info={"metrics": {"x": value}}) for value in (1.0, 2.0)]
    assert DataProto.concat(metas).meta_info == {"metrics": {"x": 1.5}}


@pytest.mark.parametrize(
    ("one", "other"), [("a", "b"), (True, False), (1.0, [1.0]), (1.0, "a"), ({"y": 1}, 1.0), (None, 1.0)]
)
def test_metrics_that_cannot_be_aggregated_must_agree(one: object, other: object):
    with refused("meta_info metrics.x is"):
        joined({"metrics": {"x": one}}, {"metrics": {"x": other}})


def test_other_entries_must_agree_where_they_are():
    assert joined({"step": 1, "a": [1]}, {"step": 1, "b": 2}) == {"step": 1, "a": [1], "b": 2}
    assert joined({"t": torch.ones(2)}, {"t": torch.ones(2)})["t"].tolist() == [1.0, 1.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), ([1], [2]), ([1], (1,)), ({"a": 1}, {"b": 1}), (np.arange(2), np.arange(3)), (np.arange(2), 1)],
)
def test_entries_that_differ_are_named(one: object, other: object):
    with refused("meta_info step is"):
        joined({"step": one}, {"step": other})
