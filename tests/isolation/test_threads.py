"""Objects in threads of their own."""

import asyncio
import logging
import threading

import pytest
from tests.isolation.kit import Counter, eventually, run

from windrow.errors import ConfigError, EnvError, Refused
from windrow.isolation import threads as module
from windrow.isolation.threads import Threads, ThreadSettings
from windrow.rollout import virtual_time


class Threaded(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.made_in = threading.get_ident()
        self.free = threading.Event()
        self.closed = threading.Event()
        MADE.append(self)

    def where(self) -> tuple[int, int]:
        return self.made_in, threading.get_ident()

    def block(self) -> None:
        self.free.wait()

    async def hang(self) -> None:
        await asyncio.Event().wait()

    def door(self) -> None:
        raise KeyError("door")

    def leave(self) -> None:
        raise GeneratorExit

    def stop(self) -> None:
        raise StopIteration(3)

    def finish(self) -> None:
        self.closed.set()


MADE: list[Threaded] = []


def threads(make=Threaded) -> Threads:
    return Threads(make, ThreadSettings(name="thing", error=EnvError))


def test_it_is_made_and_called_in_one_thread_that_is_not_ours():
    async def body() -> None:
        pool = threads()
        one, other = pool.take(), pool.take()
        made_in, called_in = await one.call("where")
        assert made_in == called_in != threading.get_ident()
        assert await other.call("where") != (made_in, called_in)
        assert await one.call("add_slowly", 2) == 2
        assert await one.call("task") == await one.call("task")
        await pool.close()
        assert pool.living == pool.left_behind == 0

    run(body())


def test_what_it_raises_is_raised_here_as_it_is():
    async def body() -> None:
        pool = threads()
        host = pool.take()
        with pytest.raises(KeyError, match="door"):
            await host.call("door")
        with pytest.raises(EnvError, match="thing stop: StopIteration: 3"):
            await host.call("stop")
        with pytest.raises(EnvError, match="thing leave: GeneratorExit"):
            await host.call("leave")
        assert await host.call("add") == 1
        await pool.close()

    run(body())


def test_what_making_it_raised_is_raised_by_its_calls():
    def broken() -> object:
        raise RuntimeError("no board")

    async def body() -> None:
        pool = threads(broken)
        host = pool.take()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no board"):
                await host.call("add")
        await pool.close()

    run(body())


def test_one_that_blocks_holds_up_nobody():
    async def body() -> None:
        pool = threads()
        blocked, other = pool.take(), pool.take()
        async with asyncio.TaskGroup() as group:
            await blocked.call("add")
            group.create_task(blocked.call("block"))
            assert [await other.call("add") for _ in range(3)] == [1, 2, 3]
            MADE[-2].free.set()
            MADE[-1].free.set()
        await pool.close()

    run(body())


def test_a_call_that_is_given_up_is_cancelled_there_and_the_next_one_works():
    async def body() -> None:
        pool = threads()
        host = pool.take()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await host.call("hang")
        assert await host.call("add") == 1
        pool.give_back(host)
        await host.gone()
        assert pool.living == pool.left_behind == 0

    run(body())


def test_a_thread_that_does_not_come_back_is_left_behind_counted_and_told(caplog):
    async def body() -> None:
        pool = threads()
        host = pool.take()
        await host.call("add")
        thing = MADE[-1]
        for call in (host.call("block"), host.call_last("finish")):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await call
        pool.give_back(host)
        assert pool.left_behind == 1
        assert not thing.closed.is_set()
        thing.free.set()
        await eventually(lambda: pool.left_behind == 0)
        assert thing.closed.is_set(), "when it comes back after all, its last call is made"
        await pool.close()

    with caplog.at_level(logging.WARNING):
        run(body())
    assert "thing: a thread does not come back and is left behind" in caplog.text


def test_closing_waits_for_threads_that_end_and_leaves_the_others(caplog, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_GRACE_S", 0.05)

    async def body() -> None:
        pool = threads()
        good, bad = pool.take(), pool.take()
        await good.call("add")
        await bad.call("add")
        thing = MADE[-1] if await bad.call("where") == (MADE[-1].made_in,) * 2 else MADE[-2]
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(bad.call("block"))
            await good.call("add")
            await pool.close()
            assert pool.left_behind == 1
            with pytest.raises(Refused, match="thing is closed"):
                pool.take()
            thing.free.set()
        assert stuck.result() is None
        await eventually(lambda: pool.left_behind == 0)

    with caplog.at_level(logging.WARNING):
        run(body())
    assert "thing: 1 threads do not end and are left behind" in caplog.text


def test_a_loop_with_a_time_of_its_own_is_refused():
    async def body() -> None:
        with pytest.raises(ConfigError, match="thing can only be isolated on the real clock"):
            threads().take()

    virtual_time.run(body())
