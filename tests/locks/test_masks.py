"""Locked: which tokens are trained on, where the score stands, and what truncation does.

People train on this. A change here changes their results: it needs a decision note.
"""

from typing import Any

import pytest
from tests.rollout.given_trajectories import trajectory

from windrow.protocol import DataProto
from windrow.rollout.batching import make_batch
from windrow.trajectory import Trajectory
from windrow.types import but

pytest.importorskip("torch")


def batched(*made: Trajectory, **options: Any) -> DataProto:
    return make_batch(made, group_ids=[each.attempt.group for each in made], **options)


def ones(data: DataProto, name: str) -> list[list[int]]:
    """The places of each row where a mask is set."""
    return [[place for place, value in enumerate(row) if value] for row in data[name].tolist()]


def test_the_policy_is_trained_on_what_it_sampled_and_on_nothing_else():
    """Prompt, observations between turns, what the environment says last and padding are not in the mask."""
    data = batched(trajectory(turns=[(2, 2, 0, 0.0), (3, 1, 0, 0.0)], rest=2), sequence_length=12)
    assert ones(data, "response_mask") == [[2, 3, 7]]


def test_the_prompt_ends_at_the_first_sampled_token():
    """Observations after it are neither prompt nor response."""
    data = batched(trajectory(turns=[(2, 2, 0, 0.0), (3, 1, 0, 0.0)]))
    assert ones(data, "prompt_mask") == [[0, 1]]


def test_a_row_of_a_turn_trains_that_turn_alone():
    """What earlier turns sampled is prompt there, so that no token is trained on twice."""
    data = batched(trajectory(turns=[(2, 2, 0, 0.0), (3, 1, 0, 0.0)]), rows="turn")
    assert ones(data, "response_mask") == [[2, 3], [7]]
    assert ones(data, "prompt_mask") == [[0, 1], [0, 1, 2, 3, 4, 5, 6]]


def test_log_probabilities_and_versions_are_there_exactly_where_the_mask_is():
    """Elsewhere they are 0 and -1."""
    data = batched(trajectory(turns=[(2, 2, 4, 0.0), (3, 1, 5, 0.0)]), sequence_length=10)
    assert ones(data, "infer_logprobs") == ones(data, "response_mask")
    assert data["policy_versions"].tolist() == [[-1, -1, 4, 4, -1, -1, -1, 5, -1, -1]]


def test_turns_are_counted_through_the_whole_episode_whatever_the_rows():
    """Credit per turn is given by this number: in rows of turns, after rewritten history and in cut rows alike."""
    made = trajectory(turns=[(2, 2, 0, 0.0), (1, 2, 0, 0.0), (2, 1, 0, 0.0)], rewritten=[2])
    assert batched(made, sequence_length=6)["turn_ids"].tolist() == [[-1, -1, 0, 0, -1, 1], [-1, -1, 2, -1, -1, -1]]
    by_turn = batched(made, rows="turn")["turn_ids"].tolist()
    assert by_turn == [[-1, -1, 0, 0, -1, -1, -1], [-1, -1, -1, -1, -1, 1, 1], [-1, -1, 2, -1, -1, -1, -1]]


def test_the_score_stands_on_the_last_real_token_even_if_nobody_sampled_it():
    """And on that token alone; padding has none."""
    data = batched(trajectory(turns=[(2, 1, 0, 1.0)], rest=2), sequence_length=8)
    assert data["scores"].tolist() == [[0, 0, 0, 0, 1.0, 0, 0, 0]]


def test_the_score_is_the_episode_s_and_the_sum_is_of_the_rewards():
    """A score that was not made of the rewards per turn stands in `scores`; `episode_scores` is their sum."""
    data = batched(trajectory(turns=[(1, 1, 0, 0.25), (1, 1, 0, 0.5)], score=9.0))
    assert data["scores"].sum() == 9.0
    assert data["episode_scores"].tolist() == [0.75]


def test_every_row_of_an_episode_carries_its_score():
    """One row per turn, or per chain where history was rewritten."""
    made = trajectory(turns=[(2, 1, 0, 0.0), (2, 1, 0, 1.0)], rewritten=[1])
    assert batched(made)["scores"].sum(1).tolist() == [1.0, 1.0]
    assert batched(made, rows="turn")["scores"].sum(1).tolist() == [1.0, 1.0]


def test_a_row_that_is_too_long_loses_its_end():
    """The beginning stays, lost response tokens are not trained on, and the loss is said and counted."""
    data = batched(trajectory(turns=[(2, 4, 0, 1.0)]), trajectory(1, turns=[(1, 1, 0, 1.0)]), sequence_length=4)
    assert data["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 0, 0]]
    assert ones(data, "response_mask") == [[2, 3], [1]]
    assert data["cut"].tolist() == [2, 0]
    assert data["truncated"].tolist() == [True, False]
    assert data.meta_info["metrics"]["batch/rows_cut"] == 1


def test_the_score_of_a_cut_row_stands_on_the_last_token_that_is_left():
    """It is neither lost nor made smaller."""
    data = batched(trajectory(turns=[(2, 4, 0, 1.0)]), sequence_length=4)
    assert data["scores"].tolist() == [[0, 0, 0, 1.0]]


def test_a_row_with_nothing_sampled_left_stays_in_the_batch():
    """Its group keeps its size, its score counts in the baseline, and no token of it is trained on."""
    data = batched(trajectory(turns=[(6, 2, 0, 1.0)]), sequence_length=4)
    assert ones(data, "response_mask") == [[]]
    assert ones(data, "prompt_mask") == [[0, 1, 2, 3]]
    assert data["episode_scores"].tolist() == [1.0]
    assert data.meta_info["metrics"]["batch/rows_without_response"] == 1


def test_an_episode_that_hit_a_limit_keeps_its_score_and_says_so():
    """Whether it is trained on is the user's choice, not the batch's."""
    data = batched(trajectory(turns=[(2, 1, 0, 0.5)], ending="max_tokens"))
    assert (data["truncated"].tolist(), data["ending"].tolist()) == ([True], ["max_tokens"])
    assert ones(data, "response_mask") == [[2]]
    assert data["scores"].sum() == 0.5


def test_rewards_of_turns_that_did_not_happen_are_nan_not_zero():
    """A zero would be a reward."""
    data = batched(trajectory(turns=[(1, 1, 0, 0.0), (1, 1, 0, 1.0)]), trajectory(1, turns=[(1, 1, 0, 0.0)]))
    assert data["step_scores"].isnan().tolist() == [[False, False], [False, True]]
    assert data["num_turns"].tolist() == [2, 1]


def test_a_last_response_that_a_limit_cut_off_is_truncated_even_if_the_environment_ended_there():
    whole = trajectory(0, 0, [(2, 3, 0, 1.0), (1, 2, 0, 1.0)])
    last = but(whole, turns=(whole.turns[0], but(whole.turns[1], finish="length")))
    data = make_batch([whole, last], group_ids=[0, 0])
    assert data.non_tensor_batch["cut_turns"].tolist() == [0, 1]
    assert data.non_tensor_batch["truncated"].tolist() == [False, True]


def test_a_response_in_the_middle_that_was_cut_off_is_counted_and_the_episode_goes_on():
    whole = trajectory(0, 0, [(2, 3, 0, 1.0), (1, 2, 0, 1.0)])
    middle = but(whole, turns=(but(whole.turns[0], finish="length"), whole.turns[1]))
    data = make_batch([middle], group_ids=[0], rows="turn")
    assert data.non_tensor_batch["cut_turns"].tolist() == [1, 0]
    assert data.non_tensor_batch["truncated"].tolist() == [False, False]


def test_tokens_sampled_on_an_old_cache_are_marked_if_there_are_any():
    whole = trajectory(0, 0, [(2, 3, 0, 1.0)])
    chain = whole.chains[0]
    old = tuple(but(segment, stale_cache=segment.author == "policy") for segment in chain.segments)
    marked = make_batch([but(whole, chains=(but(chain, segments=old),))], group_ids=[0])
    assert marked["stale_cache"].equal(marked["response_mask"])
    assert "stale_cache" not in make_batch([whole], group_ids=[0])
