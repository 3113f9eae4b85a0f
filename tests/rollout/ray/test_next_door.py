"""Hosts next door behave as those of Ray do, and what lives in them may die at any moment."""

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.rollout import kit
from tests.rollout.kit import Rig, all_words, later, now, play, played
from tests.rollout.toys import Echo, EnvLog, Slow, talk

pytest.importorskip("ray")

from tests.rollout.ray.next_door import NextDoor, Sealed

from windrow.cluster.ray.hosts import Remote, start
from windrow.errors import HostLost, Refused
from windrow.rollout.orders import Broken
from windrow.rollout.ray import offices
from windrow.rollout.ray.mail import Mailbox
from windrow.rollout.ray.offices import Office
from windrow.types import AttemptId, Failed

pytestmark = pytest.mark.parametrize("premises", ["next door"], indirect=True)


def there() -> NextDoor:
    assert isinstance(kit.premises, NextDoor)
    return kit.premises


class Desk:
    """Something to be held by a host."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.done = 0

    async def take(self, thing: object, seconds: float = 0.0) -> object:
        self.seen.append(thing)
        await later(seconds)
        self.done += 1
        return thing

    def refuse(self) -> None:
        raise Refused("not here")


async def desk() -> tuple[Remote, Desk]:
    host, held = start("a desk"), Desk()
    await host.attach("desk", lambda: held)
    return host, held


# hosts


def test_what_travels_is_copied_arrays_are_read_only_and_what_tests_made_is_shared():
    log, given = EnvLog(), {"ids": np.arange(3), "words": ["a"]}
    sealed = Sealed((log, given, talk))
    found_log, found, found_talk = sealed.opened()
    assert found_log is log
    assert found_talk is talk
    assert found["words"] == ["a"]
    assert found["words"] is not given["words"]
    assert found["ids"].tolist() == [0, 1, 2]
    assert not found["ids"].flags.writeable
    assert sealed.opened()[1] is not found


@played
async def test_a_call_begins_later_and_its_answer_comes_later_and_both_cost_no_time():
    host, held = await desk()
    given: list[int] = []
    asked = asyncio.ensure_future(host.call("desk.take", given))
    await asyncio.sleep(0)
    given.append(1)  # too late
    assert held.seen == []
    assert await asked == []
    assert now() == 0.0


@played
async def test_a_call_goes_on_when_nobody_waits_for_its_answer():
    host, held = await desk()
    asked = asyncio.ensure_future(host.call("desk.take", 1, 5.0))
    await later(1)
    asked.cancel()
    await later(10)
    assert held.done == 1


@played
async def test_what_is_raised_there_is_raised_here():
    host, _ = await desk()
    with pytest.raises(Refused, match="not here"):
        await host.call("desk.refuse")
    with pytest.raises(Refused, match="not here"):
        await host.control("desk.refuse")
    with pytest.raises(Refused, match="not here"):
        host.look("desk.refuse", within_s=1.0)


@played
async def test_a_host_that_is_killed_loses_what_it_does_and_what_it_is_asked():
    host, held = await desk()
    asked = asyncio.ensure_future(host.call("desk.take", 1, 5.0))
    await later(1)
    host.kill()
    with pytest.raises(HostLost, match="host a desk is gone"):
        await asked
    with pytest.raises(HostLost, match="host a desk is gone"):
        await host.call("desk.take", 1)
    with pytest.raises(HostLost, match="host a desk is gone"):
        host.look("desk.done", within_s=1.0)
    await later(10)
    assert held.done == 0


@played
async def test_an_end_is_heard_though_news_come_with_it():
    box = Mailbox(now())
    await box.report([Broken(AttemptId(0, 0), Failed("env", "it broke"))])
    box.end()
    first, _ = await box.news()
    assert len(first.news) == 1
    assert not first.is_last
    last, _ = await box.news()
    assert last.is_last


# those who live in them


def busy(**more: Any) -> Rig:
    given: dict[str, Any] = {"engines": 2, "tasks": 8, "keep": True, "num_workers": 2, "env": partial(Echo, turns=2)}
    return Rig(script=talk(20, 30), **given | more)


@pytest.mark.parametrize("after_s", [0.1, 0.3, 2.0, 3.1])
@played
async def test_when_a_player_dies_another_one_plays_the_same(after_s: float):
    rig, calm = busy(), busy()
    await calm.full(0, 16)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0, 16))
        await later(after_s)
        there().players(rig.scheduler)[0].kill()
    assert all_words(rig) == all_words(calm)
    assert rig.in_flight == 0


@pytest.mark.parametrize("after_s", [0.1, 0.3, 2.0, 3.1])
@played
async def test_when_the_host_of_an_engine_dies_the_others_say_the_same(after_s: float):
    rig, calm = busy(), busy()
    await calm.full(0, 16)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0, 16))
        await later(after_s)
        rig.cluster.hosts["infer-1"].kill()
    assert all_words(rig) == all_words(calm)
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]


@pytest.mark.parametrize("after_s", [0.1, 0.3, 2.0, 3.1])
@played
async def test_when_wires_break_they_are_mended_and_the_same_is_said(after_s: float):
    rig, calm = busy(), busy()
    await calm.full(0, 16)
    cut = 0
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0, 16))
        await later(after_s)
        for host in rig.cluster.hosts.values():
            cut += there().cut(host)
    assert cut == 4  # of two players to two engines
    assert all_words(rig) == all_words(calm)
    assert rig.scheduler.status().lost_engines == {}
    assert rig.in_flight == 0


@played
async def test_an_engine_that_cannot_be_reached_is_lost_and_the_other_says_the_same():
    rig, calm = busy(), busy()
    await calm.full(0, 16)
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0, 16))
        await later(2.0)
        there().cut(rig.cluster.hosts["infer-1"], for_good=True)
    assert all_words(rig) == all_words(calm)
    assert [*rig.scheduler.status().lost_engines] == ["infer-1"]
    assert "does not answer at next door" in rig.scheduler.status().lost_engines["infer-1"]


@played
async def test_when_the_office_dies_whoever_waits_is_told():
    rig = busy()
    waiting = asyncio.ensure_future(rig.batch(0, 16))
    await later(2)
    rig.cluster.office.kill()
    with pytest.raises(HostLost, match="infer-office is gone"):
        await waiting
    await rig.scheduler.shutdown()
    kit.RIGS.remove(rig)  # its queue is gone, with nothing in order
    await there().end(rig.cluster)


async def hang(*_: object, **__: object) -> None:
    await asyncio.get_running_loop().create_future()


async def with_an_office_that_hangs(monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = busy()
    await rig.full(0, 16)
    kit.RIGS.remove(rig)  # nothing will be in order
    monkeypatch.setattr(Office, "wait", hang)
    monkeypatch.setattr(Office, "give_up", hang)
    return rig


def within_a_test(test: Any) -> Any:
    """`played`, for tests that change something for their own time."""
    return lambda monkeypatch: play(test(monkeypatch))


@within_a_test
async def test_whoever_has_waited_enough_for_an_office_that_hangs_is_free_within_seconds(monkeypatch):
    rig = await with_an_office_that_hangs(monkeypatch)
    for call in (rig.scheduler.suspend, lambda: rig.batch(1, 16)):
        began = now()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(40):
                await call()
        assert now() - began == pytest.approx(40 + offices.GIVE_UP_S)
    rig.cluster.office.kill()
    await there().end(rig.cluster)


@within_a_test
async def test_every_order_to_an_office_that_hangs_ends_and_a_shutdown_ends_the_office(monkeypatch):
    rig = await with_an_office_that_hangs(monkeypatch)
    scheduler = rig.scheduler
    orders = [
        scheduler.suspend(), scheduler.resume(), scheduler.shrink_sampler([0]), scheduler.expand_sampler([0]),
        scheduler.update_weights(1), scheduler.survey(), scheduler.mark_trained(0),
    ]  # fmt: skip
    for order in orders:
        with pytest.raises(HostLost, match=r"host infer-office did not \w+ within \d+ s, so it counts as lost"):
            await order
    began = now()
    await scheduler.shutdown()
    assert now() - began < 300
    with pytest.raises(HostLost, match="infer-office is gone"):
        rig.cluster.office.look("office.ready", within_s=1.0)
    await there().end(rig.cluster)


@within_a_test
async def test_whoever_waits_for_a_batch_of_an_office_that_is_deaf_is_told(monkeypatch):
    rig = await with_an_office_that_hangs(monkeypatch)
    monkeypatch.setattr(Office, "beat", hang)
    began = now()
    with pytest.raises(HostLost, match="host infer-office has heard nothing for 60 s, so it counts as lost"):
        await rig.batch(1, 16)
    assert now() - began == pytest.approx(60 + offices.GIVE_UP_S)
    rig.cluster.office.kill()
    await there().end(rig.cluster)


@within_a_test
async def test_an_office_that_hears_is_waited_for_however_long_a_batch_takes(monkeypatch):
    slow = partial(Slow, seconds=5000.0, slow=frozenset(range(8)))
    rig = busy(env=slow, step_timeout_s=9000.0, config={"episode_timeout_s": 9000.0})
    await rig.full(0, 16)
    assert now() > 5000


@within_a_test
async def test_a_suspend_that_takes_its_time_is_waited_for(monkeypatch):
    plain, rig = Office.ask, Rig()
    await rig.scheduler.initialize()

    async def slow(*given: Any) -> Any:
        await later(50)
        return await plain(*given)

    monkeypatch.setattr(Office, "ask", slow)
    await rig.scheduler.suspend()
    assert now() == pytest.approx(50)
    monkeypatch.setattr(Office, "ask", plain)


def test_a_scheduler_that_leaves_while_its_hosts_start_harms_nobody():
    async def scene(turns: int) -> None:
        rig = Rig(tasks=2)
        val = rig.join("val", max_tasks=2)
        await rig.scheduler.initialize()
        await val.initialize()
        for _ in range(turns):
            await asyncio.sleep(0)
        await val.shutdown()
        assert len(await rig.full(0, -1, of=rig.join("val", max_tasks=2))) == 4
        assert len(await rig.full(0, 4)) == 4

    for turns in range(0, 40, 2):
        play(scene(turns))


def test_a_batch_that_nobody_waits_for_any_more_is_there_for_the_next_one_who_asks():
    async def scene(turns: int) -> None:
        rig = Rig()
        waiting = asyncio.ensure_future(rig.batch(0))
        await later(0.5)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert len(await rig.full(1)) == 8

    for turns in range(10):
        play(scene(turns))
