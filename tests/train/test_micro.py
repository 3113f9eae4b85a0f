"""Rows in micro-batches, mini-batches and shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import ConfigError
from windrow.train.micro import cut, minibatches, share

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def test_rows_that_are_about_equally_long_go_together():
    assert cut([10, 2, 9, 3, 1], 20) == [[0, 2], [3, 1, 4]]


def test_a_row_that_is_longer_than_the_budget_goes_alone():
    assert cut([100, 4, 4], 8) == [[0], [1, 2]]


def test_packed_rows_are_counted_without_padding():
    assert cut([6, 3, 3, 2], 8) == [[0], [1, 2], [3]]
    assert cut([6, 3, 3, 2], 8, packed=True) == [[0], [1, 2, 3]]


@given(LENGTHS, st.integers(1, 120), st.booleans())
def test_every_row_is_in_one_micro_batch_that_keeps_the_budget(lengths: list[int], budget: int, packed: bool):
    parts = cut(lengths, budget, packed=packed)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        sizes = [lengths[row] for row in part]
        assert len(part) == 1 or (sum(sizes) if packed else max(sizes) * len(sizes)) <= budget


@given(LENGTHS, st.integers(1, 6), st.integers(1, 120), st.booleans())
def test_all_processes_have_equally_many_micro_batches_and_every_row_once(
    lengths: list[int], ranks: int, budget: int, packed: bool
):
    shares = share(lengths, ranks, budget, packed=packed)
    assert len({len(parts) for parts in shares}) == 1
    assert sorted(row for parts in shares for part in parts for row in part) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 6))
def test_no_process_has_a_longest_row_more_than_another(lengths: list[int], ranks: int):
    tokens = [sum(lengths[row] for part in parts for row in part) for parts in share(lengths, ranks, 64)]
    assert max(tokens) - min(tokens) <= max(lengths)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=40), st.integers(1, 5))
def test_groups_stay_whole_and_every_row_is_in_one_mini_batch(rows: list[tuple[int, int]], count: int):
    groups = np.array([group for group, _ in rows])
    parts = minibatches(groups, [length for _, length in rows], count, seed=3)
    assert len(parts) == min(count, len(set(groups.tolist())))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(rows)))
    owners = [set(groups[part].tolist()) for part in parts]
    assert all(owners), "an empty step would be no step"
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_mini_batches_have_about_equally_many_tokens():
    lengths = [40, 40, 5, 5, 20, 20, 20, 20]
    parts = minibatches([0, 0, 1, 1, 2, 2, 3, 3], lengths, 2, seed=0)
    assert sorted(sum(lengths[row] for row in part) for part in parts) == [80, 90]


def test_the_seed_decides_which_groups_are_together():
    groups, lengths = np.repeat(np.arange(8), 2), np.full(16, 5)
    drawn = [[part.tolist() for part in minibatches(groups, lengths, 2, seed)] for seed in (*range(20), 0)]
    assert drawn[0] == drawn[-1]
    assert len({str(parts) for parts in drawn}) > 10


def test_fewer_than_one_mini_batch_is_refused():
    with pytest.raises(ConfigError, match="minibatches must be 1 or more, got 0"):
        minibatches([0], [1], 0, seed=0)
