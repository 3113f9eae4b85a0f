"""What leaks out of an environment or an engine stays its own fault."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
from tests.rollout.kit import Rig, played
from tests.rollout.toys import Echo, EnvLog, Watched

from windrow.envs.protocol import Env, Rewritten, Step
from windrow.errors import Refused
from windrow.requests import Chunk, Request
from windrow.text import Message

BREAKER = {"breaker_share": 0.5, "retry_after_s": 0.0, "env_retries": 1000, "engine_retries": 1000}


class Cancelling(Echo):
    """Something that it awaits was cancelled by somebody else."""

    async def step(self, action: str) -> object:
        raise asyncio.CancelledError


class Exiting(Echo):
    """Calls something that ends the program."""

    async def step(self, action: str) -> object:
        raise SystemExit(3)


def no_environment(log: EnvLog) -> Env:
    return object()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Cancelling, "step 0 was cancelled from inside"),
        (Exiting, r"step 0 called sys.exit\(3\)"),
        (no_environment, "no attribute 'start'"),
    ],
)
@played
async def test_it_is_a_failed_attempt_with_its_story(env: type[Echo], words: str):
    rig = Rig(env=env, config=BREAKER)
    with pytest.raises(Refused, match=words):
        await rig.batch(0)
    assert set(rig.ledger.attempts.dropped) <= {"failed", "poisoned"}


class Leaky(Watched):
    """Its first requests are cancelled from inside."""

    broken = 3

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if self.broken:
            self.broken -= 1
            raise asyncio.CancelledError
        async for chunk in super().generate(request):
            yield chunk


@played
async def test_a_request_that_an_engine_cancels_by_itself_is_tried_again():
    rig = Rig(engine_class=Leaky, config={"retry_after_s": 0.0})
    assert len(await rig.full(0)) == 8
    assert rig.ledger.attempts.dropped == {"failed": 3}


class Odd(Watched):
    """Answers with something that is no token."""

    says = np.array([-1], np.int32)
    likely = np.array([-1.0], np.float32)

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        yield Chunk(token_ids=self.says, logprobs=self.likely, version=0, finish="stop")


class Square(Odd):
    says = np.array([[1]], np.int32)


class Fractions(Odd):
    says = np.array([1.5])


class TooLikely(Odd):
    says = np.array([1], np.int32)
    likely = np.array([5.0], np.float32)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (Odd, "token ids from -1 to -1"),
        (Square, "in 2 dimensions"),
        (Fractions, "type float64"),
        (TooLikely, "not a number of 0 or less"),
    ],
)
@played
async def test_what_is_no_token_is_the_engine_s_fault(engine: type[Watched], words: str):
    rig = Rig(engine_class=engine, config=BREAKER)
    with pytest.raises(Refused, match=words):
        await rig.batch(0)


class Verbose(Echo):
    """Shows far more than any context holds."""

    async def step(self, action: str) -> object:
        return Step(observation="x" * 10_000, reward=1.0)


class Rewriting(Echo):
    """Replaces everything by something that is too long."""

    async def step(self, action: str) -> object:
        return Step(observation=Rewritten((Message("user", "x" * 10_000),)), reward=1.0)


@pytest.mark.parametrize("env", [Verbose, Rewriting])
@played
async def test_an_observation_that_nobody_can_answer_is_not_in_the_batch(env: type[Echo]):
    rig = Rig(env=env, engine={"context_tokens": 200})
    batch = await rig.full(0)
    assert batch["input_ids"].shape[1] < 200
    assert set(batch.non_tensor_batch["ending"]) == {"context"}
    assert batch["episode_scores"].tolist() == [1.0] * 8
