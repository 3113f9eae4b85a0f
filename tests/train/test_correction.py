"""Importance weights between engine and trainer."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.train import correction
from windrow.train.config import CorrectionConfig

VERSION = 7


def logs(*numbers: float) -> Tensor:
    return torch.tensor([numbers]).log()


def corrected(ratios: Tensor, versions: list[int], mask: list[int] | None = None, **settings: object):
    """With an engine that gave every token a probability of ½."""
    engine = torch.full_like(ratios, math.log(0.5))
    sampled = torch.tensor([mask or [1] * ratios.shape[1]]).bool()
    config = CorrectionConfig(**settings)  # type: ignore[arg-type]
    return correction.weights(engine + ratios, engine, torch.tensor([versions]), VERSION, sampled, config)


def close(found: Tensor, *wanted: float) -> bool:
    return torch.allclose(found, torch.tensor([wanted]), atol=1e-5)


def test_each_kind_of_token_has_its_own_cap():
    """Current tokens are held at 2, stale ones at 3; what was not sampled weighs nothing."""
    found = corrected(logs(0.5, 4.0, 4.0, 0.5, 4.0), [7, 7, 6, 5, -1], [1, 1, 1, 1, 0], mismatch_cap=2.0, stale_cap=3.0)
    assert close(found.weights, 0.5, 2.0, 3.0, 0.5, 0.0)
    assert found.keep.tolist() == [[True, True, True, True, False]]


def test_without_a_cap_current_tokens_weigh_one():
    found = corrected(logs(0.5, 4.0, 4.0), [7, 7, 6], mismatch_cap=None, stale_cap=3.0)
    assert close(found.weights, 1.0, 1.0, 3.0)


def test_without_a_cap_of_their_own_stale_tokens_are_treated_like_current_ones():
    assert close(corrected(logs(4.0, 4.0), [7, 6], mismatch_cap=2.0).weights, 2.0, 2.0)
    assert close(corrected(logs(4.0, 4.0), [7, 6], mismatch_cap=None).weights, 1.0, 1.0)


def test_a_row_can_have_one_weight_of_each_kind():
    """Current: √(4 · 1) = 2. Stale: √(9 · 16) = 12, held at 10. The last place is the environment's."""
    found = corrected(
        logs(4.0, 9.0, 16.0, 1.0, 50.0), [7, 6, 5, 7, -1], [1, 1, 1, 1, 0],
        mismatch_cap=5.0, stale_cap=10.0, level="sequence",
    )  # fmt: skip
    assert close(found.weights, 2.0, 10.0, 10.0, 2.0, 0.0)


def test_tokens_too_far_from_one_are_dropped_either_way():
    found = corrected(logs(3.9, 4.1, 0.26, 0.24), [7] * 4, mismatch_cap=2.0, drop_above=4.0)
    assert found.keep.tolist() == [[True, False, True, False]]
    assert close(found.weights, 2.0, 0.0, 0.26, 0.0)
    assert found.metrics["train/correction_dropped_share"] == 0.5


def test_a_row_is_dropped_whole_where_rows_have_weights():
    found = corrected(logs(9.0, 4.0), [7, 7], level="sequence", drop_above=5.0)  # √36 = 6
    assert found.keep.tolist() == [[False, False]]


def test_metrics_by_hand():
    """Current: |log 2|, |log ½| and 0. Versions behind: 0, 0, 0, 2 and 4, of five tokens."""
    found = corrected(
        logs(2.0, 0.5, 1.0, 4.0, 8.0, 99.0), [7, 7, 7, 5, 3, -1], [1, 1, 1, 1, 1, 0], mismatch_cap=1.5, stale_cap=5.0
    ).metrics
    assert found["train/mismatch_mean"] == pytest.approx(2 * math.log(2) / 3)
    assert found["train/mismatch_max"] == pytest.approx(math.log(2))
    assert found["train/stale_share"] == pytest.approx(2 / 5)
    assert found["train/lag_mean"] == pytest.approx(6 / 5)
    assert found["train/correction_mean"] == pytest.approx((1.5 + 0.5 + 1.0) / 3)
    assert found["train/correction_stale_mean"] == pytest.approx((4.0 + 5.0) / 2)
    assert found["train/correction_truncated_share"] == pytest.approx(2 / 5)
    assert found["train/correction_dropped_share"] == 0.0


def test_a_weight_of_one_by_setting_is_not_called_truncated():
    found = corrected(logs(4.0, 4.0), [7, 6], mismatch_cap=None, stale_cap=3.0).metrics
    assert found["train/correction_truncated_share"] == pytest.approx(1 / 2)


def test_stale_tokens_do_not_count_as_mismatch():
    found = corrected(logs(8.0, 8.0), [6, 6]).metrics
    assert (found["train/mismatch_mean"], found["train/mismatch_max"]) == (0.0, 0.0)
    assert found["train/stale_share"] == 1.0


def test_nothing_sampled_gives_no_numbers_to_worry_about():
    found = corrected(logs(2.0, 3.0), [-1, -1], [0, 0], level="sequence", drop_above=1.5)
    assert found.weights.tolist() == [[0.0, 0.0]]
    assert all(math.isfinite(number) for number in found.metrics.values())


def test_what_was_not_sampled_may_hold_anything():
    nothing = float("nan")
    for level in ("token", "sequence"):
        found = corrected(torch.tensor([[0.0, nothing]]), [7, -1], [1, 0], level=level)
        assert found.weights.tolist() == [[1.0, 0.0]]
        assert all(math.isfinite(number) for number in found.metrics.values())


@given(
    st.lists(st.tuples(st.floats(-200, 200, width=32), st.integers(0, 7), st.booleans()), min_size=1, max_size=8),
    st.sampled_from(["token", "sequence"]),
    st.sampled_from([None, 0.5, 2.0]),
    st.sampled_from([None, 3.0]),
)
def test_weights_stay_below_their_cap_and_finite(
    cases: list[tuple[float, int, bool]], level: str, cap: float | None, stale_cap: float | None
):
    apart = torch.tensor([[log for log, *_ in cases]])
    versions = [version for _, version, _ in cases]
    mask = [int(sampled) for *_, sampled in cases]
    found = corrected(apart, versions, mask, mismatch_cap=cap, stale_cap=stale_cap, level=level)
    assert bool(found.weights.isfinite().all())
    assert float(found.weights.max()) <= max(cap or 1.0, stale_cap or 0.0) + 1e-6
    assert found.weights[~torch.tensor([mask]).bool()].tolist() == [0.0] * mask.count(0)


@given(st.lists(st.tuples(st.floats(-9, 0, width=32), st.integers(0, 7)), min_size=1, max_size=8))
def test_where_both_sides_agree_every_weight_is_one(cases: list[tuple[float, int]]):
    same = torch.tensor([[log for log, _ in cases]])
    mask = torch.ones_like(same, dtype=torch.bool)
    versions = torch.tensor([[version for _, version in cases]])
    for level in ("token", "sequence"):
        config = CorrectionConfig(level=level, stale_cap=1.5, drop_above=1.01)
        found = correction.weights(same, same, versions, VERSION, mask, config)
        assert found.weights.tolist() == [[1.0] * len(cases)]
