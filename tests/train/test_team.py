"""The roles of a run in trainer processes do what they do in one, and engines serve what they trained."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import kit

from windrow.engines.buckets import Shipment, fetched
from windrow.engines.torch import TorchEngine
from windrow.engines.torch.weights import read
from windrow.errors import ConfigError, TrainError
from windrow.train.config import (
    CriticConfig,
    EstimatorConfig,
    LoraConfig,
    LossConfig,
    MicroConfig,
    ModelConfig,
    OptimizerConfig,
    TinyConfig,
    TrainConfig,
)
from windrow.train.local import LocalTrainers
from windrow.train.models import load_model
from windrow.train.processes import TrainerProcesses
from windrow.train.roles import Actor, Critic, Reference
from windrow.train.spread import Spread
from windrow.train.team import Company, Source, Start, Trainers
from windrow.train.weights import deliver, engine_weights
from windrow.types import but

TINY = ModelConfig(tiny=TinyConfig(hidden=16, layers=2, heads=2, context=64, vocabulary=260))
UNEVEN = ((3, 9), (5, 2), (2, 7), (4, 1), (1, 14))
CONFIG = TrainConfig(
    optimizer=OptimizerConfig(lr=1e-2),
    critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-3)),
    estimator=EstimatorConfig(kind="gae"),
    loss=LossConfig(kl=0.1),
    micro=MicroConfig(tokens=20),
    processes=2,
    timeout_s=300.0,
)
OF_WEIGHTS = 1e-5
"""How far two ways to the same weights may lie apart; see test_sharding."""


def warmed() -> dict[str, torch.Tensor]:
    """Weights that no seed makes."""
    state = load_model(TINY, vocabulary=kit.VOCABULARY).state_dict()
    return {name: tensor * 3.0 if tensor.ndim > 1 else tensor for name, tensor in state.items()}


SOURCE = Source(model=TINY, vocabulary=kit.VOCABULARY, state=warmed())


@pytest.fixture(scope="module", params=["processes", pytest.param("ray", marks=pytest.mark.ray)])
def start(request: pytest.FixtureRequest) -> Start:
    """Where the processes are."""
    if request.param == "processes":
        return TrainerProcesses
    request.getfixturevalue("ray_session")
    from windrow.train.on_ray import TrainerHosts

    return TrainerHosts


@pytest.fixture(scope="module")
def trainers(start: Start) -> Iterator[Trainers]:
    with Trainers(CONFIG, SOURCE, start=start) as made:
        yield made


def batch(seed: int = 0) -> Any:
    data = kit.with_advantages(kit.batch(UNEVEN, seed=seed))
    return data.union(type(data).from_dict({"returns": data["advantages"]}))


def apart(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_they_learn_what_they_would_learn_here_and_leave_as_what_engines_confirm(trainers):
    model = load_model(TINY, vocabulary=kit.VOCABULARY)
    model.load_state_dict(warmed())
    actor = Actor(CONFIG, model)
    reference, critic = Reference(CONFIG, actor), Critic(CONFIG, actor)
    assert trainers.actor.steps == 0
    for seed in range(3):
        here = critic.values(reference.log_probs(actor.log_probs(batch(seed))))
        there = trainers.critic.values(trainers.reference.log_probs(trainers.actor.log_probs(batch(seed))))
        for name in ("old_logprobs", "ref_logprobs", "values"):
            assert torch.allclose(here[name], there[name], atol=1e-4), name
        said, heard = actor.train(here), trainers.actor.train(there)
        assert heard["train/loss"] == pytest.approx(said["train/loss"], rel=1e-3, abs=1e-6)
        critic.train(here)
        trainers.critic.train(there)
    assert trainers.actor.steps == actor.steps == 3
    assert apart(engine_weights(model), trainers.weights()) <= 10 * OF_WEIGHTS  # a rate of 1e-2
    assert apart(critic.state_dict()["weights"], trainers.critic.state_dict()["weights"]) <= OF_WEIGHTS
    asyncio.run(served(trainers))


def test_a_reference_and_a_critic_in_processes_of_their_own_say_and_learn_the_same(start):
    """The actor is here, the critic in two processes, the reference in one."""
    model, aside = load_model(TINY, vocabulary=kit.VOCABULARY), load_model(TINY, vocabulary=kit.VOCABULARY)
    model.load_state_dict(warmed())
    aside.load_state_dict(warmed())
    actor = Actor(CONFIG, aside)
    alone = LocalTrainers(CONFIG, actor)
    assert alone.reference is not None
    assert alone.critic is not None
    with (
        Company(CONFIG, SOURCE, ["critic"], 2, start) as two,
        Company(CONFIG, SOURCE, ["reference"], 1, start) as one,
        closing(Spread(LocalTrainers(CONFIG, Actor(CONFIG, model), members=["actor"]), [one, two])) as spread,
    ):
        assert spread.reference is not None
        assert spread.critic is not None
        for seed in range(2):
            here = alone.critic.values(alone.reference.log_probs(batch(seed)))
            there = spread.critic.values(spread.reference.log_probs(batch(seed)))
            for name in ("ref_logprobs", "values"):
                assert torch.allclose(here[name], there[name], atol=1e-4), name
            said, heard = actor.train(here), spread.actor.train(there)
            assert heard["train/loss"] == pytest.approx(said["train/loss"], rel=1e-3, abs=1e-6)
            said, heard = alone.critic.train(here), spread.critic.train(there)
            assert heard["critic/loss"] == pytest.approx(said["critic/loss"], rel=1e-3, abs=1e-6)
        assert apart(engine_weights(aside), spread.weights()) <= 10 * OF_WEIGHTS
        assert apart(alone.critic.state_dict()["weights"], spread.critic.state_dict()["weights"]) <= OF_WEIGHTS
    assert two.critic is not None
    with pytest.raises(TrainError, match=r"trainer processes cannot critic.values: they were closed"):
        two.critic.values(batch())


def test_the_reference_of_an_actor_with_adapters_is_what_it_was_without_them_elsewhere_too(start):
    pytest.importorskip("peft")
    model = but(TINY, lora=LoraConfig(rank=2))
    actor = Actor(CONFIG, load_model(model, vocabulary=kit.VOCABULARY))
    actor.train(batch().union(Reference(CONFIG, actor).log_probs(batch())))
    reference = Reference(CONFIG, actor)
    state = dict(actor.model.state_dict())
    with Company(
        CONFIG, Source(model=model, vocabulary=kit.VOCABULARY, state=state), ["reference"], 1, start
    ) as company:
        assert company.reference is not None
        for _ in range(2):
            there = company.reference.log_probs(batch())
            assert torch.allclose(there["ref_logprobs"], reference.log_probs(batch())["ref_logprobs"], atol=1e-5)
            company.reference.load_state_dict(reference.state_dict())  # there is nothing in it, so nothing changes
        reference.load_state_dict(company.reference.state_dict())


async def served(trainers: Trainers) -> None:
    engine = TorchEngine("e0", load_model(TINY, seed=4, vocabulary=kit.VOCABULARY))
    await engine.start()

    async def update(version: int, weights: Any) -> dict[str, object]:
        said = await engine.load(version, weights)
        return {"version": said.version, "checksum": said.checksum}

    try:
        for version in (1, 2, 3):
            packed = trainers.pack(version)
            metrics = await deliver(packed, update)
            assert metrics["weights/bytes"] == sum(4 * each.numel() for each in engine.model.parameters())
        assert apart(dict(engine.model.state_dict()), trainers.weights()) == 0.0
    finally:
        await engine.close()


def test_what_they_saved_one_process_loads_and_the_other_way_round(trainers, tmp_path: Path):
    torch.save(trainers.actor.state_dict(), tmp_path / "actor.pt")
    state = torch.load(tmp_path / "actor.pt", weights_only=True)
    actor = Actor(CONFIG, load_model(TINY, seed=9, vocabulary=kit.VOCABULARY))
    actor.load_state_dict(state)
    assert apart(engine_weights(actor.model), trainers.weights()) == 0.0
    fresh = Actor(CONFIG, load_model(TINY, seed=3, vocabulary=kit.VOCABULARY))
    trainers.actor.load_state_dict(fresh.state_dict())
    assert apart(engine_weights(fresh.model), trainers.weights()) == 0.0
    trainers.actor.load_state_dict(state)


def test_a_role_that_the_configuration_does_not_need_is_not_there_and_adapters_are_merged(start):
    model = but(TINY, lora=LoraConfig(rank=2))
    config = but(CONFIG, estimator=EstimatorConfig(), loss=LossConfig(), processes=2)
    with Trainers(config, Source(model=model, vocabulary=kit.VOCABULARY), "bfloat16", start) as trainers:
        assert (trainers.reference, trainers.critic) == (None, None)
        actor = Actor(config, load_model(model, vocabulary=kit.VOCABULARY))
        trainers.actor.train(batch())
        actor.train(batch())
        assert apart(engine_weights(actor.model), trainers.weights()) <= 10 * OF_WEIGHTS
        plain = load_model(TINY, vocabulary=kit.VOCABULARY)
        assert engine_weights(plain).keys() == trainers.weights().keys()
        packed = trainers.pack(1)
        weights = fetched(packed.weights) if isinstance(packed.weights, Shipment) else read(Path(str(packed.weights)))
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    if isinstance(packed.weights, Path):
        assert isinstance(trainers.processes, TrainerProcesses)
        assert not trainers.processes.room.exists()
        assert not packed.weights.exists()


def test_a_model_that_is_not_there_is_said_here(start):
    with pytest.raises(ConfigError, match=r"trainer process . of 1, recruit: model folder /nowhere has no config.json"):
        Trainers(but(CONFIG, processes=1), Source(model=ModelConfig(path="/nowhere")), start=start)
