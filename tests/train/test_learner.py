"""Steps, schedules, and going on from where somebody stopped."""

import copy
import math

import pytest
import torch
from tests.train import kit
from torch import Tensor

from windrow.errors import ConfigError, TrainError
from windrow.train.config import MicroConfig, OptimizerConfig
from windrow.train.learner import Learner, Loss
from windrow.train.networks import Policy, Said, Values
from windrow.train.rows import Piece, Rows
from windrow.train.schedules import learning_rate
from windrow.types import but

OPTIMIZER = OptimizerConfig(lr=1e-2, weight_decay=0.1, warmup_steps=3, schedule="linear", decay_steps=20)


def learner(optimizer: OptimizerConfig = OPTIMIZER, micro: MicroConfig | None = None, seed: int = 0) -> Learner:
    return Learner(Policy(kit.model(seed=seed)), optimizer, micro or MicroConfig())


def likelihood(of: Learner, rows: Rows) -> Loss:
    """A loss: minus the mean log-probability."""
    tokens = rows.tokens()

    def loss(piece: Piece) -> Tensor:
        said: Said = of.network(piece.asked, 1.0)
        return -said.logprobs.sum() / tokens

    return loss


def steps(of: Learner, count: int = 1, first: int = 0) -> list[dict[str, float]]:
    told = []
    for number in range(first, first + count):
        rows = Rows.of(kit.batch(seed=number))
        told.append(of.step(rows, likelihood(of, rows)))
    return told


def test_a_step_lowers_the_loss():
    one = learner()
    rows = Rows.of(kit.batch())
    losses = [one.step(rows, likelihood(one, rows))["train/loss"] for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("micro", [MicroConfig(tokens=9), MicroConfig(tokens=20), MicroConfig(packing=True)])
def test_a_step_is_the_same_however_its_rows_are_cut(micro):
    plain = OptimizerConfig(lr=1e-3, eps=1e-3)  # a gradient of 0 is divided by this, so that rounding stays rounding
    whole, cut = learner(plain), learner(plain, micro)
    told, same = steps(whole)[0], steps(cut)[0]
    assert same["train/grad_norm"] == pytest.approx(told["train/grad_norm"], rel=1e-5)
    assert same["train/loss"] == pytest.approx(told["train/loss"], rel=1e-6)
    kit.assert_alike(kit.weights(cut), kit.weights(whole), share=1e-3)


@pytest.mark.parametrize("stop", [1, 4])
def test_training_that_goes_on_from_a_state_goes_on_bit_for_bit(tmp_path, stop):
    whole = learner()
    steps(whole, 7)
    first = learner()
    steps(first, stop)
    torch.save(first.state_dict(), tmp_path / "state")
    steps(first, 1, first=99)  # what happens afterwards does not change what was saved
    second = learner(seed=5)
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    told = steps(second, 7 - stop, first=stop)
    assert second.steps == whole.steps == 7
    assert told[-1]["train/lr"] == learning_rate(OPTIMIZER, 6)
    for name, weight in kit.weights(whole).items():
        assert torch.equal(second.parameters[name], weight), name
    assert torch.equal(_moment(second), _moment(whole))


def test_a_learner_that_has_learnt_already_forgets_it_for_a_state():
    fresh, used = learner(), learner(seed=4)
    state = fresh.state_dict()  # from before the first step, so it has no moments
    steps(used, 3, first=50)
    used.load_state_dict(state)
    steps(used, 2)
    steps(fresh, 2)
    for name, each in fresh.parameters.items():
        assert torch.equal(used.parameters[name], each), name


def test_a_state_is_not_changed_by_whoever_loads_it():
    first = learner()
    steps(first)
    state = first.state_dict()
    kept = copy.deepcopy(state)
    second = learner()
    second.load_state_dict(state)
    steps(second, 2)
    for name, moments in state["moments"].items():
        assert torch.equal(moments["exp_avg"], kept["moments"][name]["exp_avg"])
        assert moments["step"] == kept["moments"][name]["step"]


def test_the_state_of_another_network_is_refused_and_changes_nothing():
    other = Learner(Values(kit.model()), OPTIMIZER, MicroConfig())
    one = learner()
    before = kit.weights(one)
    with pytest.raises(TrainError, match=r"the state has weights .* that are not trained"):
        one.load_state_dict(other.state_dict())
    narrow = but(OPTIMIZER)
    with pytest.raises(TrainError, match=r"the state has .* as \(.*\), the network as \(.*\)"):
        Learner(Policy(kit.model(seed=1, layers=2)), narrow, MicroConfig()).load_state_dict(
            {**one.state_dict(), "weights": {name: each[:1] for name, each in before.items()}}
        )
    with pytest.raises(TrainError, match="it is of another network"):
        one.load_state_dict({**one.state_dict(), "weights": {}})
    assert all(torch.equal(each, before[name]) for name, each in one.parameters.items())


def test_a_gradient_that_is_no_number_changes_nothing_and_the_third_in_a_row_is_an_error():
    one = learner()
    steps(one, 2)
    before, moment = kit.weights(one), _moment(one)
    rows = Rows.of(kit.batch())

    def broken(piece: Piece) -> Tensor:
        return likelihood(one, rows)(piece) * math.nan

    for count in (1, 2):
        assert one.step(rows, broken)["train/skipped_steps"] == count
    assert one.steps == 2
    assert all(torch.equal(each, before[name]) for name, each in one.parameters.items())
    assert torch.equal(_moment(one), moment)
    steps(one)  # a good one in between, and counting begins again
    for _ in range(2):
        one.step(rows, broken)
    with pytest.raises(TrainError, match="the gradient was no number 3 times in a row, nan after 3 steps"):
        one.step(rows, broken)


def test_rows_without_a_token_to_learn_from_make_no_step():
    one = learner()
    before = kit.weights(one)
    rows = Rows.of(kit.batch()).without(torch.ones(4, dtype=torch.bool))
    assert one.step(rows, likelihood(one, rows)) == {}
    assert one.steps == 0
    assert all(torch.equal(each, before[name]) for name, each in one.parameters.items())


def test_a_long_gradient_is_clipped_to_the_length_that_is_allowed():
    seen, told = [], []
    for clip in (None, 0.01):
        one = learner(OptimizerConfig(lr=1.0, clip_norm=clip))
        one.optimizer.register_step_pre_hook(lambda *_, of=one: seen.append(_length(of)))
        told += [steps(one)[0]["train/grad_norm"]]
    assert seen == pytest.approx([told[0], 0.01], rel=1e-3)
    assert told[1] == told[0] > 0.01, "what is told is the length before"


def test_weights_decay_but_not_biases_and_norms():
    still = learner(OptimizerConfig(lr=0.1, weight_decay=0.5))
    before = kit.weights(still)
    rows = Rows.of(kit.batch())
    still.step(rows, lambda piece: 0.0 * likelihood(still, rows)(piece))
    for name, each in still.parameters.items():
        shrunk = 0.95 if each.ndim > 1 else 1.0  # 1 - lr · weight_decay
        torch.testing.assert_close(each, before[name] * shrunk, msg=name)


def test_two_learners_of_one_network_have_optimizers_of_their_own():
    one = learner()
    steps(one, 2)
    other = one.again(OptimizerConfig(lr=1e-3))
    assert (other.steps, one.steps) == (0, 2)
    steps(other)
    assert (other.steps, one.steps) == (1, 2)
    assert all(each is one.parameters[name] for name, each in other.parameters.items())


def test_a_network_in_which_nothing_may_be_trained_is_refused():
    frozen = Policy(kit.model().requires_grad_(requires_grad=False))
    with pytest.raises(ConfigError, match="Policy has no weights that may be trained"):
        Learner(frozen, OPTIMIZER, MicroConfig())


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),  # from 1 to 0.2 in four parts
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.6 + 0.4 * 2**-0.5, 0.6, 0.6 - 0.4 * 2**-0.5, 0.2, 0.2]),
    ],
)
def test_the_learning_rate_rises_in_equal_parts_and_falls_to_its_floor(schedule, wanted):
    config = OptimizerConfig(lr=2.0, schedule=schedule, warmup_steps=4, decay_steps=4, floor_share=0.2)
    assert [learning_rate(config, step) / 2.0 for step in range(10)] == pytest.approx(wanted)


def test_rows_are_read_up_to_their_last_sampled_token():
    batch = kit.batch([(3, 4), (5, 2)])
    batch.batch["response_mask"][0, 5:] = False  # type: ignore[index]
    assert Rows.of(batch).lengths.tolist() == [5, 7]


def test_the_first_token_of_a_row_is_never_asked_about():
    """Nothing stands before it that could predict it."""
    batch = kit.batch([(0, 3)])
    rows = Rows.of(batch)
    assert rows.mask[0].tolist() == [False, True, True]
    assert bool(batch.batch["response_mask"][0, 0]), "the batch itself stays as it is"  # type: ignore[index]


def _moment(of: Learner) -> Tensor:
    return torch.cat([of.optimizer.state[each]["exp_avg"].flatten() for each in of.parameters.values()])


def _length(of: Learner) -> float:
    return float(torch.cat([each.grad.flatten() for each in of.parameters.values() if each.grad is not None]).norm())
