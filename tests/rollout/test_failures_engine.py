"""Engines that fail, lie or die: an outcome of the request, and the run goes on where it can."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.rollout.kit import Rig, all_words, later, now, played
from tests.rollout.toys import Echo, Watched, talk

from windrow.engines.scripted import ScriptedEngine
from windrow.errors import EngineError
from windrow.requests import Chunk, Request
from windrow.types import but


class Lying(Watched):
    """The first engine of a cluster changes what it answers; the others are honest."""

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in self.honest(request):
            yield self.twist(chunk) if self.name == "infer-0" else chunk

    async def honest(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        async for chunk in ScriptedEngine.generate(self, request):
            yield chunk

    def twist(self, chunk: Chunk) -> Chunk:
        raise NotImplementedError


class NotANumber(Lying):
    def twist(self, chunk: Chunk) -> Chunk:
        return but(chunk, logprobs=np.full_like(chunk.logprobs, np.nan))


class TooFewLogprobs(Lying):
    def twist(self, chunk: Chunk) -> Chunk:
        return but(chunk, logprobs=chunk.logprobs[:-1])


class NoVersion(Lying):
    def twist(self, chunk: Chunk) -> Chunk:
        return but(chunk, version=-1)


class Raising(Lying):
    def twist(self, chunk: Chunk) -> Chunk:
        raise ValueError("shapes do not match")


class TimingOut(Lying):
    def twist(self, chunk: Chunk) -> Chunk:
        raise TimeoutError


class NoEnd(Lying):
    """Its stream ends, and nothing says why."""

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in self.honest(request):
            if chunk.finish is None or self.name != "infer-0":
                yield chunk


class GoesOn(Lying):
    """Says that it has ended, and says more."""

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in self.honest(request):
            yield chunk
            if chunk.finish is not None and self.name == "infer-0":
                yield but(chunk, finish=None)


LIARS = [NotANumber, TooFewLogprobs, NoVersion, Raising, TimingOut, NoEnd, GoesOn]


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.__name__)
@played
async def test_what_makes_no_sense_fails_the_request_and_the_run_goes_on_elsewhere(liar: type[Watched]):
    rig = Rig(engines=2, engine_class=liar, config={"engine_retries": 20}, tasks=12, keep=True)
    batch = await rig.full(0)
    assert len(batch) == 8
    assert rig.ledger.attempts.dropped["failed"] == batch.meta_info["metrics"]["attempt/failed_total/engine"] > 0
    assert {name for kept in rig.kept.values() for name in kept.engines} == {"infer-1"}
    assert np.isfinite(batch.batch["infer_logprobs"].numpy()).all()
    assert len(await rig.full(1)) == 8


@played
async def test_an_engine_that_returns_too_many_tokens_fails_the_request():
    rig = Rig(engines=2, script=lambda _: [97] * 100, config={"engine_retries": 20}, keep=True)
    rig.engine.overrun(1)
    batch = await rig.full(0)
    assert rig.ledger.attempts.dropped["failed"] > 0
    assert (batch.batch["response_mask"].sum(1) == 64).all()
    assert {name for kept in rig.kept.values() for name in kept.engines} == {"infer-1"}


@pytest.mark.parametrize("error", [EngineError("out of memory"), RuntimeError("out of memory")], ids=["ours", "theirs"])
@played
async def test_an_engine_that_refuses_requests_is_avoided(error: Exception):
    rig = Rig(engines=2, config={"engine_retries": 20})
    rig.engine.refuses["generate"] = error
    assert len(await rig.full(0)) == 8
    assert rig.machine.status().engines[0].strikes >= 3
    assert rig.scheduler.status().lost_engines == {}


@played
async def test_a_group_whose_requests_keep_failing_is_dropped_not_scored():
    rig = Rig(tasks=2, config={"engine_retries": 1})
    rig.engine.refuses["generate"] = EngineError("out of memory")
    assert await rig.batch(0, -1) is None
    assert rig.ledger.groups.dropped == {"failed": 2}
    assert rig.machine.dead_letters == []  # it is not the tasks' fault


@played
async def test_one_engine_that_lies_alone_stops_the_run_by_the_breaker():
    rig = Rig(engine_class=NotANumber, config={"breaker_share": 0.5, "engine_retries": 1000, "retry_after_s": 0.0})
    with pytest.raises(
        Exception, match=r"infer-0 answered g0\.a\d\.t0\.p0 with a log-probability that is not a number"
    ):
        await rig.batch(0)


# a prompt longer than the context


class Wordy(Echo):
    async def start(self, task: Any) -> str:
        await super().start(task)
        return "x" * (500 if task.ordinal == 1 else 5)


@played
async def test_a_prompt_longer_than_the_context_is_the_tasks_fault_and_the_run_goes_on():
    rig = Rig(env=Wordy, engine={"context_tokens": 200}, tasks=5, config={"env_retries": 5})
    batch = await rig.full(0, -1)
    assert len(batch) == 8
    (letter,) = rig.machine.dead_letters
    assert (letter.ordinal, letter.failures) == (1, 1)
    assert (
        "begins with 501 tokens; the model's context is 200: shorten the first observation, or raise it" in letter.why
    )


@played
async def test_a_prompt_longer_than_the_rows_is_the_tasks_fault_too():
    rig = Rig(env=Wordy, tasks=5, config={"sequence_length": 100})
    batch = await rig.full(0, -1)
    assert len(batch) == 8
    assert "sequence_length is 100" in rig.machine.dead_letters[0].why


# engines that die


def dying(engines: int, **more: Any) -> Rig:
    given: dict[str, Any] = {"script": talk(40, 60), "tasks": 4, "keep": True, "env": partial(Echo, turns=2)}
    return Rig(engines=engines, **given | more)


@played
async def test_when_an_engine_dies_attempts_go_on_elsewhere_from_the_last_heard_token():
    rig, calm = dying(2), dying(2)
    await calm.full(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        rig.engine.die("power cut")
    assert all_words(rig) == all_words(calm)
    continued = {request.sampled for request in rig.engines[1].requests} - {0}
    assert continued == {16}  # one chunk was heard
    assert rig.ledger.attempts.dropped == {}
    assert rig.log.made == 8
    assert "power cut" in rig.scheduler.status().lost_engines["infer-0"]


@played
async def test_an_engine_that_falls_silent_is_found_out_and_left():
    rig, calm = dying(2), dying(2)
    await calm.full(0)
    began = now()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(2.05)
        rig.engine.hang()
    assert all_words(rig) == all_words(calm)
    assert now() - began < 60
    assert [*rig.scheduler.status().lost_engines] == ["infer-0"]


@played
async def test_an_engine_that_dies_between_requests_is_found_out():
    rig = Rig(engines=2)
    await rig.scheduler.initialize()
    rig.engine.die()
    assert len(await rig.full(0)) == 8
    assert len(await rig.full(1)) == 8


@played
async def test_when_the_last_engine_dies_get_batch_raises_and_names_it():
    rig = dying(2)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(2)
    rig.engines[0].die("power cut")
    await later(2)
    rig.engines[1].die("fire")
    with pytest.raises(EngineError, match=r"all engines are lost: infer-0: .*power cut; infer-1: .*fire"):
        await waiting
    with pytest.raises(EngineError, match="all engines are lost"):
        await rig.batch(0)


@played
async def test_when_the_last_engine_hangs_get_batch_raises_in_bounded_time():
    rig = dying(1)
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(2)
    rig.engine.hang()
    with pytest.raises(EngineError, match="infer-0"):
        await waiting
    assert now() < 60


@played
async def test_an_engine_that_does_not_start_ends_the_first_call():
    rig = Rig(engines=2)
    rig.engines[1].refuses["start"] = RuntimeError("no such model")
    for _ in range(2):
        with pytest.raises(EngineError, match="start of engine infer-1: RuntimeError: no such model"):
            await rig.batch(0)


class LetsGoSlowly(Watched):
    """Takes long to close a stream."""

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        try:
            async for chunk in super().generate(request):
                yield chunk
        finally:
            if self.name != "infer-2":
                await later(10)


@played
async def test_an_attempt_that_is_moved_again_while_its_old_engine_does_not_let_go():
    rig = dying(3, engine_class=LetsGoSlowly)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2)
        for engine in rig.engines[:2]:
            engine.hang()
        group.create_task(_tried(rig, [0]))
        await later(6)
        await _tried(rig, [1])
    assert len(waiting.result()) == 8


async def _tried(rig: Rig, devices: list[int]) -> None:
    try:
        await rig.scheduler.shrink_sampler(devices)
    except EngineError:
        return
