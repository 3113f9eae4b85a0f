"""Advantages: worked out by hand, and what holds for any scores."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.train import estimators
from windrow.train.config import Spread

NAN = float("nan")

scores_in_groups = st.lists(
    st.tuples(st.integers(-40, 40).map(lambda n: n / 8), st.integers(0, 3)), min_size=1, max_size=12
)
"""Scores that float32 holds exactly, each with its group."""

Cases = list[tuple[float, int]]


def split(cases: Cases) -> tuple[Tensor, Tensor]:
    return torch.tensor([score for score, _ in cases]), torch.tensor([group for _, group in cases])


def close(found: Tensor, wanted: Sequence[float] | Sequence[Sequence[float]]) -> bool:
    return torch.allclose(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-6)


def test_grpo_by_hand():
    """Group 7: mean 2, squares 1 + 1 + 4 = 6 over 3 − 1, deviation √3. Group 3: mean ½, deviation √½."""
    scores, groups = torch.tensor([1.0, 0.0, 1.0, 1.0, 4.0]), torch.tensor([7, 3, 3, 7, 7])
    half, three = 0.5 / 0.5**0.5, 3**0.5
    assert close(estimators.grpo(scores, groups, "group"), [-1 / three, -half, half, -1 / three, 2 / three])


def test_grpo_divided_by_the_deviation_of_the_batch():
    """All scores: mean 2, squares 4 + 0 + 0 + 4 over 4 − 1."""
    found = estimators.grpo(torch.tensor([0.0, 2.0, 2.0, 4.0]), torch.tensor([0, 0, 1, 1]), "batch")
    unit = (8 / 3) ** 0.5
    assert close(found, [-1 / unit, 1 / unit, -1 / unit, 1 / unit])


def test_grpo_without_a_deviation_is_the_distance_from_the_mean():
    found = estimators.grpo(torch.tensor([0.0, 2.0, 5.0, 7.0]), torch.tensor([0, 0, 1, 1]), "none")
    assert close(found, [-1, 1, -1, 1])


def test_rloo_by_hand():
    """Others of the first: (0 + 5) / 2; of the second: (1 + 5) / 2; of the third: (1 + 0) / 2."""
    found = estimators.rloo(torch.tensor([1.0, 0.0, 5.0, 9.0]), torch.tensor([0, 0, 0, 1]))
    assert close(found, [-1.5, -3.0, 4.5, 0.0])


@pytest.mark.parametrize("spread", ["group", "batch", "none"])
def test_a_group_of_one_and_a_group_of_equals_get_nothing(spread: Spread):
    """0.1 + 0.2 and 0.3 are one score that was added up in two ways."""
    scores = torch.tensor([5.0, 0.1 + 0.2, 0.3, 0.3 + 3e-8, 1.0, 2.0])
    found = estimators.grpo(scores, torch.tensor([0, 1, 1, 1, 2, 2]), spread)
    assert found[:4].tolist() == [0.0] * 4
    assert found[4] < 0 < found[5]


def test_a_batch_of_one_trajectory_gets_nothing():
    for spread in ("group", "batch", "none"):
        assert estimators.grpo(torch.tensor([3.0]), torch.tensor([0]), spread).tolist() == [0.0]
    assert estimators.rloo(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0.0]


@given(scores_in_groups, st.sampled_from(["group", "batch", "none"]))
def test_advantages_of_a_group_add_up_to_nothing(cases: Cases, spread: Spread):
    scores, groups = split(cases)
    for found in (estimators.grpo(scores, groups, spread), estimators.rloo(scores, groups)):
        assert bool(found.isfinite().all())
        for group in set(groups.tolist()):
            assert abs(float(found[groups == group].sum())) < 1e-4


@given(scores_in_groups, st.integers(-8, 8), st.sampled_from(["group", "batch", "none"]))
def test_adding_to_all_scores_changes_nothing(cases: Cases, shift: int, spread: Spread):
    scores, groups = split(cases)
    assert torch.allclose(
        estimators.grpo(scores, groups, spread), estimators.grpo(scores + shift, groups, spread), atol=1e-5
    )
    assert torch.allclose(estimators.rloo(scores, groups), estimators.rloo(scores + shift, groups), atol=1e-5)


@given(scores_in_groups, st.sampled_from([2.0**-30, 0.5, 1000.0]))
def test_the_unit_of_scores_is_divided_away_or_stays(cases: Cases, unit: float):
    scores, groups = split(cases)
    for spread in ("group", "batch"):
        one, other = estimators.grpo(scores, groups, spread), estimators.grpo(scores * unit, groups, spread)
        assert torch.allclose(one, other, atol=1e-5)
    bare = estimators.grpo(scores, groups, "none") * unit
    assert torch.allclose(bare, estimators.grpo(scores * unit, groups, "none"), rtol=1e-5, atol=unit * 1e-5)


@given(scores_in_groups, st.randoms(use_true_random=False))
def test_the_order_of_trajectories_and_the_names_of_groups_do_not_matter(cases: Cases, random: st.DataObject):
    order = list(range(len(cases)))
    random.shuffle(order)  # type: ignore[attr-defined]
    scores, groups = split(cases)
    for found, again in (
        (estimators.grpo(scores, groups), estimators.grpo(scores[order], 1000 - groups[order])),
        (estimators.rloo(scores, groups), estimators.rloo(scores[order], 1000 - groups[order])),
    ):
        assert torch.allclose(found[order], again, atol=1e-6)


def test_what_comes_from_each_turn_on():
    """4 + ½·0; 2 + ½·4; 1 + ½·4. A turn that was not played counts 0."""
    found = estimators.turn_returns(torch.tensor([[1.0, 2.0, 4.0], [8.0, NAN, NAN]]), 0.5)
    assert close(found, [[1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4.0], [8.0, 0.0, 0.0]])


def test_turns_without_a_score_at_all_are_worth_nothing():
    assert estimators.turn_returns(torch.full((2, 3), NAN), 0.9).tolist() == [[0.0] * 3] * 2
    assert estimators.turn_returns(torch.zeros(2, 0), 0.9).shape == (2, 0)


def test_gigpo_by_hand():
    """Episodes 1 and 3: ∓1 before dividing by √2. State 5 was seen three times, with 1, 4 and 3 to come (mean 8/3);
    state 6 was seen once; nobody knows what was seen before the last turn of the second."""
    found = estimators.gigpo(
        torch.tensor([1.0, 3.0]),
        torch.tensor([0, 0]),
        torch.tensor([[1.0, 4.0, 9.0], [3.0, 9.0, 0.0]]),
        torch.tensor([[5, 5, 6], [5, -1, -1]]),
        spread="none",
        anchor_weight=0.5,
    )
    mean = 8 / 3
    assert close(found, [[-1 + (1 - mean) / 2, -1 + (4 - mean) / 2, -1], [1 + (3 - mean) / 2, 1, 1]])


def test_gigpo_in_units_of_the_deviation():
    """Both comparisons are of two numbers that are 2 apart: ∓1 / √2 each."""
    found = estimators.gigpo(
        torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), torch.tensor([[5.0], [3.0]]), torch.tensor([[8], [8]])
    )
    assert close(found, [[0.0], [0.0]])
    weighted = estimators.gigpo(
        torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), torch.tensor([[5.0], [3.0]]), torch.tensor([[8], [8]]),
        anchor_weight=3.0,
    )  # fmt: skip
    assert close(weighted, [[2 / 2**0.5], [-2 / 2**0.5]])


def test_the_same_state_in_another_group_is_another_state():
    found = estimators.gigpo(
        torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([[5.0], [3.0]]), torch.tensor([[8], [8]])
    )
    assert found.tolist() == [[0.0], [0.0]]


def test_gigpo_without_any_turn_is_finite():
    states = torch.full((2, 3), -1)
    found = estimators.gigpo(torch.tensor([1.0, 1.0]), torch.tensor([0, 0]), torch.zeros(2, 3), states)
    assert found.tolist() == [[0.0] * 3] * 2


def test_turns_are_compared_with_the_same_turn_of_the_others():
    """Turn 0: 1, 3, 5 with mean 3. Turn 1: 2 and 8 with mean 5. Turn 2 is alone."""
    returns = torch.tensor([[1.0, 2.0, 7.0], [3.0, 8.0, 0.0], [5.0, 0.0, 0.0]])
    played = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    groups = torch.zeros(3, dtype=torch.int64)
    assert close(estimators.by_turn(returns, groups, played, "none"), [[-2, -3, 0], [0, 3, 0], [2, 0, 0]])
    assert close(estimators.by_turn(returns, groups, played, None), [[-3, -6, 0], [0, 6, 0], [3, 0, 0]])
    unit = 18**0.5  # (9 + 9) / (2 − 1)
    assert close(
        estimators.by_turn(returns, groups, played, "group")[:, 1:], [[-3 / unit, 0.0], [3 / unit, 0.0], [0.0, 0.0]]
    )


def test_reinforce_by_hand():
    """Turns of two tokens and one; the place between them is the environment's, and what stands there is nobody's."""
    rewards = torch.tensor([[0.0, 0.5, -0.25, 99.0, 2.0]])
    mask = torch.tensor([[0, 1, 1, 0, 1]]).bool()
    turns = torch.tensor([[-1, 0, 0, -1, 1]])
    # 2; −¼ + ½·2; ½ + the same
    assert close(estimators.reinforce(rewards, mask, turns, 0.5), [[0, 1.25, 0.75, 0, 2]])


def test_a_turn_that_left_no_tokens_still_costs_its_discount():
    rewards, mask = torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    assert close(estimators.reinforce(rewards, mask, torch.tensor([[0, 3]]), 0.5), [[0.125, 1.0]])


def test_without_discount_every_token_of_an_episode_gets_its_score():
    rewards = torch.tensor([[0.0, 0.0, 0.0, 3.0]])
    found = estimators.reinforce(rewards, torch.tensor([[1, 1, 0, 1]]).bool(), torch.tensor([[0, 0, -1, 1]]), 1.0)
    assert found.tolist() == [[3.0, 3.0, 0.0, 3.0]]


def test_a_discount_of_nothing_leaves_each_turn_its_own():
    rewards = torch.tensor([[0.0, 1.0, 0.0, 5.0]])
    found = estimators.reinforce(rewards, torch.ones(1, 4, dtype=torch.bool), torch.tensor([[0, 0, 1, 1]]), 0.0)
    assert found.tolist() == [[1.0, 1.0, 5.0, 5.0]]


def test_reinforce_pp_is_white_over_the_batch():
    """Returns 2, 2 | 5: mean 3, squares 1 + 1 + 4 over 3 − 1."""
    rewards = torch.tensor([[0.0, 2.0], [5.0, 7.0]])
    mask, turns = torch.tensor([[1, 1], [1, 0]]).bool(), torch.zeros(2, 2, dtype=torch.int64)
    three = 3**0.5
    assert close(estimators.reinforce_pp(rewards, mask, turns, 1.0), [[-1 / three, -1 / three], [2 / three, 0]])


def test_gae_by_hand():
    """Values ½ everywhere, reward 1 at the end, discount 0.9, lambda ½.

    Last: 1 − ½. Before the turn ends: 0.9·½ − ½ + 0.9·½·½. First, inside the turn: ½ − ½ + ½·0.175.
    """
    found = estimators.gae(
        torch.tensor([[0.0, 0.0, 0.0, 1.0]]),
        torch.tensor([[0.5, 0.5, NAN, 0.5]]),
        torch.tensor([[1, 1, 0, 1]]).bool(),
        torch.tensor([[0, 0, -1, 1]]),
        discount=0.9,
        lam=0.5,
    )
    assert close(found.advantages, [[0.0875, 0.175, 0, 0.5]])
    assert close(found.returns, [[0.5875, 0.675, 0, 1.0]])


def test_rows_without_any_sampled_token_get_nothing():
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    numbers = torch.ones(2, 3)
    found = estimators.gae(numbers, numbers, nothing, torch.full((2, 3), -1), discount=0.9, lam=0.9)
    assert found.advantages.tolist() == found.returns.tolist() == [[0.0] * 3] * 2
    assert estimators.reinforce_pp(numbers, nothing, torch.full((2, 3), -1), 0.9).tolist() == [[0.0] * 3] * 2


@st.composite
def lines(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, a mask and turns that go up."""
    length = draw(st.integers(1, 8))
    number = st.integers(-16, 16).map(lambda n: n / 8)
    rewards = draw(st.lists(number, min_size=length, max_size=length))
    values = draw(st.lists(number, min_size=length, max_size=length))
    mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    steps = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    turns = torch.tensor(steps).cumsum(0)
    shape = (1, length)
    sampled = torch.tensor(mask)
    return (
        torch.tensor(rewards).reshape(shape), torch.tensor(values).reshape(shape),
        sampled.reshape(shape), torch.where(sampled, turns, -1).reshape(shape),
    )  # fmt: skip


@given(lines(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_is_the_sum_over_all_later_tokens(line: tuple[Tensor, Tensor, Tensor, Tensor], discount: float, lam: float):
    """The definition, token by token: Σ (g·lam)^k δ, written out with loops."""
    rewards, values, mask, turns = line
    found = estimators.gae(rewards, values, mask, turns, discount=discount, lam=lam).advantages[0]
    places = [place for place in range(mask.shape[1]) if mask[0, place]]
    for index, place in enumerate(places):
        total, weight = 0.0, 1.0
        for here, after in zip(places[index:], [*places[index + 1 :], None], strict=True):
            left = 0.0 if after is None else discount ** int(turns[0, after] - turns[0, here])
            ahead = 0.0 if after is None else left * float(values[0, after])
            total += weight * (float(rewards[0, here]) + ahead - float(values[0, here]))
            weight *= left * lam
        assert float(found[place]) == pytest.approx(total, abs=1e-5)
    assert found[~mask[0]].tolist() == [0.0] * int((~mask).sum())


@given(lines(), st.sampled_from([0.0, 0.5, 1.0]))
def test_with_lambda_one_returns_do_not_depend_on_values(line: tuple[Tensor, Tensor, Tensor, Tensor], discount: float):
    rewards, values, mask, turns = line
    found = estimators.gae(rewards, values, mask, turns, discount=discount, lam=1.0)
    assert torch.allclose(found.returns, estimators.reinforce(rewards, mask, turns, discount), atol=1e-5)


def test_whitening_by_hand():
    """1 and 3: mean 2, deviation √2."""
    found = estimators.whiten(torch.tensor([[1.0, 50.0, 3.0]]), torch.tensor([[1, 0, 1]]).bool())
    assert close(found, [[-1 / 2**0.5, 0, 1 / 2**0.5]])


def test_whitening_what_does_not_differ_gives_nothing():
    ones, everywhere = torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    assert estimators.whiten(ones, everywhere).tolist() == [[0.0] * 3]
    assert estimators.whiten(ones, ~everywhere).tolist() == [[0.0] * 3]
    assert estimators.whiten(ones[:, :1], everywhere[:, :1]).tolist() == [[0.0]]


def test_which_groups_have_signal():
    found = estimators.has_signal(torch.tensor([1.0, 1.0, 0.0, 1.0, 5.0]), torch.tensor([9, 9, 4, 4, 2]))
    assert found.tolist() == [False, True, False]  # groups 2, 4 and 9
