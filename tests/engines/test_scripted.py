"""What the scripted engine promises beyond the contract of all engines."""

import asyncio

import numpy as np
import pytest

from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.requests import Request, Sampling


class OldLoop(asyncio.SelectorEventLoop):
    """A loop on a machine that has been up for long, so that its clock tells moments only coarsely."""

    up_s = 0.0

    def time(self) -> float:
        return self.up_s + super().time()


@pytest.mark.parametrize("days", [0, 1, 300, 30_000])
@pytest.mark.timeout(30)  # it would wait for ever without awaiting anything
def test_every_token_comes_however_long_the_machine_has_been_up(days: int):
    OldLoop.up_s = 86_400.0 * days

    async def body() -> int:
        engine = ScriptedEngine("one", ScriptedSettings(token_s=0.0003, stream_every=1))
        await engine.start()
        prompt = np.arange(5, dtype=np.int32)
        requests = [
            Request(id=f"r{number}", prompt=prompt, sampling=Sampling(max_tokens=50), seed=number)
            for number in range(20)
        ]
        return sum([await _tokens(engine, request) for request in requests])

    with asyncio.Runner(loop_factory=OldLoop) as runner:
        assert runner.run(body()) == 20 * 50


async def _tokens(engine: ScriptedEngine, request: Request) -> int:
    return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])
