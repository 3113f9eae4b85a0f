"""Padded batches: every token where it should be, every key as the contract has it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.given_trajectories import trajectory

from windrow.bench import batch as bench
from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.protocol.columns import same
from windrow.rollout.batching import RowKind, make_batch
from windrow.text import Message
from windrow.trajectory import Chain, Segment, Trajectory
from windrow.types import but

torch = pytest.importorskip("torch")

CONTRACT = {
    "input_ids": (torch.int64, 2),
    "attention_mask": (torch.int64, 2),
    "position_ids": (torch.int64, 2),
    "response_mask": (torch.bool, 2),
    "prompt_mask": (torch.bool, 2),
    "scores": (torch.float32, 2),
    "infer_logprobs": (torch.float32, 2),
    "policy_versions": (torch.int32, 2),
    "turn_ids": (torch.int32, 2),
    "traj_group_id": (torch.int64, 1),
    "traj_id": (torch.int64, 1),
    "env_ids": (torch.int64, 1),
    "step_scores": (torch.float32, 2),
    "num_turns": (torch.int64, 1),
    "episode_scores": (torch.float32, 1),
    "turn_states": (torch.int64, 2),
}
DOOR = 248310276668826794
"""The number of a user who says "door"."""
BY_TURN = ("step_scores", "turn_states")
"""As wide as the longest episode has turns."""


def batched(*trajectories: Trajectory, **options: Any) -> DataProto:
    return make_batch(trajectories, group_ids=[each.attempt.group for each in trajectories], **options)


@pytest.mark.parametrize("rows", ["trajectory", "turn"])
def test_every_key_has_the_dtype_of_the_contract(rows: RowKind):
    data = batched(trajectory(), trajectory(1, turns=[(1, 1, 0, 0.0)]), rows=rows)
    assert data.batch is not None
    found = {name: (tensor.dtype, tensor.ndim) for name, tensor in data.batch.items()}
    assert found == CONTRACT | ({"turn_index": (torch.int64, 1)} if rows == "turn" else {})
    assert [*data.non_tensor_batch] == [
        "tags",
        "traj_group_name",
        "traj_name",
        "score_parts",
        "ending",
        "truncated",
        "cut",
        "cut_turns",
    ]


def test_one_episode_of_two_turns():
    data = batched(trajectory(turns=[(2, 2, 5, 0.25), (1, 1, 6, 0.5)], rest=1), pad_to_multiple=4, pad_token_id=99)
    assert data["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 99]]
    assert data["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 1, 0]]
    assert data["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 0]]
    assert data["response_mask"].int().tolist() == [[0, 0, 1, 1, 0, 1, 0, 0]]
    assert data["prompt_mask"].int().tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]]
    assert data["scores"].tolist() == [[0, 0, 0, 0, 0, 0, 0.75, 0]]
    assert (data["infer_logprobs"] * -1024).tolist() == [[0, 0, 3, 4, 0, 6, 0, 0]]
    assert data["policy_versions"].tolist() == [[-1, -1, 5, 5, -1, 6, -1, -1]]
    assert data["turn_ids"].tolist() == [[-1, -1, 0, 0, -1, 1, -1, -1]]
    assert data["step_scores"].tolist() == [[0.25, 0.5]]
    assert (data["num_turns"].tolist(), data["episode_scores"].tolist()) == ([2], [0.75])


def test_one_row_per_turn():
    data = batched(trajectory(turns=[(2, 2, 5, 0.25), (1, 1, 6, 0.5)], rest=1), rows="turn")
    assert data["input_ids"].tolist() == [[1, 2, 3, 4, 0, 0], [1, 2, 3, 4, 5, 6]]
    assert data["response_mask"].int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1]]
    assert data["prompt_mask"].int().tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert data["scores"].tolist() == [[0, 0, 0, 0.75, 0, 0], [0, 0, 0, 0, 0, 0.75]]
    assert (data["infer_logprobs"] * -1024).tolist() == [[0, 0, 3, 4, 0, 0], [0, 0, 0, 0, 0, 6]]
    assert data["policy_versions"].tolist() == [[-1, -1, 5, 5, -1, -1], [-1, -1, -1, -1, -1, 6]]
    assert data["turn_ids"].tolist() == [[-1, -1, 0, 0, -1, -1], [-1, -1, -1, -1, -1, 1]]
    assert data["turn_index"].tolist() == [0, 1]
    assert data["traj_id"].tolist() == [0, 0]
    assert data["step_scores"].tolist() == [[0.25, 0.5]] * 2


def test_two_turns_without_an_observation_between_them_are_two_rows():
    """The recorder may have written both responses as one run."""
    made = trajectory(turns=[(1, 2, 3, 0.0), (0, 2, 3, 0.0)])
    chain = but(made.chains[0], segments=(Segment("prompt", 1), Segment("policy", 4, 3)))
    data = batched(but(made, chains=(chain,)), rows="turn")
    assert data["response_mask"].int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert batched(but(made, chains=(chain,)))["turn_ids"].tolist() == [[-1, 0, 0, 1, 1]]


def test_a_rewritten_history_gives_a_row_per_chain():
    made = trajectory(3, 1, turns=[(2, 1, 0, 0.0), (1, 1, 0, 1.0), (3, 1, 1, 0.0)], rewritten=[2])
    data = batched(made)
    assert data["input_ids"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]
    assert data["response_mask"].int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 0, 1, 0]]
    assert data["prompt_mask"].int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert data["scores"].tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
    assert data["turn_ids"].tolist() == [[-1, -1, 0, -1, 1], [-1, -1, -1, 2, -1]]
    assert data["num_turns"].tolist() == [3, 3]
    assert data["traj_id"].tolist() == [3 * 2**20 + 1] * 2
    turns = batched(made, rows="turn")
    assert turns["input_ids"].tolist() == [[1, 2, 3, 0, 0], [1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]


def test_ids_say_where_a_row_came_from():
    attempts = [trajectory(3, 1, seat=9, tag="maze"), trajectory(4, 0, seat=2, ending="max_turns")]
    data = make_batch(attempts, group_ids=[7, 7])
    assert data["traj_group_id"].tolist() == [7, 7]
    assert data["traj_id"].tolist() == [3 * 2**20 + 1, 4 * 2**20]
    assert data["env_ids"].tolist() == [9, 2]
    assert data["traj_group_name"].tolist() == ["g7", "g7"]
    assert data["traj_name"].tolist() == ["g3.a1", "g4.a0"]
    assert data["tags"].tolist() == ["maze", ""]
    assert data["ending"].tolist() == ["terminated", "max_turns"]
    assert data["truncated"].tolist() == [False, True]
    assert data["cut"].tolist() == [0, 0]


def test_an_episode_without_turns_still_has_a_row():
    made = trajectory(turns=[], rest=2, score=0.5)
    for rows in ("trajectory", "turn"):
        data = batched(made, trajectory(), rows=rows)
        assert data["prompt_mask"][0].int().tolist() == [1, 1, 0, 0, 0]
        assert not data["response_mask"][0].any()
        assert data["scores"][0].tolist() == [0, 0.5, 0, 0, 0]
        assert (data["num_turns"][0], data["episode_scores"][0]) == (0, 0.0)
        assert data["step_scores"][0].isnan().all()
        assert data.meta_info["metrics"]["batch/rows_without_response"] == 1
    assert batched(made, rows="turn")["turn_index"].tolist() == [-1]


def test_an_episode_without_tokens_has_no_place_for_its_score():
    data = batched(trajectory(turns=[], score=0.5), trajectory(), sequence_length=6)
    assert data["scores"].sum(1).tolist() == [0.0, 1.0]
    assert batched(trajectory(turns=[]))["input_ids"].shape == (1, 0)


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, 5),
        ({"pad_to_multiple": 4}, 8),
        ({"sequence_length": 16}, 16),
        ({"sequence_length": 8, "pad_to_multiple": 8}, 8),
    ],
)
def test_rows_are_as_wide_as_the_longest_or_as_asked(options: dict[str, int], width: int):
    assert batched(trajectory(), **options)["input_ids"].shape == (1, width)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sequence_length": 0}, "sequence_length must be 1 or more, got 0"),
        ({"pad_to_multiple": 0}, "pad_to_multiple must be 1 or more, got 0"),
        (
            {"sequence_length": 10, "pad_to_multiple": 8},
            "sequence_length 10 is no multiple of pad_to_multiple 8; use 16",
        ),
        ({"rows": "step"}, "rows must be trajectory or turn, got step"),
        ({"group_ids": [1, 2]}, "1 trajectories need as many group_ids, got 2"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(DataError, match=words):
        make_batch([trajectory()], **{"group_ids": [0], **options})


def without_logprobs() -> Trajectory:
    made = trajectory(2, 1)
    return but(made, chains=(but(made.chains[0], logprobs=np.zeros(1, np.float32)),))


@pytest.mark.parametrize(
    ("made", "rows", "words"),
    [
        ([], "trajectory", "a batch needs at least one trajectory"),
        ([but(trajectory(), chains=())], "trajectory", "g0.a0 has no tokens at all"),
        (
            [without_logprobs()],
            "trajectory",
            "g2.a1 chain 0 has 5 tokens, 1 log-probabilities and segments of 5 tokens",
        ),
        ([trajectory(0, 2**20)], "trajectory", "g0.a1048576 has no traj_id; an index must be below 1,048,576"),
        ([trajectory(-1)], "trajectory", "g-1.a0 has no traj_id"),
        ([trajectory(2**43)], "trajectory", "has no traj_id"),
        (
            [but(trajectory(), chains=trajectory(turns=[]).chains)],
            "turn",
            r"g0.a0 turn 0 is at 3 to 5 of chain 0, which is not in chains of \[0\] tokens",
        ),
        (
            [but(trajectory(turns=[(1, 2, 0, 0.0)] * 2), turns=trajectory(turns=[(1, 2, 0, 0.0)] * 2).turns[::-1])],
            "trajectory",
            "g0.a0 turn 1 is at 1 to 3 of chain 0, .* one after the other",
        ),
        ([but(trajectory(), turns=())], "trajectory", "g0.a0 has 2 sampled tokens and turns of 0"),
    ],
)
def test_trajectories_that_do_not_fit_together_are_refused(made: list[Trajectory], rows: RowKind, words: str):
    with pytest.raises(DataError, match=words):
        make_batch(made, group_ids=[0] * len(made), rows=rows)


def test_metrics_count_what_was_padded_and_cut():
    data = batched(trajectory(), trajectory(turns=[(8, 2, 0, 0.0)]), sequence_length=8)
    assert data.meta_info["metrics"] == {
        "batch/rows": 2,
        "batch/rows_cut": 1,
        "batch/rows_without_response": 1,
        "batch/tokens": 13,
        "batch/tokens_cut": 2,
        "batch/padding_share": 3 / 16,
    }


def test_a_batch_can_be_saved_and_loaded(tmp_path):
    data = batched(trajectory(), trajectory(1, turns=[(1, 1, 0, math.nan)]), rows="turn")
    data.save(tmp_path / "batch")
    again = DataProto.load(tmp_path / "batch")
    assert again.meta_info == data.meta_info
    assert all(same(data[name], again[name]) for name in data.keys())  # noqa: SIM118  # iterating gives rows


turns = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.sampled_from([0.0, 0.5, -1.0])), max_size=4
)
episodes = st.builds(
    trajectory,
    st.integers(0, 5),
    st.integers(0, 5),
    turns,
    score=st.sampled_from([0.0, 1.0, -2.5]),
    rewritten=st.lists(st.integers(1, 3), max_size=2),
    rest=st.integers(0, 2),
    seat=st.integers(0, 9),
)
widths = st.none() | st.integers(1, 20)


@given(st.lists(episodes, min_size=1, max_size=4), st.sampled_from(["trajectory", "turn"]), widths)
def test_every_token_stands_where_it_should(made: list[Trajectory], rows: RowKind, width: int | None):
    """Token by token against the trajectories themselves."""
    data = make_batch(made, group_ids=[9] * len(made), rows=rows, sequence_length=width, pad_token_id=-7)
    expected = [row for each in made for row in slow_rows(each, rows)]
    assert len(data) == len(expected)
    longest = max(len(chain.token_ids[:end]) for _, chain, _, end in expected)
    assert data["input_ids"].shape == (len(expected), longest if width is None else width)
    for item, (owner, chain, since, end) in zip(data, expected, strict=True):
        assert item.batch is not None
        kept = min(end, data["input_ids"].shape[1])
        assert item.non_tensor_batch["cut"] == end - kept
        assert item.non_tensor_batch["truncated"] == (owner.is_truncated or end > kept)
        table = {name: item.batch[name].tolist() for name in CONTRACT if CONTRACT[name][1] == 2}
        for place in range(data["input_ids"].shape[1]):
            cell = {name: table[name][place] for name in table if name not in BY_TURN}
            assert cell == slow_cell(owner, chain, since, kept, place), place


def slow_rows(made: Trajectory, rows: RowKind) -> list[tuple[Trajectory, Chain, int, int]]:
    whole = [(made, chain, 0, len(chain.token_ids)) for chain in made.chains]
    if rows == "trajectory":
        return whole
    return [(made, made.chains[turn.chain], turn.begin, turn.end) for turn in made.turns] or whole[:1]


def slow_cell(owner: Trajectory, chain: Chain, since: int, kept: int, place: int) -> dict[str, float | bool]:
    authors = [segment.author for segment in chain.segments for _ in range(segment.length)][:kept]
    sampled = [since <= number and author == "policy" for number, author in enumerate(authors)]
    real = place < kept
    mine = real and sampled[place]
    return {
        "input_ids": int(chain.token_ids[place]) if real else -7,
        "attention_mask": int(real),
        "position_ids": place if real else 0,
        "response_mask": mine,
        "prompt_mask": real and not any(sampled[: place + 1]),
        "scores": owner.score if place == kept - 1 else 0.0,
        "infer_logprobs": float(chain.logprobs[place]) if mine else 0.0,
        "policy_versions": int(chain.versions()[place]) if mine else -1,
        "turn_ids": slow_turn(owner, chain, place) if mine else -1,
    }


def slow_turn(owner: Trajectory, chain: Chain, place: int) -> int:
    found = [
        number
        for number, turn in enumerate(owner.turns)
        if owner.chains[turn.chain] is chain and turn.begin <= place < turn.end
    ]
    assert len(found) == 1
    return found[0]


def shown(*observations: str, group: int = 0) -> Trajectory:
    """An episode with a turn for each of some observations."""
    made = trajectory(group, turns=[(1, 1, 0, 0.0)] * len(observations))
    seen = [(Message("user", text),) if text else () for text in observations]
    return but(made, turns=tuple(but(turn, seen=each) for turn, each in zip(made.turns, seen, strict=True)))


def test_a_state_has_the_same_number_wherever_it_is_seen_and_no_other_state_has_it():
    data = batched(shown("door", "key", "door"), shown("key", "lamp", group=1))
    (door, key, again), (key_too, lamp, none) = data["turn_states"].tolist()
    assert (door, key) == (again, key_too)
    assert len({door, key, lamp, none}) == 4
    assert none == -1
    assert min(door, key, lamp) >= 0


def test_a_state_is_its_role_its_speaker_and_its_words():
    """The number is pinned: estimates of other processes are compared by it."""
    made = shown("door")
    others = [Message("tool", "door"), Message("user", "door", "bell"), Message("user", "doo")]
    seens = [*((other,) for other in others), (Message("user", "do"), Message("user", "or"))]
    states = batched(made, *(but(made, turns=(but(made.turns[0], seen=seen),)) for seen in seens))["turn_states"]
    assert len(set(states.flatten().tolist())) == 5
    assert states[0].item() == DOOR


def test_a_state_that_nobody_wrote_down_has_no_number():
    assert batched(shown("door", ""))["turn_states"][0].tolist() == [DOOR, -1]


def test_rows_of_turns_know_all_states_of_their_episode():
    by_turn = batched(shown("door", "key"), rows="turn")["turn_states"]
    assert by_turn.tolist() == batched(shown("door", "key"))["turn_states"].tolist() * 2


def test_padding_by_row_gives_the_same_tensors():
    """The benchmark compares like with like."""
    made = bench.ragged(16)
    one, other = bench.ours(made), bench.padded_by_row(made)
    assert one.keys() == other.keys()
    assert all(same(one[name], other[name]) for name in one)


def test_the_benchmark_compares_every_way_with_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "ROWS", 4)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # other than the benchmark's own
    try:
        results = bench.run(lambda _: None)
        assert torch.get_num_threads() == threads + 1, "as it was before"
    finally:
        torch.set_num_threads(threads)
    assert len({result.what for result in results}) == len(results) == 3
