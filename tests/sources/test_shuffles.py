"""Orders that are computed instead of kept."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.sources.shuffles import Laps, Permutation


@given(size=st.integers(1, 400), seed=st.integers(0, 2**64), lap=st.integers(0, 2**40))
def test_every_number_comes_once(size: int, seed: int, lap: int):
    order = Permutation(size, seed, lap)
    assert sorted(order[place] for place in range(size)) == [*range(size)]


def test_all_orders_of_a_few_are_about_as_likely():
    orders = Counter(tuple(Permutation(4, seed)[place] for place in range(4)) for seed in range(4800))
    assert len(orders) == 24
    assert all(120 <= count <= 280 for count in orders.values())  # 200 expected, a standard deviation of 14


def test_neighbours_are_far_apart():
    """In a random order the mean distance is a third of the size; in an affine one, say, it is not."""
    order = Permutation(10_000, 1)
    steps = [abs(order[place] - order[place + 1]) for place in range(9_999)]
    assert 3_200 < sum(steps) / len(steps) < 3_470
    assert len({*steps}) > 5_000


def test_an_order_of_a_billion_is_had_at_once_anywhere():
    order = Permutation(10**9, "seed")
    assert len({order[place] for place in range(0, 10**9, 10**6)}) == 1000
    with pytest.raises(IndexError):
        order[10**9]


def test_the_order_is_the_same_for_ever():
    """A run that is resumed with a newer version must go on in the same order."""
    assert [Permutation(10, 3, "math", 1)[place] for place in range(10)] == [6, 8, 9, 3, 5, 7, 0, 2, 1, 4]


def test_passes_have_orders_of_their_own_and_the_same_rows():
    laps = Laps(20, passes=3, shuffle_seed=1)
    orders = [tuple(laps.row(place) for place in range(lap * 20, lap * 20 + 20)) for lap in range(3)]
    assert len({*orders}) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(20))}
    assert laps.length == 60


def test_names_have_orders_of_their_own():
    first, second = (Laps(50, passes=1, shuffle_seed=1, name=name) for name in "ab")
    assert [first.row(place) for place in range(50)] != [second.row(place) for place in range(50)]


def test_without_a_seed_rows_stay_as_they_stand():
    laps = Laps(3, passes=None, shuffle_seed=None)
    assert [laps.row(place) for place in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert laps.length is None
