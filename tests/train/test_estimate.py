"""Batches as rollouts make them get their advantages."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.given_trajectories import Shape, trajectory
from torch import Tensor

from windrow.errors import ConfigError, DataError
from windrow.protocol import DataProto
from windrow.rollout.batching import RowKind, make_batch
from windrow.text import Message
from windrow.train.config import EstimatorConfig, LossConfig
from windrow.train.episodes import Episodes
from windrow.train.estimate import estimate
from windrow.trajectory import Trajectory
from windrow.types import but

ROW_KINDS: tuple[RowKind, RowKind] = ("trajectory", "turn")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"kind": "grpo"},
    {"kind": "grpo", "credit": "turn", "discount": 0.9},
    {"kind": "grpo", "whiten": True},
    {"kind": "rloo"},
    {"kind": "rloo", "credit": "turn"},
    {"kind": "gigpo", "discount": 0.9},
    {"kind": "reinforce", "credit": "turn", "discount": 0.9},
    {"kind": "reinforce", "discount": 0.9},
    {"kind": "reinforce_pp"},
    {"kind": "gae", "credit": "turn", "discount": 0.9, "whiten": False},
    {"kind": "gae", "whiten": False},
)
"""Every estimator in every way that counts rewards differently."""

every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: "-".join(map(str, each.values())))


def batched(*trajectories: Trajectory, **options: Any) -> DataProto:
    return make_batch(trajectories, group_ids=[each.attempt.group for each in trajectories], **options)


def with_columns(data: DataProto, **columns: Tensor) -> DataProto:
    return data.union(DataProto.from_dict(columns))


def valued(data: DataProto, value: float = 0.25) -> DataProto:
    return with_columns(data, values=torch.full(data["scores"].shape, value))


def advantages(data: DataProto, loss: LossConfig | None = None, **settings: Any) -> Tensor:
    made: Tensor = estimate(data, EstimatorConfig(**settings), loss or LossConfig())["advantages"]
    return made


def by_token(data: DataProto, advantages: Tensor) -> dict[tuple[int, int], float]:
    """The advantage of each sampled token, under its trajectory and its token id: both are unique."""
    rows, places = data["response_mask"].nonzero(as_tuple=True)
    return {
        (int(data["traj_id"][row]), int(data["input_ids"][row, place])): float(advantages[row, place])
        for row, place in zip(rows.tolist(), places.tolist(), strict=True)
    }


def seen(made: Trajectory, *words: str) -> Trajectory:
    """The same with what was shown before each turn."""
    turns = [
        but(turn, seen=(Message(role="user", content=word),) if word else ())
        for turn, word in zip(made.turns, words, strict=True)
    ]
    return but(made, turns=tuple(turns))


def test_every_sampled_token_of_a_trajectory_gets_its_comparison():
    """Scores 3 and 1 in a group: ±1."""
    data = batched(trajectory(turns=[(1, 2, 0, 1.0), (1, 1, 0, 2.0)]), trajectory(0, 1, turns=[(1, 1, 0, 1.0)]))
    found = advantages(data, spread="none")
    assert found.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.0], [0.0, -1.0, 0.0, 0.0, 0.0]]
    assert found.dtype == torch.float32


def test_a_trajectory_counts_once_however_many_rows_it_has():
    """Scores 3, 1 and 2 have the mean 2; counted by row the first would weigh three times as much."""
    three = [(1, 1, 0, 1.0), (1, 1, 0, 1.0), (1, 1, 0, 1.0)]
    data = batched(
        trajectory(turns=three), trajectory(0, 1), trajectory(0, 2, score=2.0, turns=[(1, 1, 0, 0.0)]), rows="turn"
    )
    found = advantages(data, spread="none")
    assert found.sum(dim=1).tolist() == [1.0, 1.0, 1.0, -2.0, 0.0]  # the fourth has two tokens


@st.composite
def episodes(draw: st.DrawFn) -> list[Trajectory]:
    """Two groups of attempts; histories may be rewritten, responses empty, scores more than their rewards."""
    reward = st.integers(-8, 8).map(lambda n: n / 4)
    shape = st.tuples(st.integers(1, 2), st.integers(0, 3), st.just(0), reward)
    made = []
    for index in range(draw(st.integers(1, 6))):
        turns: list[Shape] = draw(st.lists(shape, max_size=4))
        cuts = draw(st.lists(st.integers(1, 3), max_size=2, unique=True))
        one = trajectory(
            index % 2, index // 2, turns, rest=1, score=draw(st.none() | reward),
            rewritten=[cut for cut in cuts if cut < len(turns)],
        )  # fmt: skip
        made.append(seen(one, *(draw(st.sampled_from(["", "wall", "door"])) for _ in turns)))
    return made


@every_setting
@settings(max_examples=30)
@given(made=episodes(), kl=st.sampled_from([0.0, 0.5]))
def test_how_rows_are_cut_does_not_change_what_a_token_gets(setting: dict[str, Any], made: list[Trajectory], kl: float):
    """A row per trajectory or per turn, in another order, or one of them twice."""
    found: list[dict[tuple[int, int], float]] = []
    for rows in ROW_KINDS:
        data = valued(batched(*made, rows=rows))
        data = with_columns(data, ref_logprobs=data["infer_logprobs"] * data["response_mask"] / 2)
        order = torch.arange(len(data)).flip(0).tolist()
        views = (data, data.select_idxs(order), data.select_idxs([*order, 0]))
        found += [by_token(view, advantages(view, LossConfig(kl_in_reward=kl), **setting)) for view in views]
    for other in found[1:]:
        assert found[0].keys() == other.keys()
        assert list(found[0].values()) == pytest.approx([other[token] for token in found[0]], abs=1e-4)


@every_setting
@settings(max_examples=30)
@given(made=episodes())
def test_advantages_are_finite_and_nothing_where_nothing_was_sampled(setting: dict[str, Any], made: list[Trajectory]):
    data = valued(batched(*made))
    done = estimate(data, EstimatorConfig(**setting), LossConfig())
    for name in ("advantages", "returns") if setting["kind"] == "gae" else ("advantages",):
        assert bool(done[name].isfinite().all())
        assert not done[name][~data["response_mask"]].any()
        assert done[name].dtype == torch.float32
    assert all(math.isfinite(number) for number in done.meta_info["metrics"].values())


@every_setting
def test_a_batch_in_which_nothing_was_sampled_is_no_accident(setting: dict[str, Any]):
    data = valued(batched(trajectory(turns=[], rest=2, score=1.0), trajectory(0, 1, turns=[(2, 0, 0, 1.0)])))
    assert not advantages(data, **setting).any()


@every_setting
def test_the_given_batch_stays_as_it_was(setting: dict[str, Any]):
    data = valued(batched(trajectory(), trajectory(0, 1)))
    before = data.clone()
    done = estimate(data, EstimatorConfig(**setting), LossConfig())
    assert sorted(data.keys()) == sorted(before.keys())
    assert data.meta_info == before.meta_info
    assert {*done.keys()} - {*data.keys()} == {"advantages"} | ({"returns"} if setting["kind"] == "gae" else set())
    assert done.meta_info["metrics"].items() > data.meta_info["metrics"].items()
    again = estimate(done, EstimatorConfig(**setting), LossConfig())
    assert torch.equal(again["advantages"], done["advantages"])


def test_a_trajectory_without_tokens_counts_in_what_its_siblings_are_compared_with():
    """Scores 1 and 0 have the mean ½."""
    data = batched(trajectory(), trajectory(0, 1, turns=[], rest=2, score=0.0))
    assert advantages(data, spread="none").sum(dim=1).tolist() == [1.0, 0.0]  # two tokens of ½


def test_with_turn_credit_a_turn_gets_what_comes_from_it_on():
    """Discount ½: 1 + ½·4 and 4 of the first, 2 of the second; turn 0 has the mean 2.5, turn 1 is alone."""
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 1, 0, 4.0)]), trajectory(0, 1, turns=[(1, 1, 0, 2.0)]))
    found = advantages(data, spread="none", credit="turn", discount=0.5)
    assert found.tolist() == [[0.0, 0.5, 0.0, 0.0], [0.0, -0.5, 0.0, 0.0]]


def test_what_the_score_has_beyond_its_steps_comes_with_the_last_turn():
    """Steps 1 and 2, score 10: the last turn earned 2 + 7."""
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 1, 0, 2.0)], score=10.0))
    assert advantages(data, kind="reinforce", credit="turn", discount=0.5)[0].tolist() == [0, 1 + 0.5 * 9, 0, 9]


def test_with_episode_credit_the_score_comes_with_the_last_turn():
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 2, 0, 2.0)], score=10.0, rest=1))
    assert advantages(data, kind="reinforce", discount=0.5)[0].tolist() == [0, 5, 0, 10, 10, 0]


def test_what_a_turn_without_tokens_earned_goes_to_the_turn_before():
    """The second response is empty: its 4 reaches the first with one discount, the third's 8 with two."""
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 0, 0, 4.0), (1, 1, 0, 8.0)]))
    assert advantages(data, kind="reinforce", credit="turn", discount=0.5)[0].tolist() == [0, 1 + 2 + 2, 0, 0, 8]


def test_what_was_cut_off_still_counts_for_what_is_left():
    """Only the first two tokens fit; the second turn's 4 reaches the first all the same."""
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 1, 0, 4.0)]), sequence_length=2)
    assert advantages(data, kind="reinforce", credit="turn", discount=0.5)[0].tolist() == [0, 1 + 2]
    assert advantages(data, kind="reinforce", discount=0.5)[0].tolist() == [0, 2.5]


def test_gae_goes_on_over_rows():
    """Values ¼, discount ½, lambda 1: the return of the first turn is ½ × that of the second, in another row."""
    made = trajectory(turns=[(1, 1, 0, 0.0), (2, 1, 0, 2.0)], rewritten=[1])
    done = estimate(
        valued(batched(made)), EstimatorConfig(kind="gae", discount=0.5, gae_lambda=1.0, whiten=False), LossConfig()
    )
    assert done["returns"].tolist() == [[0, 1, 0], [0, 0, 2]]
    assert done["advantages"].tolist() == [[0, 0.75, 0], [0, 0, 1.75]]


def test_gae_and_reinforce_pp_are_white_unless_told_otherwise():
    data = valued(batched(trajectory(), trajectory(0, 1, turns=[(1, 1, 0, 5.0)])))
    for kind in ("gae", "reinforce_pp"):
        found = advantages(data, kind=kind)[data["response_mask"]]
        assert float(found.mean()) == pytest.approx(0, abs=1e-6)
        assert float(found.std()) == pytest.approx(1, abs=1e-6)
    assert advantages(data, kind="reinforce").sum() == 1 + 1 + 5
    white = advantages(data, kind="reinforce", whiten=True)
    assert torch.allclose(white, advantages(data, kind="reinforce_pp"))


def test_advantages_can_be_held_within_a_bound():
    data = batched(trajectory(score=9.0), trajectory(0, 1, score=1.0))
    assert advantages(data, spread="none", clip=0.5).unique().tolist() == [-0.5, 0.0, 0.5]


def test_gigpo_compares_turns_that_saw_the_same():
    """Both begin at the door with 3 and 1 to come: ±1 as episodes, ±1 there; the wall was seen once."""
    data = batched(
        seen(trajectory(turns=[(1, 1, 0, 1.0), (1, 1, 0, 2.0)]), "door", "wall"),
        seen(trajectory(0, 1, turns=[(1, 1, 0, 1.0)]), "door"),
    )
    done = estimate(data, EstimatorConfig(kind="gigpo", spread="none", anchor_weight=0.5), LossConfig())
    assert done["advantages"].tolist() == [[0, 1.5, 0, 1], [0, -1.5, 0, 0]]
    assert done.meta_info["metrics"]["train/anchored_share"] == pytest.approx(2 / 3)


def referred(data: DataProto, distance: float) -> DataProto:
    """Every sampled token `distance` more likely than the reference has it, by k1."""
    return with_columns(data, ref_logprobs=data["infer_logprobs"] - distance)


def test_the_distance_from_the_reference_costs_score():
    """Two tokens of ½ × 0.5 off the first score, one off the second: 3 − ½ and 1 − ¼ are ±0.875 from their mean."""
    data = batched(trajectory(turns=[(1, 2, 0, 3.0)]), trajectory(0, 1, turns=[(1, 1, 0, 1.0)]))
    loss = LossConfig(kl_in_reward=0.5, kl_kind="k1")
    done = estimate(referred(data, 0.5), EstimatorConfig(spread="none"), loss)
    assert done["advantages"][:, 1].tolist() == pytest.approx([0.875, -0.875])
    assert done.meta_info["metrics"]["train/kl_in_reward"] == pytest.approx(0.5)


def test_the_distance_from_the_reference_costs_each_token_from_it_on():
    """¼ per token: the last keeps 2 − ¼, each before it pays one more, half of all that a turn earlier."""
    data = referred(batched(trajectory(turns=[(1, 1, 0, 0.0), (1, 2, 0, 2.0)])), 0.5)
    loss = LossConfig(kl_in_reward=0.5, kl_kind="k1")
    found = advantages(data, loss, kind="reinforce", discount=0.5)
    assert found[0].tolist() == pytest.approx([0, -0.25 + 1.5 / 2, 0, 1.5, 1.75])


@pytest.mark.parametrize("kind", ["grpo", "gigpo"])
def test_the_distance_from_the_reference_costs_each_turn_what_its_tokens_cost(kind: str):
    """Turn 0 of the first: 4 − 2 tokens × ¼; of the second: 1 − ¼. They are ±1.375 from their mean."""
    data = batched(
        seen(trajectory(turns=[(1, 2, 0, 4.0)]), "door"), seen(trajectory(0, 1, turns=[(1, 1, 0, 1.0)]), "door")
    )
    loss = LossConfig(kl_in_reward=0.5, kl_kind="k1")
    setting = {"credit": "turn"} if kind == "grpo" else {"anchor_weight": 1.0}
    found = advantages(referred(data, 0.5), loss, kind=kind, spread="none", **setting)
    times = 1 if kind == "grpo" else 2  # as an episode and as a turn
    assert found[:, 1].tolist() == pytest.approx([times * 1.375, times * -1.375])


def test_the_distance_is_that_of_the_trainer_where_its_numbers_are_known():
    data = referred(batched(trajectory(turns=[(1, 1, 0, 1.0)])), 0.5)
    data = with_columns(data, old_logprobs=data["ref_logprobs"])
    assert advantages(data, LossConfig(kl_in_reward=1.0, kl_kind="k1"), kind="reinforce")[0, 1] == 1.0


def test_metrics_by_hand():
    """Scores 1, 1 | 0, 1: the first group has no signal; of six tokens two have an advantage of +½ and two of −½."""
    data = batched(*(trajectory(group, index, score=score) for group, index, score in SCORES))
    metrics = estimate(data, EstimatorConfig(spread="none"), LossConfig()).meta_info["metrics"]
    assert metrics["train/score_mean"] == 0.75
    assert metrics["train/groups_without_signal_share"] == 0.5
    assert metrics["train/tokens_without_signal_share"] == 0.5
    assert metrics["train/advantage_mean"] == 0.0
    assert metrics["train/advantage_std"] == pytest.approx(0.125**0.5)
    assert metrics["train/advantage_max"] == 0.5
    assert metrics["batch/rows"] == 4


SCORES = ((0, 0, 1.0), (0, 1, 1.0), (1, 0, 0.0), (1, 1, 1.0))


def test_what_the_critic_explains_by_hand():
    """Returns 1, 1, 3, 3 vary by 1; values that are right about the first two and ½ short of the others leave 1/16."""
    data = batched(trajectory(), trajectory(0, 1, score=3.0))
    data = with_columns(data, values=torch.tensor([1.0, 2.5])[:, None].expand(data["scores"].shape).clone())
    config = EstimatorConfig(kind="gae", gae_lambda=1.0)
    assert estimate(data, config, LossConfig()).meta_info["metrics"]["train/value_explained"] == pytest.approx(15 / 16)


@pytest.mark.parametrize(
    ("missing", "setting", "words"),
    [
        ("values", {"kind": "gae"}, "gae needs the column values; ask the critic first"),
        ("turn_states", {"kind": "gigpo"}, "gigpo needs the column turn_states; make the batch"),
        ("turn_ids", {"kind": "reinforce"}, "reinforce needs the column turn_ids"),
        ("step_scores", {"credit": "turn"}, "grpo needs the column step_scores"),
        ("traj_id", {}, "grpo needs the column traj_id"),
    ],
)
def test_what_is_missing_is_said(missing: str, setting: dict[str, Any], words: str):
    data = valued(batched(trajectory()))
    data.pop([missing])
    with pytest.raises(DataError, match=words):
        advantages(data, **setting)


def test_a_distance_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match=r"loss\.kl_in_reward is 0\.5 but the batch has no ref_logprobs"):
        advantages(batched(trajectory()), LossConfig(kl_in_reward=0.5))


def test_grpo_asks_for_no_more_than_it_needs():
    data = batched(trajectory(), trajectory(0, 1, score=0.0)).select(
        ["response_mask", "scores", "traj_id", "traj_group_id"]
    )
    assert advantages(data, spread="none").sum(dim=1).tolist() == [1.0, -1.0]


def test_rows_that_contradict_each_other_are_refused():
    data = batched(trajectory(turns=[(1, 1, 0, 1.0), (1, 1, 0, 1.0)]), rows="turn")
    data["scores"][0] *= 2
    with pytest.raises(DataError, match="rows of trajectory 0 have scores 2 and 4"):
        advantages(data)


@pytest.mark.parametrize("score", [-2.0, 2.0])
def test_a_row_without_a_single_token_has_no_say_in_the_score(score: float):
    ids, groups = torch.tensor([5, 5, 9]), torch.tensor([3, 3, 3])
    found = Episodes.of(ids, groups, torch.tensor([[0.0, 0.0], [0.0, score], [1.0, 0.0]]))
    assert found.scores.tolist() == [score, 1.0]
    assert (found.owners.tolist(), found.first.tolist()) == ([0, 0, 1], [0, 2])


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(score: float):
    with pytest.raises(DataError, match="scores must be finite"):
        advantages(batched(trajectory(), trajectory(0, 1, score=score)))


def test_a_sampled_token_without_a_turn_is_refused():
    data = batched(trajectory())
    data["turn_ids"][:] = -1
    with pytest.raises(DataError, match="sampled tokens have no turn"):
        advantages(data, kind="reinforce")


def test_a_turn_that_has_no_step_score_is_refused():
    data = batched(trajectory())
    data["turn_ids"][data["response_mask"]] = 4
    with pytest.raises(DataError, match="turn_ids name turn 4 but step_scores and turn_states have 1 turns"):
        advantages(data, kind="reinforce")


def test_reinforce_pp_that_is_not_white_has_another_name():
    with pytest.raises(ConfigError, match="is reinforce; choose that"):
        EstimatorConfig(kind="reinforce_pp", whiten=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "grpo", "discount": 0.9}, "discount 0.9 changes nothing with grpo and credit episode"),
        ({"kind": "rloo", "discount": 0.9}, "discount 0.9 changes nothing with rloo and credit episode"),
        ({"kind": "rloo", "spread": "none"}, "spread none changes nothing with rloo; it is for grpo and gigpo"),
        ({"kind": "grpo", "gae_lambda": 1.0}, r"gae_lambda 1.0 changes nothing with grpo; it is for gae"),
        ({"kind": "grpo", "anchor_weight": 0.5}, "anchor_weight 0.5 changes nothing with grpo; it is for gigpo"),
        ({"kind": "gigpo", "credit": "turn"}, "credit turn changes nothing with gigpo"),
    ],
)
def test_a_setting_that_an_estimator_does_not_look_at_is_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        EstimatorConfig(**settings)
