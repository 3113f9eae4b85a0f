"""What leaks out of an environment or an engine stays its own fault."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from tests.rollout.kit import Rig, played
from tests.rollout.toys import Echo, EnvLog, Watched

from windrow.envs.protocol import Env
from windrow.errors import Refused
from windrow.requests import Chunk, Request

BREAKER = {"breaker_share": 0.5, "retry_after_s": 0.0, "env_retries": 1000, "engine_retries": 1000}


class Cancelling(Echo):
    """Something that it awaits was cancelled by somebody else."""

    async def step(self, action: str) -> object:
        raise asyncio.CancelledError


def no_environment(log: EnvLog) -> Env:
    return object()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("env", "words"), [(Cancelling, "step 0 was cancelled from inside"), (no_environment, "no attribute 'start'")]
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
