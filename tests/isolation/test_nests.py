"""The process that all others come from: what happens when it, or ours, comes to an unexpected end."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests.isolation.kit import Born, Villain, descendants, eventually, hosts, is_alive, nest_of, run

from windrow.errors import EnvError
from windrow.isolation import keeper


def test_a_nest_that_is_killed_takes_only_its_own_with_it_and_is_replaced(born: Born):
    async def body() -> None:
        pool, other = hosts(Villain, ahead=1), hosts(Villain)
        async with other.borrow() as bystander:
            async with pool.borrow() as host, asyncio.TaskGroup() as group:
                below = await host.call("daemon")
                group.create_task(kill(nest_of(pool)))
                with pytest.raises(EnvError, match="thing sleep: the process that it came from died"):
                    await host.call("sleep")
            await eventually(lambda: not is_alive(host.pid))  # killed, which takes a moment on a busy machine
            await eventually(lambda: not is_alive(below))  # what hid below it is found
            async with pool.borrow() as again:
                assert await again.call("add") == 1
            assert await bystander.call("add") == 1
        await pool.close()
        await other.close()
        assert born() == set()

    run(body())


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_whoever_waits_when_the_nest_dies_gets_a_process_from_the_next():
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow():
            pass
        os.kill(nest_of(pool), signal.SIGSTOP)  # so that it hatches nothing
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pool.take())
            await asyncio.sleep(0)
            os.kill(nest_of(pool), signal.SIGKILL)
        assert await waiting.result().call("add") == 1
        await pool.close()

    run(body())


def test_a_nest_that_dies_while_it_loads_is_told():
    async def body() -> None:
        pool = hosts(Villain, preload=("tests.isolation.deadly",))
        with pytest.raises(EnvError, match="thing: its process died while it was loaded: the module gives up"):
            await pool.take()
        await pool.close()

    run(body())


def test_a_nest_that_does_not_end_is_ended(monkeypatch, born: Born):
    monkeypatch.setattr(keeper, "CLOSE_GRACE_S", 0.1)

    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as host:
            below = await host.call("daemon")
            os.kill(nest_of(pool), signal.SIGSTOP)
            await pool.close()
            assert not is_alive(host.pid)
            assert not is_alive(below)
        assert born() == set()

    run(body())


def test_what_hangs_is_killed_though_the_nest_does_not_answer():
    async def body() -> None:
        pool = hosts(Villain)
        host = await pool.take()
        os.kill(nest_of(pool), signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await host.call("spin")
            await eventually(lambda: not is_alive(host.pid))
        finally:
            os.kill(nest_of(pool), signal.SIGCONT)
        await host.gone()
        await pool.close()

    run(body())


SCRIPT = textwrap.dedent("""
    import asyncio, sys
    from tests.isolation.kit import Villain, hosts

    async def main():
        pool = hosts(Villain, ahead=2)
        host = await pool.take()
        print(pool.nest_pid, host.pid, await host.call("child"), await host.call("daemon"), flush=True)
        await host.call(sys.argv[1])

    asyncio.run(main())
""")


@pytest.mark.parametrize("deed", ["sleep", "spin"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_our_process_is_killed_nothing_is_left(deed: str, number: signal.Signals):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, deed], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        pids = {int(pid) for pid in process.stdout.readline().split()}
        assert len(pids) == 4
        below = descendants(process.pid)
        assert below >= pids
        process.send_signal(number)
    assert process.returncode == -number

    async def body() -> None:
        await eventually(lambda: not any(is_alive(pid) for pid in below))

    run(body())
