"""Behaviour cloning."""

import numpy as np
import pytest
import torch
from tests.train import kit

from windrow.errors import DataError
from windrow.train.config import DemonstrationConfig, MicroConfig, OptimizerConfig
from windrow.train.learner import Learner
from windrow.train.networks import Policy
from windrow.train.rows import Rows
from windrow.train.supervised import Demonstration, clone, demonstrations, supervise
from windrow.trajectory import Chain, Segment, Task, Trajectory
from windrow.types import AttemptId

FAST = OptimizerConfig(lr=1e-2)


def learner(seed: int = 0, micro: MicroConfig | None = None) -> Learner:
    return Learner(Policy(kit.model(seed=seed)), FAST, micro or MicroConfig())


def counting(first: int, length: int = 6, learn_from: int = 2) -> Demonstration:
    """Tokens that count up; the beginning is given."""
    return Demonstration(np.arange(first, first + length, dtype=np.int32), np.arange(length) >= learn_from)


def test_a_policy_learns_to_say_what_it_was_shown():
    one = learner()
    rows = [counting(first, 4 + first % 3) for first in range(1, 20)]
    told: list[float] = []
    config = DemonstrationConfig(steps=60, batch_size=8, optimizer=FAST)
    last = supervise(one, rows, config, seed=1, on_step=lambda _, said: told.append(said["supervised/loss"]))
    assert len(told) == one.steps == 60
    assert last["supervised/loss"] < 0.2 * told[0]
    assert last["supervised/probability"] > 0.8


def test_the_loss_is_the_mean_over_tokens_that_are_to_be_learnt():
    batch = kit.batch()
    rows = Rows.of(batch)
    logprobs = kit.plain_logprobs(kit.model(), batch)
    for micro in (MicroConfig(), MicroConfig(tokens=9)):
        told = clone(learner(micro=micro), rows)
        assert told["supervised/loss"] == pytest.approx(-logprobs.sum().item() / 17, rel=1e-5)
        chosen = logprobs[rows.mask].exp().mean().item()
        assert told["supervised/probability"] == pytest.approx(chosen, rel=1e-5)


def test_only_what_the_policy_said_is_learnt_in_every_chain():
    segments = (Segment("prompt", 2), Segment("policy", 2, 0), Segment("environment", 1), Segment("policy", 1, 0))
    one = Chain(token_ids=np.arange(6, dtype=np.int32), logprobs=np.zeros(6, np.float32), segments=segments)
    other = Chain(
        token_ids=np.arange(3, dtype=np.int32),
        logprobs=np.zeros(3, np.float32),
        segments=(Segment("prompt", 2), Segment("policy", 1, 4)),
    )
    trajectory = Trajectory(
        attempt=AttemptId(0, 0), seat=0, mode="train", task=Task(ordinal=0), chains=(one, other), turns=(),
        score=1.0, ending="terminated",
    )  # fmt: skip
    found = demonstrations([trajectory])
    assert [row.learn.tolist() for row in found] == [[False, False, True, True, False, True], [False, False, True]]
    assert [row.token_ids.tolist() for row in found] == [[0, 1, 2, 3, 4, 5], [0, 1, 2]]


def test_every_demonstration_has_its_turn_before_one_comes_again():
    """Rows of different lengths, so that the tokens of a step say which rows were in it."""
    rows = [counting(1, 3 + 2**number, 2) for number in range(5)]
    one, seen = learner(), []
    config = DemonstrationConfig(steps=20, batch_size=1, optimizer=FAST)
    supervise(one, rows, config, on_step=lambda _, said: seen.append(said["supervised/tokens"]))
    rounds = [seen[begin : begin + 5] for begin in range(0, 20, 5)]
    assert all(sorted(each) == [4, 5, 7, 11, 19] for each in rounds)
    assert len({str(each) for each in rounds}) > 1, "every time in another order"


def test_training_that_goes_on_from_a_state_sees_what_it_would_have_seen():
    rows = [counting(first, 4 + first % 5) for first in range(1, 14)]
    config = DemonstrationConfig(steps=9, batch_size=4, optimizer=FAST)
    whole, first, second = learner(), learner(), learner(seed=2)
    supervise(whole, rows, config, seed=3)
    supervise(first, rows, DemonstrationConfig(steps=5, batch_size=4, optimizer=FAST), seed=3)
    second.load_state_dict(first.state_dict())
    supervise(second, rows, config, seed=3)
    for name, each in whole.parameters.items():
        assert torch.equal(second.parameters[name], each), name


def test_the_seed_decides_the_order():
    rows = [counting(first) for first in range(1, 14)]
    config = DemonstrationConfig(steps=2, batch_size=4, optimizer=FAST)
    made = []
    for seed in (0, 0, 1):
        one = learner()
        supervise(one, rows, config, seed=seed)
        made.append(torch.cat([each.detach().flatten() for each in one.parameters.values()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_fewer_demonstrations_than_a_step_takes_are_all_taken():
    one = learner()
    config = DemonstrationConfig(steps=2, batch_size=64, optimizer=FAST)
    assert supervise(one, [counting(1), counting(5)], config)["supervised/tokens"] == 12.0


def test_a_demonstration_from_which_nothing_can_be_learnt_is_left_out():
    rows = [counting(1, learn_from=9), counting(3), counting(5, learn_from=9)]
    one = learner()
    told = supervise(one, rows, DemonstrationConfig(steps=4, batch_size=1, optimizer=FAST))
    assert (one.steps, told["supervised/tokens"]) == (4, 6.0)


def test_demonstrations_without_anything_to_learn_are_refused():
    with pytest.raises(DataError, match="none of 2 demonstrations has a token to learn"):
        supervise(learner(), [counting(1, learn_from=9)] * 2, DemonstrationConfig())
    with pytest.raises(DataError, match="none of 0 demonstrations"):
        supervise(learner(), [], DemonstrationConfig())
