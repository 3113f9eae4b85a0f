"""Processes that take for ever to come or to go: nobody is held up by what is not theirs."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.isolation.kit import Born, Counter, eventually, hosts, run

from windrow.isolation.host import Host
from windrow.isolation.hosts import Hosts

SOON_S = 20.0
"""Far longer than it takes, and shorter than for ever."""


class Hangs(Counter):
    """The first ones hang while they are made."""

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__()
        number = len(list(folder.iterdir()))
        (folder / str(os.getpid())).touch()
        if number < most:
            time.sleep(1000)


async def taken(pool: Hosts) -> Host | None:
    try:
        return await pool.take()
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("ahead", [0, 2])
def test_what_hangs_while_it_is_made_holds_up_nobody_after_those_who_waited_for_it(
    ahead: int, tmp_path: Path, born: Born
):
    async def body() -> None:
        pool = hosts(partial(Hangs, tmp_path, ahead + 1), ahead=ahead)
        try:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(taken(pool))
                await eventually(lambda: len(list(tmp_path.iterdir())) == len(pool._making) == ahead + 1)
                waiting.cancel()
            async with asyncio.timeout(SOON_S), pool.borrow() as host:
                assert await host.call("add") == 1
        finally:
            await pool.close()
        assert born() == set()

    run(body())


def test_whoever_gives_up_disappoints_nobody_else(tmp_path: Path):
    async def body() -> None:
        pool = hosts(partial(Hangs, tmp_path, 2))
        try:
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(taken(pool)) for _ in range(2)]
                await eventually(lambda: len(list(tmp_path.iterdir())) == len(pool._making) == 2)
                waiting[1].cancel()
                await asyncio.wait([waiting[1]])
                assert not waiting[0].done()
                waiting[0].cancel()
            await eventually(lambda: pool.living == 0)
        finally:
            await pool.close()

    run(body())


def test_closing_does_not_wait_for_the_threads_of_others():
    async def body() -> None:
        held = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        others = loop.run_in_executor(None, held.wait)
        pool = hosts(Counter)
        async with pool.borrow() as host:
            await host.call("add")
        try:
            async with asyncio.timeout(SOON_S):
                await pool.close()
        finally:
            held.set()
            await others
            await pool.close()

    run(body())
