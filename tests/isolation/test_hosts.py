"""Processes that are lent: what whoever borrows one can rely on."""

import ast
import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial

import numpy as np
import pytest
from tests.isolation.kit import Born, Counter, eventually, hosts, is_alive, open_files, run

from windrow.errors import ConfigError, EnvError, InternalError, Refused
from windrow.rollout import virtual_time


def test_a_call_is_answered_by_an_object_in_another_process():
    async def body() -> None:
        pool = hosts(partial(Counter, 5))
        async with pool.borrow() as host:
            assert await host.call("pid") == host.pid != os.getpid()
            assert [await host.call("add", 2), await host.call("add_slowly", 3)] == [7, 10]
        await pool.close()

    run(body())


def test_everything_travels_as_it_is():
    things = ("żółw 🐢", b"\0\xff", None, {"a": [1, 2.5]}, Counter, len)

    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as host:
            assert await host.call("echo", *things) == things
            numbers = await host.call("numbers")
            assert numbers["array"].tolist() == [0, 1, 2, 3, 4]
            assert numbers["number"] == np.float32(0.5)
        await pool.close()

    run(body())


def test_a_large_answer_arrives_whole_while_others_go_on():
    large = os.urandom(10 << 20)

    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as one, pool.borrow() as other, asyncio.TaskGroup() as group:
            echoes = [group.create_task(one.call("echo", large)), group.create_task(other.call("echo", large))]
        assert [echo.result() for echo in echoes] == [(large,), (large,)]
        await pool.close()

    run(body())


def test_all_calls_of_an_object_are_made_in_one_task_whose_loop_goes_on_in_between():
    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as host:
            assert await host.call("task") == await host.call("task")
            await host.call("begin_to_tick")
            while not await host.call("ticked"):
                pass
        await pool.close()

    run(body())


def test_a_lambda_and_a_class_of_a_function_can_be_made_there():
    class Local(Counter):
        def who(self) -> "Local":
            return self

    async def body() -> None:
        pool = hosts(lambda: Local(3))
        async with pool.borrow() as host:
            local = await host.call("who")
            assert type(local) is Local
            assert local.count == 3
        await pool.close()

    run(body())


def test_the_classes_of_a_script_and_of_a_module_that_is_not_on_the_path_go_along(tmp_path):
    (tmp_path / "hidden.py").write_text("class Aside:\n    def __init__(self): self.name = 'aside'\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, importlib.util, sys
        from windrow.errors import EnvError
        from windrow.isolation.hosts import Hosts
        from windrow.isolation.settings import HostSettings

        spec = importlib.util.spec_from_file_location("some_aside", sys.path[0] + "/hidden.py")
        aside = importlib.util.module_from_spec(spec)
        sys.modules["some_aside"] = aside
        spec.loader.exec_module(aside)

        class Mine:
            def both(self, other):
                return self, aside.Aside(), other

        async def main():
            hosts = Hosts(Mine, HostSettings(name="mine", error=EnvError))
            async with hosts.borrow() as host:
                mine, one, other = await host.call("both", aside.Aside())
                print(type(mine) is Mine, type(one) is aside.Aside, type(other) is aside.Aside, one.name)
            await hosts.close()

        asyncio.run(main())
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True True True aside\n", "")


def test_a_factory_that_cannot_be_sent_is_the_users_fault_and_said_at_once():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"thing cannot be sent to a process of its own: .*lock"):
        hosts(lambda: lock)


def test_a_factory_that_cannot_be_loaded_there_is_the_users_fault():
    async def body() -> None:
        pool = hosts(Counter, preload=("no_such_module",))
        for _ in range(2):
            with pytest.raises(ConfigError, match="No module named 'no_such_module'") as caught:
                await pool.take()
            assert "Traceback" in str(caught.value.__cause__)
        await pool.close()

    run(body())


def test_an_argument_that_cannot_be_sent_is_told_and_the_process_goes_on():
    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as host:
            with pytest.raises(ConfigError, match=r"thing echo: what it is asked cannot be sent to it: .*lock"):
                await host.call("echo", threading.Lock())
            assert await host.call("add") == 1
        await pool.close()

    run(body())


def test_a_factory_that_raises_is_told_to_whoever_waits():
    def broken() -> object:
        raise RuntimeError("no board")

    async def body() -> None:
        pool = hosts(broken, ahead=1)
        for _ in range(3):
            with pytest.raises(EnvError, match="thing being made: RuntimeError: no board") as caught:
                await pool.take()
            assert "in broken" in str(caught.value.__cause__)
        await pool.close()

    run(body())


def test_processes_are_there_before_they_are_needed_and_no_more_than_that():
    async def body() -> None:
        pool = hosts(Counter, ahead=3)
        pool.open()
        await eventually(lambda: pool.ready == 3)
        async with pool.borrow():
            await eventually(lambda: pool.ready == 3)
            assert pool.living == 4
        await pool.close()

    run(body())


def test_a_process_is_not_used_again_unless_it_may_be():
    async def body() -> None:
        pool = hosts(Counter)
        pids = [await one_count(pool) for _ in range(3)]
        assert len({pid for pid, _ in pids}) == 3
        await pool.close()

    run(body())


def test_a_process_that_may_be_used_again_has_a_new_object_each_time():
    async def body() -> None:
        pool = hosts(Counter, reuse="process")
        counts = [await one_count(pool) for _ in range(3)]
        assert counts == [(counts[0][0], 1)] * 3
        await pool.close()

    run(body())


def test_an_object_that_may_be_used_again_is_the_same_each_time():
    async def body() -> None:
        pool = hosts(Counter, reuse="object")
        counts = [await one_count(pool) for _ in range(3)]
        assert [count for _, count in counts] == [1, 2, 3]
        await pool.close()

    run(body())


async def one_count(pool) -> tuple[int, int]:
    async with pool.borrow() as host:
        return host.pid, await host.call("add")


def test_two_calls_at_once_are_refused():
    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as host, asyncio.TaskGroup() as group:
            first = group.create_task(host.call("add"))
            await asyncio.sleep(0)
            with pytest.raises(InternalError, match="asked to add while it is add"):
                await host.call("add")
        assert first.result() == 1
        await pool.close()

    run(body())


def test_what_it_prints_is_not_heard_here(capfd):
    async def body() -> None:
        pool = hosts(Counter)
        async with pool.borrow() as host:
            await host.call("say", "hello")
        await pool.close()

    run(body())
    assert capfd.readouterr() == ("", "")


def test_processes_do_not_share_their_luck():
    async def body() -> None:
        pool = hosts(Counter, preload=("numpy.random",))
        draws = set()
        for _ in range(3):
            async with pool.borrow() as host:
                draws.add(await host.call("draws"))
        assert len(draws) == 3
        await pool.close()

    run(body())


def test_closing_ends_what_is_pending_and_leaves_nothing(born: Born):
    async def body() -> None:
        pool = hosts(Counter, ahead=2)
        host = await pool.take()
        async with asyncio.TaskGroup() as group:
            pending = group.create_task(failure_of(host.call("echo", bytes(10 << 20))))
            waiting = [group.create_task(failure_of(pool.take())) for _ in range(30)]
            await asyncio.sleep(0)
            await pool.close()
        assert isinstance(pending.result(), EnvError)
        assert any(isinstance(each.result(), Refused) for each in waiting)
        assert born() == set()
        with pytest.raises(Refused, match="thing is closed"):
            await pool.take()
        await pool.close()

    run(body())


async def failure_of(work) -> Exception | None:
    try:
        await work
    except (EnvError, Refused) as error:
        return error
    return None


def test_a_place_that_was_never_used_is_closed_at_once():
    async def body() -> None:
        await hosts(Counter).close()

    run(body())


def test_a_nest_that_loads_for_ever_can_be_closed(born: Born):
    async def body() -> None:
        pool = hosts(Counter, preload=("tests.isolation.endless",))
        pool.open()
        await pool.close()
        assert born() == set()

    run(body())


@pytest.mark.parametrize("steps", range(0, 40, 5))
def test_whoever_is_cancelled_at_any_moment_leaves_nothing_behind(steps: int, born: Born):
    """Cancelled after so many turns of the event loop, whatever it waits for then."""

    async def use(pool) -> None:
        async with pool.borrow() as host:
            for _ in range(3):
                await host.call("add")

    async def body() -> None:
        pool = hosts(Counter, ahead=1)
        async with pool.borrow():
            pass
        await eventually(lambda: pool.ready == 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(use(pool))
            for _ in range(steps):
                await asyncio.sleep(0.0002)
            task.cancel()
        async with pool.borrow() as host:
            assert await host.call("add") == 1
        await eventually(lambda: pool.living == pool.ready == 1)
        await pool.close()
        assert born() == set()

    run(body())


def test_two_hundred_uses_leave_no_file_no_process_and_no_corpse(born: Born):
    async def use(pool) -> None:
        async with pool.borrow() as host:
            assert await host.call("add") == 1

    async def body() -> None:
        pool = hosts(Counter, ahead=2)
        await use(pool)
        await eventually(lambda: pool.living == pool.ready == 2)
        before, below = open_files(), len(born())
        for _ in range(10):
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(use(pool))
        await eventually(lambda: pool.living == pool.ready == 2)
        assert open_files() == before
        assert len(born()) == below == 3
        await pool.close()

    run(body())


def test_a_nest_that_has_threads_starts_interpreters_instead_of_forking(caplog):
    async def body() -> None:
        pool = hosts(Counter, preload=("tests.isolation.threaded",), memory_mb=256)
        async with pool.borrow() as host:
            assert await host.call("pid") == host.pid
            assert await host.call("add", 4) == 4
        await pool.close()

    with caplog.at_level(logging.WARNING):
        run(body())
    assert "left threads running" in caplog.text


def test_a_loop_with_a_time_of_its_own_is_refused():
    async def body() -> None:
        with pytest.raises(ConfigError, match="thing can only be isolated on the real clock"):
            await hosts(Counter).take()

    virtual_time.run(body())


CROWDED = textwrap.dedent("""
    import asyncio, resource, sys
    from tests.isolation.kit import Counter, hosts
    from windrow.errors import EnvError

    async def one(pool, done):
        try:
            async with pool.borrow() as host:
                await done.wait()
                return await host.call("add")
        except EnvError as error:
            done.set()
            return str(error)

    async def main(most, whose):
        if whose == "nest":
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        pool = hosts(Counter)
        async with pool.borrow() as host:
            await host.call("add")
        if whose == "ours":
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, 4096))
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(pool, done)) for _ in range(80)]
        print({task.result() for task in tasks})
        await pool.close()

    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
""")


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        ("ours", "thing: there are too many open files here; raise ulimit -n"),
        ("nest", "thing: no process could be started: [Errno 24] Too many open files; raise the limits"),
    ],
)
def test_too_many_open_files_are_told_and_nobody_waits_for_ever(whose: str, words: str):
    command = [sys.executable, "-c", CROWDED, "45", whose]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    answers = ast.literal_eval(done.stdout)
    assert 1 in answers
    assert any(str(answer).startswith(words) for answer in answers)


def test_a_process_killed_while_nobody_needs_it_is_replaced():
    async def body() -> None:
        pool = hosts(Counter, ahead=1)
        pool.open()
        await eventually(lambda: pool.ready == 1)
        victim = next(iter(pool._living.values()))
        os.kill(victim.pid, signal.SIGKILL)
        await eventually(lambda: pool.living == 0)
        async with pool.borrow() as host:
            assert host.pid != victim.pid
            assert await host.call("add") == 1
        await pool.close()
        assert not is_alive(victim.pid)

    run(body())
