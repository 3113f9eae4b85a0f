"""Bugs of ours, filters that fail, sources that fail: get_batch ends with that instead of waiting for ever."""

import asyncio
import logging
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.rollout import kit
from tests.rollout.kit import RIGS, Rig, at, later, now, played
from tests.rollout.toys import Breaking, Echo, Hanging, Slow, first_time

from windrow.core.events import AnyEvent, TimePassed
from windrow.errors import ConfigError, InternalError, RewardError
from windrow.sources.lists import ListSource
from windrow.trajectory import Task, Trajectory

# a bug of ours


@pytest.mark.parametrize("call", ["begin", "extend", "decode"])
@played
async def test_a_broken_promise_in_the_codec_ends_get_batch(call: str, monkeypatch: pytest.MonkeyPatch):
    rig = Rig(env=partial(Echo, turns=2))

    def broken(*_: object) -> None:
        raise InternalError("promise 42 is broken")

    monkeypatch.setattr(type(rig.cluster.worker_config.codec), call, broken)
    with pytest.raises(InternalError, match="promise 42 is broken"):
        await rig.batch(0)
    with pytest.raises(InternalError, match="promise 42 is broken"):
        await rig.batch(0)


@pytest.mark.parametrize("error", [InternalError("told to"), KeyError("told to")], ids=["ours", "foreign"])
@pytest.mark.parametrize("kind", ["TaskArrived", "AttemptEnded", "AttemptProgressed", "TimePassed", "WorkerJoined"])
@played
async def test_a_machine_that_raises_ends_get_batch(kind: str, error: Exception):
    rig = Rig(env=partial(Breaking, when=first_time))
    await rig.scheduler.initialize()
    break_machine(rig, kind, error)
    with pytest.raises(type(error), match="told to"):
        await rig.batch(0)
    assert now() < 50


def break_machine(rig: Rig, kind: str, error: Exception) -> None:
    """Let it raise at the first event of a kind."""
    plain = rig.machine.step

    def step(event: AnyEvent, moment: float) -> list[Any]:
        if type(event).__name__ == kind:
            rig.machine.step = plain  # type: ignore[method-assign]
            raise error
        return plain(event, moment)

    rig.machine.step = step  # type: ignore[method-assign, assignment]
    if kind == "WorkerJoined":
        rig.queue.crew.spawn(rig.queue.join("another", 1, ("train/",)), "another")


@pytest.mark.parametrize("call", ["suspend", "update_weights", "shrink_sampler"])
@played
async def test_a_bug_ends_whatever_waits(call: str):
    engine = {"load_s": 50.0, "release_s": 50.0}
    rig = Rig(engines=2, engine=engine, env=partial(Echo, step_s=10.0), config={"staleness": 1.0})
    batch = asyncio.ensure_future(rig.batch(0))
    await later(3)
    arguments: dict[str, list[Any]] = {"suspend": [], "update_weights": [1], "shrink_sampler": [[1]]}
    waiting = asyncio.ensure_future(getattr(rig.scheduler, call)(*arguments[call]))
    break_machine(rig, "AttemptEnded", InternalError("told to"))
    done, _ = await asyncio.wait({batch, waiting}, timeout=100)
    assert done == {batch, waiting}
    assert isinstance(batch.exception(), InternalError)
    if call != "suspend":
        assert isinstance(waiting.exception(), InternalError)


@played
async def test_after_a_bug_everything_can_still_be_shut_down():
    rig = Rig(env=partial(Echo, turns=2, close_s=1.0))
    await rig.scheduler.initialize()
    break_machine(rig, "AttemptEnded", InternalError("told to"))
    with pytest.raises(InternalError):
        await rig.batch(0)
    await rig.scheduler.shutdown()
    assert kit.premises.tasks() == {asyncio.current_task()}
    assert await rig.batch(1) is None


@played
async def test_an_alarm_that_meets_a_bug_ends_get_batch():
    rig = Rig(env=Hanging, step_timeout_s=1e5, config={"episode_timeout_s": 50.0})
    await rig.scheduler.initialize()
    break_machine(rig, TimePassed.__name__, ZeroDivisionError("told to"))
    with pytest.raises(ZeroDivisionError, match="told to"):
        await rig.batch(0)
    assert now() == pytest.approx(50, abs=5)


# filters


def raising(_: list[Trajectory]) -> bool:
    raise KeyError("no score")


async def raising_later(_: list[Trajectory]) -> bool:
    await later(1)
    raise KeyError("no score")


@pytest.mark.parametrize("judge", [raising, raising_later])
@played
async def test_a_filter_that_raises_ends_get_batch(judge: Any):
    rig = Rig(filter=judge)
    with pytest.raises(RewardError, match=r"filter of g\d+: KeyError: 'no score'"):
        await rig.batch(0)


async def odd(group: list[Trajectory]) -> bool:
    await later(1)
    return group[0].task.ordinal % 2 == 1


def numpy_odd(group: list[Trajectory]) -> Any:
    return np.array([each.task.ordinal for each in group]).min() % 2 == 1


@pytest.mark.parametrize("judge", [odd, numpy_odd, lambda group: group[0].task.ordinal % 2 == 1])
@played
async def test_a_filter_rejects_groups_which_are_replaced(judge: Any):
    rig = Rig(filter=judge)
    assert len(await rig.full(0)) == 8
    assert rig.ledger.groups.dropped["filtered"] >= 3
    assert len(rig.queue._dispatch.shelf) == rig.ledger.groups.alive + rig.ledger.groups.delivered


@played
async def test_a_filter_that_accepts_nothing_is_given_up_with_an_error_or_what_there_is():
    rig = Rig(filter=lambda _: False, max_filter_rounds=3)
    with pytest.raises(Exception, match=r"the filter rejected \d+ groups and accepted 0 of 4; widen the filter"):
        await rig.batch(0)
    picky = Rig(filter=lambda group: group[0].task.ordinal in (0, 5), max_filter_rounds=3)
    batch = await picky.full(0)
    assert (len(batch), batch.meta_info["short"]) == (4, True)


@played
async def test_varied_keeps_only_groups_whose_scores_differ():
    rig = Rig(filter="varied", script=lambda request: [97] * (1 + request.seed % 2) + [256])
    batch = await rig.full(0)
    scores = batch.batch["episode_scores"].reshape(4, 2)
    assert (scores[:, 0] != scores[:, 1]).all()


# sources


class BrokenSource(ListSource):
    async def next(self, tag: str, count: int) -> list[Task]:
        if self.position().get(tag, 0) >= 4:
            raise OSError("disk gone")
        return await super().next(tag, count)


@played
async def test_a_source_that_raises_ends_get_batch_and_is_named():
    rig = Rig().join("val", group_size=1, tasks=BrokenSource(Task(ordinal=0) for _ in range(100)))
    with pytest.raises(ConfigError, match="task source of val: OSError: disk gone"):
        await rig.get_batch(at(0), -1)


class SlowSource(ListSource):
    async def next(self, tag: str, count: int) -> list[Task]:
        await later(1000)
        return await super().next(tag, count)


@played
async def test_a_slow_source_holds_up_neither_shutdown_nor_what_was_fetched():
    rig = Rig(tasks=None)
    await rig.scheduler.shutdown()
    RIGS.remove(rig)
    slow = Rig(mode="val")
    train = slow.join("train", tasks=SlowSource(Task(ordinal=0) for _ in range(9)))
    waiting = asyncio.ensure_future(slow.batch(0, of=train))
    await later(10)
    asked = now()
    await train.shutdown()
    assert await waiting is None
    assert now() == asked


# the stall detector


@played
async def test_a_wait_that_takes_long_says_what_is_missing():
    rig = Rig(
        env=partial(Slow, seconds=250.0, slow=frozenset({2})), step_timeout_s=1e4, config={"stall_after_s": 100.0}
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(50)
        assert rig.scheduler.status().stalled == ""
        await later(100)
        said = rig.scheduler.status().stalled
        assert "'train' (since 0.000) wants 4 groups for step 0: 3 ready; 1 incomplete with 2 attempts playing" in said
        stages = {(sighting.stage, sighting.since < 5) for sighting in rig.scheduler.status().episodes}
        assert stages == {("environment steps", True)}
    assert rig.scheduler.status().stalled == ""


def test_a_stall_is_logged_again_and_again(caplog: pytest.LogCaptureFixture):
    @played
    async def scene():
        slow = partial(Slow, seconds=250.0, slow=frozenset({2}))
        rig = Rig(env=slow, step_timeout_s=1e4, config={"stall_after_s": 100.0})
        await rig.full(0)

    with caplog.at_level(logging.WARNING, "windrow.rollout"):
        scene()
    said = [record for record in caplog.records if record.message.startswith("batch waits: 'train'")]
    assert [record.__dict__["consumer"] for record in said] == ["train", "train"]
    assert "1 incomplete with 2 attempts playing" in said[0].__dict__["why"]


@played
async def test_a_stall_names_who_holds_the_engines():
    rig = Rig(config={"stall_after_s": 10.0})
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0))
        await later(0.2)
        await rig.scheduler.suspend()
        await later(50)
        assert "engines are held by caller" in rig.scheduler.status().stalled
        await rig.scheduler.resume()


@played
async def test_a_wait_that_was_given_up_is_no_stall_any_more():
    rig = Rig(env=Hanging, step_timeout_s=1e4, config={"stall_after_s": 10.0})
    waiting = asyncio.ensure_future(rig.batch(0))
    await later(50)
    assert rig.scheduler.status().stalled
    waiting.cancel()
    await asyncio.wait({waiting})
    assert rig.scheduler.status().stalled == ""


@played
async def test_calls_from_another_event_loop_are_refused():
    rig = Rig()
    await rig.full(0)

    said: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(InternalError, match="lives on another event loop") as raised:
            asyncio.run(rig.scheduler.initialize())
        said.append(str(raised.value))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "make all calls from the one that made the first" in said[0]
