"""Deterministic engines: the same request, the same bits, whatever happens around it."""

import asyncio

import numpy as np
import pytest
from tests.engines.kits import run_async
from tests.engines.tiny import Kind
from tests.engines.torch.given import Heard, ask, begun, hear, hear_all, made, prompt, request, started

from windrow.errors import ConfigError
from windrow.types import but

KINDS: list[Kind] = ["qwen2", "llama", "gpt2"]


def same(one: Heard, *parts: Heard) -> bool:
    """To the last bit."""
    tokens = [token for part in parts for token in part.tokens]
    logprobs = [value for part in parts for value in part.logprobs]
    return one.tokens == tokens and one.logprobs == logprobs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [1, 5, 32])
@run_async
async def test_company_changes_nothing(kind: Kind, capacity: int):
    asked = [request(n, size=4 + 31 * n % 150, max_tokens=10 + 7 * n % 40) for n in range(12)]
    async with started(kind, capacity=capacity, deterministic=True) as engine:
        alone = [await hear(engine, but(one, id=f"alone{n}")) for n, one in enumerate(asked)]
        together = await hear_all(engine, asked)
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@run_async
async def test_interruptions_change_nothing(kind: Kind):
    """Going on in the cache, computing everything again after a release, and going on beside others."""
    async with started(kind, capacity=4, deterministic=True, stream_every=3) as engine:
        whole = await hear(engine, request(0, size=30, max_tokens=60))
        parts: list[Heard] = []
        asked = but(whole.asked, id="p0")
        for number in range(1, 50):
            heard = Heard(asked)
            async with asyncio.TaskGroup() as group:
                group.create_task(hear(engine, asked, heard))
                company = ask(group, engine, request(1000 + number, size=5 * number % 60 + 1, max_tokens=90))
                await begun(heard, company)
                await engine.suspend("interrupt")
            parts.append(heard)
            if heard.finish != "interrupted":
                break
            if number % 2:
                await engine.release()
                await engine.restore()
            await engine.resume()
            asked = heard.rest(f"p{number}")
    assert len(parts) > 3
    assert same(whole, *parts)


@run_async
async def test_another_engine_of_the_same_kind_says_the_same():
    asked = [request(n, size=3 + 40 * n, max_tokens=30) for n in range(4)]
    said = []
    for _ in range(2):
        async with started(deterministic=True) as engine:
            said.append(await hear_all(engine, asked))
    assert all(same(one, other) for one, other in zip(*said, strict=True))


@run_async
async def test_a_prompt_that_was_sampled_before_is_as_good_as_one_that_was_not():
    """The history of a second turn: continued in its slot, copied from a sibling, or computed from nothing."""
    async with started(capacity=6, deterministic=True) as engine:
        first = await hear(engine, request(0, size=40, max_tokens=30))
        history = np.concatenate([first.asked.prompt, np.array(first.tokens, np.int32), prompt(20, 9)])
        later = request(1, prompt=history, seed=7, max_tokens=30)
        continued = await hear(engine, later)
        copied = (await hear_all(engine, [but(later, id=f"c{n}") for n in range(4)]))[-1]
        reused = engine.counters().prefix_tokens_reused
        await engine.release()
        await engine.restore()
        fresh = await hear(engine, but(later, id="fresh"))
        assert reused > 0
        assert engine.counters().prefix_tokens_reused == reused
    assert same(continued, copied)
    assert same(continued, fresh)


@run_async
async def test_frozen_requests_go_on_to_the_bit():
    async with started(deterministic=True) as engine:
        whole = await hear(engine, request(0, max_tokens=50))
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, but(whole.asked, id="again"))
            await begun(heard)
            await engine.suspend("freeze")
            await engine.resume()
    assert same(whole, heard)


@run_async
async def test_a_thousand_requests_are_in_flight():
    asked = [request(n, size=1 + n % 20, max_tokens=16) for n in range(1000)]
    async with started(capacity=64, deterministic=True) as engine:
        many = await hear_all(engine, asked)
        alone = [await hear(engine, but(asked[n], id=f"alone{n}")) for n in (0, 499, 999)]
    assert all(len(heard.tokens) == 16 for heard in many)
    assert all(same(many[n], one) for n, one in zip((0, 499, 999), alone, strict=True))


@run_async
async def test_an_engine_that_cannot_keep_the_promise_does_not_give_it(monkeypatch: pytest.MonkeyPatch):
    engine = made(deterministic=True)
    monkeypatch.setattr(engine._batcher.running, "is_exact", lambda: False)
    with pytest.raises(ConfigError, match="engine 'e0' cannot be deterministic"):
        await engine.start()
    assert (await engine.health()).state == "dead"
    await engine.close()
