"""The promises of `windrow.engines.protocol`, each as a test, held by every implementation.

Tests advance by chunks that arrive and by what engines report; none is judged by the clock.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.kits import (
    KITS,
    Heard,
    Kit,
    Rig,
    ask,
    begun,
    hear,
    load_is,
    request,
    run_async,
    some_time,
)

from windrow.engines.protocol import Engine
from windrow.errors import ConfigError, EngineError, EngineLost, PromptTooLong, Refused

MANY = 64
FEW = 8

Started = Callable[[], AbstractAsyncContextManager[Rig]]


@pytest.fixture(params=KITS, ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest) -> Kit:
    assert isinstance(request.param, Kit)
    return request.param


@pytest.fixture
def started(kit: Kit, tmp_path: Path) -> Started:
    """Makes a started engine; it is closed at the end."""

    @asynccontextmanager
    async def make():
        async with kit.rig(tmp_path) as rig:
            await rig.engine.start()
            yield rig

    return make


# answers


@run_async
async def test_an_engine_is_an_engine(kit: Kit, tmp_path: Path):
    async with kit.rig(tmp_path) as rig:
        assert isinstance(rig.engine, Engine)
        assert rig.engine.traits.context_tokens > rig.long
        assert rig.engine.traits.capacity >= 1


@run_async
async def test_an_answer_has_as_many_tokens_as_it_may_and_one_finish_at_its_end(started: Started):
    async with started() as rig:
        for most in (1, 7, 100):
            heard = await hear(rig.engine, request(most, max_tokens=most))
            assert len(heard.tokens) == most
            assert [chunk.finish for chunk in heard.chunks[:-1]] == [None] * (len(heard.chunks) - 1)
            assert heard.finish == "length"


@run_async
async def test_every_token_has_a_log_probability_and_a_version(started: Started, kit: Kit):
    async with started() as rig:
        heard = await hear(rig.engine, request(max_tokens=60))
    for chunk in heard.chunks:
        assert chunk.token_ids.dtype == np.int32
        assert chunk.logprobs.dtype == np.float32
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert chunk.version == 0
    assert all(-50.0 < value <= 1e-6 for value in heard.logprobs)
    assert all(0 <= token < kit.vocabulary + 64 for token in heard.tokens)


@run_async
async def test_an_answer_is_heard_while_it_is_sampled(started: Started):
    """An engine's death must cost few tokens."""
    async with started() as rig:
        rig.hold()
        async with aclosing(rig.engine.generate(rig.request())) as chunks:
            first = await anext(chunks)
    assert first.finish is None
    assert 0 < len(first.token_ids) < rig.long


@run_async
async def test_the_context_ends_an_answer(started: Started):
    async with started() as rig:
        heard = await hear(rig.engine, request(prompt=rig.engine.traits.context_tokens - 10, max_tokens=50))
    assert len(heard.tokens) == 10
    assert heard.finish == "length"


@run_async
async def test_a_prompt_that_fills_the_context_is_refused_and_harms_nobody(started: Started):
    async with started() as rig, asyncio.TaskGroup() as group:
        other = ask(group, rig.engine, request(1, max_tokens=40))
        with pytest.raises(PromptTooLong, match=str(rig.engine.traits.context_tokens)):
            await hear(rig.engine, rig.request(2, prompt=rig.engine.traits.context_tokens))
    assert (len(other.tokens), other.finish) == (40, "length")


@run_async
async def test_a_turn_that_has_all_its_tokens_ends_at_once(started: Started):
    """It was interrupted after its last token and before its end."""
    async with started() as rig:
        heard = await hear(rig.engine, request(max_tokens=4, sampled=4))
    assert (heard.tokens, heard.finish) == ([], "length")


@run_async
async def test_a_stop_token_ends_an_answer_and_belongs_to_it(started: Started, kit: Kit):
    async with started() as rig:
        whole = await hear(rig.engine, request(max_tokens=40))
        stop = whole.tokens[20]
        asked = request(1, max_tokens=40, seed=1000, stop_token_ids=(stop,))
        if "stop_token_ids" in kit.refuses:
            with pytest.raises(ConfigError, match="stop_token_ids"):
                await hear(rig.engine, asked)
            return
        heard = await hear(rig.engine, asked)
    assert heard.finish == "stop" or stop not in heard.tokens
    assert stop not in heard.tokens[:-1]
    if rig.engine.traits.deterministic:
        assert heard.tokens == whole.tokens[: whole.tokens.index(stop) + 1]


@run_async
async def test_a_stop_string_ends_an_answer_and_its_tokens_belong_to_it(started: Started):
    async with started() as rig:
        heard = await hear(rig.engine, request(max_tokens=400, stop=("a", "e", "o")))
    letters = {ord("a"), ord("e"), ord("o")}
    assert heard.finish == "stop"
    assert heard.tokens[-1] in letters
    assert not letters & set(heard.tokens[:-1])


@run_async
async def test_only_allowed_tokens_are_sampled(started: Started, kit: Kit):
    asked = request(max_tokens=30, allowed_token_ids=(3, 5, 8))
    async with started() as rig:
        if "allowed_token_ids" in kit.refuses:
            with pytest.raises(ConfigError, match="allowed_token_ids"):
                await hear(rig.engine, asked)
            return
        heard = await hear(rig.engine, asked)
    assert kit.is_script or set(heard.tokens) <= {3, 5, 8}


@run_async
async def test_what_it_cannot_do_is_refused_by_name(started: Started, kit: Kit):
    wishes: dict[str, Any] = {"top_k": 5, "min_p": 0.1, "stop_token_ids": (7,), "allowed_token_ids": (7,)}
    async with started() as rig:
        for number, name in enumerate(sorted(kit.refuses)):
            with pytest.raises((ConfigError, Refused), match=name):
                await hear(rig.engine, rig.request(number, **{name: wishes[name]}))
        await load_is(rig.engine, running=0, waiting=0)


@run_async
async def test_more_requests_than_it_serves_at_once_are_all_answered(started: Started):
    async with started() as rig:
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, request(n, max_tokens=6)) for n in range(rig.engine.traits.capacity + 10)]
        assert all(len(heard.tokens) == 6 for heard in many)
        await load_is(rig.engine, running=0, waiting=0)


@run_async
async def test_the_same_request_gives_the_same_tokens_whatever_runs_beside_it(started: Started):
    async with started() as rig:
        if not rig.engine.traits.deterministic:
            return
        alone = await hear(rig.engine, request(1, max_tokens=50))
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, request(n, max_tokens=50)) for n in range(1, 6)]
    assert many[0].tokens == alone.tokens
    assert many[0].logprobs == alone.logprobs
    assert many[1].tokens != alone.tokens


# the gate


@run_async
async def test_nothing_is_sampled_between_suspend_and_resume(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(MANY)]
            await begun(many)
            await rig.engine.suspend("interrupt")
            sampled = rig.sampled() if rig.sampled is not None else 0
            rig.let_go()
            late = [ask(group, rig.engine, request(MANY + n, max_tokens=5)) for n in range(FEW)]
            await load_is(rig.engine, running=0, waiting=FEW)
            await some_time(rig.engine)
            assert rig.sampled is None or rig.sampled() == sampled
            assert [heard.finish for heard in many] == ["interrupted"] * MANY
            assert not any(heard.chunks for heard in late)
            await rig.engine.resume()
        assert [len(heard.tokens) for heard in late] == [5] * FEW
        assert all(0 < len(heard.tokens) < rig.long for heard in many)
        await load_is(rig.engine, running=0, waiting=0)


@run_async
async def test_an_interrupted_turn_goes_on_where_it_was(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            await rig.engine.suspend("interrupt")
        rig.let_go()
        await rig.engine.resume()
        async with asyncio.TaskGroup() as group:
            rests = [ask(group, rig.engine, heard.rest()) for heard in many]
            wholes = [ask(group, rig.engine, rig.request(100 + n, seed=1000 + n)) for n in range(FEW)]
        for heard, rest, whole in zip(many, rests, wholes, strict=True):
            assert len(heard.tokens) + len(rest.tokens) == rig.long
            if rig.engine.traits.deterministic:
                assert heard.tokens + rest.tokens == whole.tokens
                assert np.allclose(heard.logprobs + rest.logprobs, whole.logprobs, atol=1e-4)


@run_async
async def test_a_turn_that_is_interrupted_again_and_again_loses_nothing(started: Started):
    async with started() as rig:
        heard = Heard(rig.request())
        parts: list[int] = []
        for round_ in range(4):
            rig.hold()
            async with asyncio.TaskGroup() as group:
                company = ask(group, rig.engine, rig.request(50 + round_))
                part = ask(group, rig.engine, heard.rest() if parts else heard.request)
                await begun([company])
                await rig.engine.suspend("interrupt")
            parts += part.tokens
            heard = Heard(part.request, part.chunks)
            rig.let_go()
            await rig.engine.resume()
        rest = await hear(rig.engine, heard.rest())
        assert len(parts) + len(rest.tokens) == rig.long
        if rig.engine.traits.deterministic:
            whole = await hear(rig.engine, rig.request(99, seed=heard.request.seed))
            assert parts + rest.tokens == whole.tokens


@run_async
async def test_draining_lets_everything_end(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            rig.let_go()
            await rig.engine.suspend("drain")
            late = ask(group, rig.engine, request(FEW, max_tokens=5))
            await load_is(rig.engine, running=0, waiting=1)
            assert not late.chunks
            await rig.engine.resume()
        assert [(len(heard.tokens), heard.finish) for heard in many] == [(rig.long, "length")] * FEW
        assert len(late.tokens) == 5


@run_async
async def test_freezing_keeps_requests_open_and_they_go_on(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            if not rig.engine.traits.can_freeze:
                with pytest.raises((ConfigError, Refused), match="freeze"):
                    await rig.engine.suspend("freeze")
                rig.let_go()  # nothing was changed: all go on to their end
            else:
                await rig.engine.suspend("freeze")
                sampled = rig.sampled() if rig.sampled is not None else 0
                rig.let_go()
                await some_time(rig.engine)
                assert rig.sampled is None or rig.sampled() == sampled
                assert (await rig.engine.load_report()).running == FEW
                assert [heard.finish for heard in many] == [None] * FEW
                await rig.engine.resume()
        assert [(len(heard.tokens), heard.finish) for heard in many] == [(rig.long, "length")] * FEW
        if rig.engine.traits.deterministic:
            whole = await hear(rig.engine, rig.request(100, seed=many[0].request.seed))
            assert many[0].tokens == whole.tokens


@run_async
async def test_frozen_requests_can_still_be_interrupted(started: Started):
    async with started() as rig:
        if not rig.engine.traits.can_freeze:
            return
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(3)]
            await begun(many)
            await rig.engine.suspend("freeze")
            await rig.engine.interrupt([many[0].request.id])
            await load_is(rig.engine, running=2)
            await rig.engine.suspend("interrupt")
        assert [heard.finish for heard in many] == ["interrupted"] * 3
        await load_is(rig.engine, running=0, waiting=0)


@run_async
async def test_single_requests_are_interrupted_and_the_others_go_on(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(4)]
            await begun(many)
            await rig.engine.interrupt([many[1].request.id, many[3].request.id, "unknown"])
            rig.let_go()
        assert [heard.finish for heard in many] == ["length", "interrupted", "length", "interrupted"]
        assert len(many[0].tokens) == rig.long
        assert len(many[1].tokens) < rig.long


@run_async
async def test_requests_at_the_gate_can_be_interrupted(started: Started):
    async with started() as rig:
        await rig.engine.suspend("interrupt")
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, request(n, max_tokens=5)) for n in range(3)]
            await load_is(rig.engine, waiting=3)
            await rig.engine.interrupt([many[1].request.id])
            await load_is(rig.engine, waiting=2)
            await rig.engine.resume()
        assert [(len(heard.tokens), heard.finish) for heard in many] == [
            (5, "length"),
            (0, "interrupted"),
            (5, "length"),
        ]


@run_async
async def test_requests_that_wait_at_the_gate_stay_there_when_it_is_closed_again(started: Started):
    async with started() as rig:
        await rig.engine.suspend("interrupt")
        async with asyncio.TaskGroup() as group:
            heard = ask(group, rig.engine, request(max_tokens=5))
            await load_is(rig.engine, waiting=1)
            await rig.engine.suspend("interrupt")
            await rig.engine.suspend("drain")
            assert (await rig.engine.load_report()).waiting == 1
            await rig.engine.resume()
        assert (len(heard.tokens), heard.finish) == (5, "length")


@run_async
async def test_the_second_of_two_equal_calls_changes_nothing(started: Started):
    async with started() as rig:
        assert await rig.engine.start() == await rig.engine.start()
        for _ in range(2):
            await rig.engine.suspend("interrupt")
        async with asyncio.TaskGroup() as group:
            heard = ask(group, rig.engine, request(max_tokens=5))
            await load_is(rig.engine, waiting=1)
            for _ in range(2):
                await rig.engine.resume()
        for _ in range(2):
            await rig.engine.interrupt([heard.request.id])
        assert len(heard.tokens) == 5
        assert await rig.engine.load(3, None) == await rig.engine.load(3, None)
        assert (await rig.engine.health()).state == "up"


# clients that go


@run_async
async def test_closing_the_stream_withdraws_the_request(started: Started):
    async with started() as rig:
        rig.hold()
        async with aclosing(rig.engine.generate(rig.request())) as chunks:
            await anext(chunks)
            report = await rig.engine.load_report()
            assert (report.running, report.waiting) == (1, 0)
            assert 0 < report.tokens_outstanding < rig.long
        await load_is(rig.engine, running=0, waiting=0)
        assert (await rig.engine.load_report()).tokens_outstanding == 0


@run_async
async def test_a_cancelled_client_costs_nothing(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            other = ask(group, rig.engine, rig.request(1))
            many = [Heard(rig.request(10 + n)) for n in range(FEW)]
            tasks = [group.create_task(hear(rig.engine, heard.request, heard)) for heard in many]
            await begun([other, *many])
            for task in tasks:
                task.cancel()
            await load_is(rig.engine, running=1, waiting=0)
            rig.let_go()
        assert (len(other.tokens), other.finish) == (rig.long, "length")


@run_async
async def test_a_client_that_goes_while_it_waits_at_the_gate_is_forgotten(started: Started):
    async with started() as rig:
        await rig.engine.suspend("drain")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(hear(rig.engine, rig.request()))
            await load_is(rig.engine, waiting=1)
            task.cancel()
            await load_is(rig.engine, waiting=0)
        await rig.engine.resume()
        await load_is(rig.engine, running=0, waiting=0)


# weights


@run_async
async def test_a_new_number_for_the_same_weights(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            heard = ask(group, rig.engine, rig.request())
            await begun([heard])
            acknowledgement = await rig.engine.load(7, None)
            rig.let_go()
        later = await hear(rig.engine, request(1, max_tokens=5))
    assert acknowledgement.version == 7
    assert heard.versions == sorted(heard.versions)
    assert set(heard.versions) == {0, 7}
    assert later.versions == [7] * 5


@run_async
async def test_new_weights_are_confirmed_and_label_what_they_sample(started: Started, kit: Kit, tmp_path: Path):
    async with started() as rig:
        if not rig.engine.traits.can_load:
            with pytest.raises((ConfigError, Refused), match="load"):
                await rig.engine.load(1, kit.weights(1, tmp_path))  # type: ignore[arg-type]  # as the kit knows them
            assert (await hear(rig.engine, request(max_tokens=5))).versions == [0] * 5
            return
        rig.hold()
        async with asyncio.TaskGroup() as group:
            heard = ask(group, rig.engine, rig.request(1))
            await begun([heard])
            await rig.engine.suspend("interrupt")
            first = await rig.engine.load(1, kit.weights(1, tmp_path))  # type: ignore[arg-type]
            await rig.engine.resume()
            rig.let_go()
        rest = await hear(rig.engine, heard.rest())
        second = await rig.engine.load(2, kit.weights(2, tmp_path))  # type: ignore[arg-type]
        third = await rig.engine.load(3, kit.weights(1, tmp_path))  # type: ignore[arg-type]
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert set(heard.versions) == {0}
    assert set(rest.versions) == {1}
    assert first.checksum == third.checksum != second.checksum
    assert first.checksum != ""


@run_async
async def test_weights_change_between_two_tokens_of_frozen_requests(started: Started, kit: Kit, tmp_path: Path):
    async with started() as rig:
        if not (rig.engine.traits.can_load and rig.engine.traits.can_freeze):
            return
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            await rig.engine.suspend("freeze")
            await rig.engine.load(4, kit.weights(4, tmp_path))  # type: ignore[arg-type]  # as the kit knows them
            rig.let_go()
            await rig.engine.resume()
        for heard in many:
            assert heard.versions == sorted(heard.versions)
            assert set(heard.versions) == ({0} if kit.load_ends_frozen else {0, 4})
            assert heard.finish == ("interrupted" if kit.load_ends_frozen else "length")


@run_async
async def test_weights_change_under_running_requests(started: Started, kit: Kit, tmp_path: Path):
    async with started() as rig:
        if not rig.engine.traits.can_load:
            return
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            said = await rig.engine.load(5, kit.weights(5, tmp_path))  # type: ignore[arg-type]  # as the kit knows them
            rig.let_go()
            late = await hear(rig.engine, request(100, max_tokens=5))
        assert said == await rig.engine.load(5, kit.weights(5, tmp_path))  # type: ignore[arg-type]
    assert late.versions == [5] * 5
    for heard in many:
        assert heard.finish in ("length", "interrupted")
        assert heard.versions == sorted(heard.versions)
        assert set(heard.versions) <= {0, 5}
        assert 0 in heard.versions


# devices, health, end


@run_async
async def test_a_released_engine_ends_everything_and_refuses_until_it_is_restored(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            for _ in range(2):
                await rig.engine.release()
        assert [heard.finish for heard in many] == ["interrupted"] * FEW
        assert (await rig.engine.health()).state == "released"
        with pytest.raises(EngineError, match="released"):
            await hear(rig.engine, rig.request(20))
        rig.let_go()
        for _ in range(2):
            await rig.engine.restore()
        assert (await rig.engine.health()).state == "up"
        assert len((await hear(rig.engine, request(21, max_tokens=5))).tokens) == 5


@run_async
async def test_releasing_also_ends_what_waits_and_a_closed_gate_stays_closed(started: Started):
    async with started() as rig:
        await rig.engine.suspend("interrupt")
        async with asyncio.TaskGroup() as group:
            early = ask(group, rig.engine, rig.request(1))
            await load_is(rig.engine, waiting=1)
            await rig.engine.release()
        assert early.finish == "interrupted"
        await rig.engine.restore()
        async with asyncio.TaskGroup() as group:
            late = ask(group, rig.engine, request(2, max_tokens=5))
            await load_is(rig.engine, waiting=1)
            await some_time(rig.engine)
            assert not late.chunks
            await rig.engine.resume()
        assert len(late.tokens) == 5


@run_async
async def test_health_says_how_it_is(kit: Kit, tmp_path: Path):
    async with kit.rig(tmp_path) as rig:
        assert (await rig.engine.health()).state == "cold"
        with pytest.raises(EngineLost, match="start"):
            await hear(rig.engine, rig.request())
        assert (await rig.engine.start()).version == 0
        assert (await rig.engine.health()).state == "up"
        await rig.engine.suspend("drain")
        assert (await rig.engine.health()).state == "up"
        await rig.engine.close()
        health = await rig.engine.health()
        assert (health.state, bool(health.why)) == ("dead", True)


@run_async
async def test_closing_ends_everything_that_runs_or_waits(started: Started):
    async with started() as rig:
        rig.hold()
        async with asyncio.TaskGroup() as group:
            many = [ask(group, rig.engine, rig.request(n)) for n in range(FEW)]
            await begun(many)
            for _ in range(2):
                await rig.engine.close()
        assert [heard.finish for heard in many] == ["interrupted"] * FEW
        with pytest.raises(EngineLost):
            await hear(rig.engine, rig.request(20))


@run_async
async def test_closing_ends_what_waits_at_the_gate(started: Started):
    async with started() as rig:
        await rig.engine.suspend("interrupt")
        async with asyncio.TaskGroup() as group:
            heard = ask(group, rig.engine, rig.request())
            await load_is(rig.engine, waiting=1)
            await rig.engine.close()
        assert (heard.tokens, heard.finish) == ([], "interrupted")


@run_async
async def test_an_engine_that_was_never_started_can_be_closed(kit: Kit, tmp_path: Path):
    async with kit.rig(tmp_path) as rig:
        await rig.engine.close()
        assert (await rig.engine.health()).state == "dead"
