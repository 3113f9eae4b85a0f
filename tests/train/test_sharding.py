"""Two processes that share a network learn what one process learns.

How far they may lie apart: sums are made in another order, so gradients differ in their last bits, about 1e-6 of their
length. A step of AdamW is as long for a small gradient as for a large one, so weights may differ by a share of a step;
after a few steps with a rate of 1e-3 by less than 1e-5.
"""

import os
import signal
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import kit
from torch import Tensor

from windrow.errors import ConfigError, TrainError
from windrow.protocol import DataProto
from windrow.train.config import (
    CriticConfig,
    DemonstrationConfig,
    LoraConfig,
    LossConfig,
    MicroConfig,
    ModelConfig,
    OptimizerConfig,
    TinyConfig,
    TrainConfig,
)
from windrow.train.models import load_model
from windrow.train.networks import Policy
from windrow.train.processes import TrainerProcesses
from windrow.train.roles import Actor, Critic, Reference
from windrow.train.sharding import Shards
from windrow.train.supervised import Demonstration, supervise
from windrow.types import but

SAFETY_S = 300.0
"""No test is judged by the clock; this only ends one that hangs."""

UNEVEN = ((3, 9), (5, 2), (2, 7), (4, 1), (1, 14), (6, 3), (2, 2))
"""Seven rows, so that two processes never have equally many, in groups of two and one that is alone."""
SMALL = MicroConfig(tokens=20)
"""Every process has several micro-batches, and one of them sometimes has fewer than the other."""
RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Of what is told about a step."""
OF_WEIGHTS = 1e-5
UNEQUAL = {"train/seconds", "train/tokens_per_s", "train/tokens"}
"""Times; and tokens that are read, padding included, of which differently cut micro-batches have differently many."""

TINY = ModelConfig(tiny=TinyConfig(hidden=16, layers=2, heads=2, context=64, vocabulary=260))

Learnt = dict[str, Any]


class Desk:
    """An empty place in every process."""

    def __init__(self, peers: Shards) -> None:
        self.peers = peers


@pytest.fixture(scope="module")
def pair() -> Iterator[TrainerProcesses]:
    with TrainerProcesses(2, Desk, SAFETY_S) as processes:
        yield processes


def batches(count: int = 4) -> list[DataProto]:
    return [kit.with_advantages(kit.batch(UNEVEN, seed=seed)) for seed in range(count)]


def place(desk: Desk | None) -> dict[str, Any]:
    return {} if desk is None else {"peers": desk.peers}


def learnt(
    desk: Desk | None, config: TrainConfig, model: Any, data: list[DataProto], state: Any = None, **settings: Any
) -> Learnt:
    """What an actor says of each batch, what it is in the end, and what it thinks then."""
    actor = Actor(config, model, **settings, **place(desk))
    if state is not None:
        actor.load_state_dict(state)
    metrics = [actor.train(each) for each in data]
    return {"metrics": metrics, "state": actor.state_dict(), "logprobs": actor.score(data[0]).logprobs}


def both(pair: TrainerProcesses, config: TrainConfig, model: Any, data: list[DataProto], **settings: Any) -> Learnt:
    """The same in one process and in two; what the two say, after it was compared."""
    alone = learnt(None, config, deepcopy(model), deepcopy(data), **settings)
    together: Learnt = pair.run(learnt, config, model, data, **settings)
    compare(alone, together)
    return together


def compare(alone: Learnt, together: Learnt, *, weights: float = OF_WEIGHTS, told: float = RELATIVE) -> None:
    assert len(alone["metrics"]) == len(together["metrics"])
    for one, two in zip(alone["metrics"], together["metrics"], strict=True):
        assert one.keys() == two.keys()
        for name in one.keys() - UNEQUAL:
            assert two[name] == pytest.approx(one[name], rel=told, abs=ABSOLUTE), name
    assert torch.allclose(alone["logprobs"], together["logprobs"], rtol=told, atol=told)
    assert apart(alone["state"]["weights"], together["state"]["weights"]) <= weights
    assert alone["state"]["steps"] == together["state"]["steps"] > 0


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_losses_gradients_and_weights_are_those_of_one_process(pair, kind):
    model = kit.model(kind)
    before = {f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    found = both(pair, kit.config(micro=SMALL), model, batches())
    assert apart(before, found["state"]["weights"]) > 1e-3  # it has moved by more than what is allowed
    assert max(each["train/grad_norm"] for each in found["metrics"]) > 1.0  # and gradients were clipped


def test_a_gradient_that_is_nothing_but_rounding_may_lead_elsewhere_but_not_to_another_policy(pair):
    """A bias of GPT-2's keys has no influence at all, but AdamW steps along its noise."""
    config, data = kit.config(micro=SMALL), batches()
    alone = learnt(None, config, kit.model("gpt2"), deepcopy(data))
    compare(alone, pair.run(learnt, config, kit.model("gpt2"), data), weights=5e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2, "minibatches": 2},
        {"old_logprobs": "engine"},
        {"loss": LossConfig(kind="gspo", aggregation="sequence_mean", entropy=0.01)},
        {"loss": LossConfig(kind="cispo", aggregation="constant", constant=8.0)},
        {"micro": MicroConfig(tokens=20, packing=True)},
        {"micro": MicroConfig(tokens=4096)},
    ],
    ids=["minibatches", "engine", "gspo", "cispo", "packing", "at once"],
)
def test_whatever_is_asked_of_a_step_is_the_same(pair, settings):
    both(pair, kit.config(**{"micro": SMALL, **settings}), kit.model(), batches(2))


@pytest.mark.parametrize("tokens", [12, 4096])
def test_what_rows_have_in_common_is_computed_once_in_each_process(pair, tokens):
    data = [kit.with_advantages(kit.siblings(seed=seed)) for seed in range(2)]
    found = both(pair, kit.config(micro=MicroConfig(tokens=tokens)), kit.model("llama"), data)
    assert all(each["train/tokens"] < kit.SIBLINGS_APART for each in found["metrics"])


def test_a_batch_that_teaches_nothing_is_looked_at_together(pair):
    nothing = kit.with_advantages(kit.batch(), torch.zeros(4, 1))
    found = both(pair, kit.config(micro=SMALL), kit.model(), [nothing, *batches(1)])
    assert found["metrics"][0]["train/steps"] == 0
    assert found["metrics"][0]["train/mismatch_mean"] > 0


def test_a_process_that_has_nothing_to_read_takes_part(pair):
    both(pair, kit.config(micro=SMALL), kit.model(), [kit.with_advantages(kit.batch([(3, 4)], group_size=1))])


def test_layers_whose_activations_are_computed_again_learn_the_same(pair):
    model = but(TINY, activation_checkpointing=True)
    both(pair, kit.config(micro=SMALL), model, batches(2))


def test_half_precision_is_that_of_one_process(pair):
    """Layers travel in bfloat16, norms included, which one process keeps in float32: about 1 in 100."""
    config, data = kit.config(micro=SMALL), batches(2)
    model = kit.model(scale=1.0)
    alone = learnt(None, config, deepcopy(model), deepcopy(data), dtype="bfloat16")
    together = pair.run(learnt, config, model, data, dtype="bfloat16")
    exact = learnt(None, config, deepcopy(model), deepcopy(data))
    for one, two in zip(alone["metrics"], together["metrics"], strict=True):
        assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=0.05)
    assert torch.allclose(alone["logprobs"], together["logprobs"], atol=0.05)
    assert not torch.allclose(exact["logprobs"], together["logprobs"], atol=1e-5)  # it is half precision indeed
    assert {tensor.dtype for tensor in together["state"]["weights"].values()} == {torch.float32}


def test_adapters_are_spread_as_well_and_the_reference_is_what_lies_below_them(pair):
    model = but(TINY, lora=LoraConfig(rank=2))
    config = kit.config(lr=1e-2, micro=SMALL, loss=LossConfig(kl=0.1))

    def told(desk: Desk | None, data: list[DataProto]) -> Learnt:
        actor = Actor(config, model, **place(desk))
        reference = Reference(config, actor, **place(desk))
        metrics = [actor.train(reference.log_probs(each)) for each in data]
        again = reference.log_probs(data[0])["ref_logprobs"]
        return {
            "metrics": metrics, "state": actor.state_dict(), "logprobs": actor.score(data[0]).logprobs, "below": again,
        }  # fmt: skip

    alone, together = told(None, batches(3)), pair.run(told, batches(3))
    compare(alone, together)
    assert all("lora_" in name for name in together["state"]["weights"])
    plain = kit.plain_logprobs(load_model(TINY), batches(1)[0])
    assert torch.allclose(together["below"], plain, atol=1e-5)
    assert not torch.allclose(together["logprobs"], plain, atol=1e-5)


def test_a_separate_reference_is_spread_too(pair):
    def told(desk: Desk | None, data: DataProto) -> Tensor:
        found: Tensor = Reference(kit.config(), kit.model(seed=3), **place(desk)).log_probs(data)["ref_logprobs"]
        return found

    data = kit.batch(UNEVEN)
    assert torch.allclose(pair.run(told, data), kit.plain_logprobs(kit.model(seed=3), data), atol=1e-5)


def test_weights_that_are_put_in_are_used_at_once(pair):
    """Also by a network that has just been asked something and may still have the old ones together."""

    def told(desk: Desk, data: DataProto, state: Any) -> list[Tensor]:
        actor = Actor(kit.config(), kit.model(), peers=desk.peers)
        reference = Reference(kit.config(), kit.model(), peers=desk.peers)
        before = reference.state_dict()
        found = [actor.score(data).logprobs, reference.log_probs(data)["ref_logprobs"]]
        actor.load_state_dict(state)
        reference.load_state_dict(state["weights"])
        found += [actor.score(data).logprobs, reference.log_probs(data)["ref_logprobs"]]
        if desk.peers.rank == 0:
            found.append(before["model.lm_head.weight"])
        return found

    data = kit.batch(UNEVEN)
    other = Actor(kit.config(), kit.model(seed=3))
    *found, head = pair.run(told, data, other.state_dict())
    for place, seed in enumerate([0, 0, 3, 3]):
        assert torch.allclose(found[place], kit.plain_logprobs(kit.model(seed=seed), data), atol=1e-5), place
    assert torch.equal(head, kit.model().lm_head.weight)


def test_a_critic_learns_the_same(pair):
    config = kit.config(micro=SMALL, critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-3)))

    def told(desk: Desk | None, data: list[DataProto]) -> Learnt:
        critic = Critic(config, kit.model(), **place(desk))
        metrics = [critic.train(critic.values(each)) for each in data]
        for each in metrics:
            for name in UNEQUAL:
                del each[name.replace("train/", "critic/")]
        return {"metrics": metrics, "state": critic.state_dict(), "logprobs": critic.values(data[0])["values"]}

    def data() -> list[DataProto]:
        return [each.rename("advantages", "returns") for each in batches(3)]

    alone, together = told(None, data()), pair.run(told, data())
    compare(alone, together)
    assert float(together["logprobs"].abs().max()) > 0


def test_demonstrations_teach_the_same(pair):
    data = kit.batch(UNEVEN)
    ids, mask, real = (data[name].numpy() for name in ("input_ids", "response_mask", "attention_mask"))
    rows = [Demonstration(ids[row, real[row] > 0], mask[row, real[row] > 0]) for row in range(len(data))]
    config = DemonstrationConfig(steps=4, batch_size=3, optimizer=OptimizerConfig(lr=1e-3))

    def told(desk: Desk | None) -> Learnt:
        actor = Actor(kit.config(micro=SMALL), kit.model(), **place(desk))
        last = supervise(actor.learner.again(config.optimizer), rows, config)
        return {"loss": last["supervised/loss"], "state": actor.state_dict()}

    alone, together = told(None), pair.run(told)
    assert together["loss"] == pytest.approx(alone["loss"], rel=RELATIVE)
    assert apart(alone["state"]["weights"], together["state"]["weights"]) <= OF_WEIGHTS


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 2)], ids=["2 to 1", "1 to 2", "2 to 2"])
def test_what_some_processes_saved_others_go_on_with(pair, first, then, tmp_path: Path):
    """As one process would have gone on that was never interrupted."""
    optimizer = OptimizerConfig(lr=1e-3, schedule="linear", warmup_steps=2, decay_steps=8)
    config, data = but(kit.config(micro=SMALL), optimizer=optimizer), batches(4)
    straight = learnt(None, config, kit.model(), deepcopy(data))

    def played(processes: int, model: Any, data: list[DataProto], state: Any) -> Learnt:
        if processes == 1:
            return learnt(None, config, model, deepcopy(data), state)
        found: Learnt = pair.run(learnt, config, model, data, state)
        return found

    begun = played(first, kit.model(), data[:2], None)
    torch.save(begun["state"], tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    ended = played(then, kit.model(seed=5), data[2:], state)
    ended["metrics"] = begun["metrics"] + ended["metrics"]
    assert ended["state"]["steps"] == 4
    for one, two in zip(straight["metrics"], ended["metrics"], strict=True):
        for name in one.keys() - UNEQUAL:
            assert two[name] == pytest.approx(one[name], rel=RELATIVE, abs=ABSOLUTE), name
    assert apart(straight["state"]["weights"], ended["state"]["weights"]) <= OF_WEIGHTS
    for name, moments in straight["state"]["moments"].items():
        assert apart(moments, ended["state"]["moments"][name]) <= OF_WEIGHTS


def test_a_gradient_that_is_no_number_changes_nothing_in_any_process(pair):
    config = kit.config(micro=SMALL)
    bad = kit.with_advantages(kit.batch(UNEVEN), torch.tensor([[1.0], [float("inf")]] + [[1.0]] * 5))

    def told(desk: Desk) -> list[int]:
        actor = Actor(config, kit.model(), peers=desk.peers)
        actor.train(bad)
        return [actor.learner.steps, actor.learner.skipped]

    assert pair.run(told) == [0, 1]


def test_processes_that_begin_with_different_weights_are_refused(pair):
    def told(desk: Desk) -> str:
        try:
            desk.peers.adopt(Policy(kit.model(seed=desk.peers.rank)))
        except TrainError as error:
            return str(error)
        return "no complaint"

    assert "begin with different weights" in pair.run(told)


def test_what_has_no_layers_is_refused_by_name(pair):
    def told(desk: Desk) -> str:
        try:
            desk.peers.adopt(torch.nn.Linear(3, 3))
        except ConfigError as error:
            return str(error)
        return "no complaint"

    assert "Linear has no list of layers" in pair.run(told)


def die_in_the_middle(desk: Desk, data: DataProto) -> None:
    """The second process is killed in the backward pass of a step, when the first one waits for its gradients."""
    actor = Actor(kit.config(micro=SMALL), kit.model(), peers=desk.peers)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    actor.train(data)
    if desk.peers.rank == 1:
        actor.model.model.layers[0].register_full_backward_hook(die)
    actor.train(data)


def test_a_process_that_is_killed_in_the_middle_of_a_step_fails_it_and_nothing_is_left():
    processes = TrainerProcesses(2, Desk, SAFETY_S)
    pids = processes.pids
    with pytest.raises(TrainError, match=r"trainer process 1 of 2, run: its process was killed by SIGKILL"):
        processes.run(die_in_the_middle, batches(1)[0])
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not processes.room.exists()
