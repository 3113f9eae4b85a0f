"""From an engine's tokens to new weights: what the engine said of its tokens is what the trainer says of them."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.tiny import tiny_model
from tests.engines.torch.given import hear_all, request, started

from windrow.protocol import DataProto
from windrow.rollout.batching import make_batch
from windrow.train.config import CorrectionConfig, LossConfig, OptimizerConfig, TrainConfig
from windrow.train.estimate import estimate
from windrow.train.roles import Actor, self_test
from windrow.trajectory import Chain, Segment, Task, Trajectory, Turn
from windrow.types import AttemptId

TEMPERATURE = 0.7
TARGET = 101


async def _sampled(kind: Any, count: int, length: int) -> list[Trajectory]:
    async with started(kind) as engine:
        asked = [request(number, size=6, max_tokens=length, temperature=TEMPERATURE) for number in range(count)]
        heard = await hear_all(engine, asked)
    made = []
    for number, each in enumerate(heard):
        tokens = np.array([*each.asked.prompt, *each.tokens], np.int32)
        logprobs = np.array([0.0] * 6 + each.logprobs, np.float32)
        chain = Chain(
            token_ids=tokens, logprobs=logprobs, segments=(Segment("prompt", 6), Segment("policy", length, 0))
        )
        turn = Turn(chain=0, begin=6, end=6 + length, reward=0.0, finish="length")
        made.append(
            Trajectory(
                attempt=AttemptId(number // 4, number % 4), seat=0, mode="train", task=Task(ordinal=0), chains=(chain,),
                turns=(turn,), score=float(np.mean(np.array(each.tokens) < TARGET)), ending="terminated",
            )
        )  # fmt: skip
    return made


@pytest.fixture(params=["qwen2", "llama", "gpt2"])
def played(request) -> tuple[str, DataProto]:
    trajectories = asyncio.run(_sampled(request.param, 16, 12))
    batch = make_batch(trajectories, group_ids=[each.attempt.group for each in trajectories])
    batch.meta_info |= {"temperature": TEMPERATURE, "version": 0}
    return request.param, batch


def test_the_chain_holds_with_the_embedded_engine(played):
    kind, batch = played
    findings = self_test(Actor(TrainConfig(), tiny_model(kind, context=256)), batch)
    assert [finding.holds for finding in findings] == [True, True, True], list(map(str, findings))


def test_the_chain_breaks_if_the_temperature_is_another(played):
    kind, batch = played
    batch.meta_info["temperature"] = 1.0
    findings = self_test(Actor(TrainConfig(), tiny_model(kind, context=256)), batch)
    assert [finding.holds for finding in findings] == [True, True, False]


@pytest.mark.parametrize("old", ["trainer", "engine"])
def test_what_was_worth_more_than_its_siblings_becomes_likelier(played, old):
    kind, batch = played
    loss = LossConfig(correction=CorrectionConfig(mismatch_cap=None))
    config = TrainConfig(optimizer=OptimizerConfig(lr=1e-3), loss=loss, old_logprobs=old)
    actor = Actor(config, tiny_model(kind, context=256))
    estimated = estimate(batch, config.estimator, config.loss)
    advantages = estimated.batch["advantages"]  # type: ignore[index]
    before = actor.score(batch).logprobs
    metrics = actor.train(estimated)
    assert metrics["train/mismatch_mean"] < 1e-4
    gained = ((actor.score(batch).logprobs - before) * advantages).sum()
    assert float(gained) > 0
    assert torch.isfinite(gained)
