"""Objects that do the worst to their process: one call fails, says why, and nobody else notices."""

import asyncio
import os
import re
import signal
import socket
import time

import pytest
from tests.isolation.kit import Born, Villain, eventually, hosts, is_alive, nest_of, open_files, run

from windrow.errors import EnvError, RewardError
from windrow.isolation import host
from windrow.isolation.host import Elsewhere
from windrow.isolation.messages import Made, pack
from windrow.isolation.wire import Wire

LIMIT_MB = 64


async def beside_a_good_one(pool, deed: str) -> EnvError:
    """Let one do its deed while another counts; what came of the deed."""
    async with pool.borrow() as good:
        assert await good.call("add") == 1
        with pytest.raises(EnvError) as caught:
            async with pool.borrow() as bad:
                await bad.call(deed)
        assert await good.call("add") == 2
        await bad.gone()
        assert not is_alive(bad.pid)
        return caught.value


def outcome(deed: str, born: Born) -> EnvError:
    outcomes = []

    async def body() -> None:
        pool = hosts(Villain, memory_mb=LIMIT_MB)
        outcomes.append(await beside_a_good_one(pool, deed))
        await pool.close()
        assert born() == set()

    run(body())
    return outcomes[0]


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("door", r"thing door: KeyError: 'door' \(kit.py:\d+ in door\)"),
        ("leave", r"thing leave: SystemExit: 3"),
        ("interrupt", r"thing interrupt: KeyboardInterrupt"),
        ("cancel_itself", r"thing cancel_itself: CancelledError"),
        ("odd_error", r"thing odd_error: OddError: odd"),
        ("no_text", r"thing no_text: ValueError: a file named \\udcff \(kit.py"),
        ("speechless", r"thing speechless: SpeechlessError: it cannot be told, RuntimeError \(kit.py"),
        ("eat", rf"thing eat: ran out of memory \(limit {LIMIT_MB} MB\): MemoryError"),
        ("gulp", rf"thing gulp: ran out of memory \(limit {LIMIT_MB} MB\): MemoryError"),
    ],
)
def test_what_it_raises_is_told_with_its_traceback(deed: str, words: str, born: Born):
    error = outcome(deed, born)
    assert error.__class__ is EnvError
    with pytest.raises(EnvError, match=words):
        raise error
    assert isinstance(error.__cause__, Elsewhere)
    assert "Traceback (most recent call last)" in str(error.__cause__)
    assert "kit.py" in str(error.__cause__)


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("exit_at_once", r"thing exit_at_once: its process ended with exit code 7; it last wrote: the lights went out"),
        ("segfault", r"thing segfault: its process was killed by SIGSEGV .*Fatal Python error.*in segfault"),
        ("abort", r"thing abort: its process was killed by SIGABRT .*Fatal Python error: Aborted.*in abort"),
        ("no_such_method", r"thing no_such_method: AttributeError: 'Villain' object has no attribute 'no_such_method'"),
        ("lock", r"thing lock: its answer or argument: a lock cannot be pickled: TypeError"),
        ("trap_exit", r"thing trap_exit: its answer cannot be unpickled: SystemExit: 3"),
        ("trap_interrupt", r"thing trap_interrupt: its answer cannot be unpickled: KeyboardInterrupt"),
        ("trap_memory", r"thing trap_memory: its answer cannot be unpickled: MemoryError"),
        ("garbage", r"thing garbage: it wrote something else than messages to its connection"),
        ("almost_garbage", r"thing almost_garbage: it wrote something else than messages to its connection"),
        ("cut", r"thing cut: it closed its connection, so it was killed"),
        ("flood", r"thing flood: its process ended with exit code 1; it last wrote: .*tide the last words"),
    ],
)
def test_how_it_dies_is_told(deed: str, words: str, born: Born):
    with pytest.raises(EnvError, match=words):
        raise outcome(deed, born)


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("exit_at_once", "thing exit_at_once: its process ended with exit code 7; it last wrote: the lights went out"),
        ("cut", "thing cut: it closed its connection, so it was killed"),
    ],
)
def test_how_it_dies_is_told_however_late_the_news_is(deed: str, words: str, monkeypatch):
    """Its nest stands still while it dies, so that all that is known for a while is that it is silent."""
    monkeypatch.setattr(host, "CUT_GRACE_S", 0.0)

    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as bad, asyncio.TaskGroup() as group:
            os.kill(nest_of(pool), signal.SIGSTOP)
            call = group.create_task(failure_of(bad.call(deed)))
            await eventually(lambda: bad._trouble != "")
            os.kill(nest_of(pool), signal.SIGCONT)
        assert re.search(words, str(call.result()))
        await pool.close()

    run(body())


def test_an_answer_that_is_too_long_is_told():
    async def body() -> None:
        pool = hosts(Villain)
        error = await beside_a_good_one(pool, "too_much")
        assert "300 MB is too much for one message; the most is 256 MB" in str(error)
        await pool.close()

    run(body())


@pytest.mark.parametrize("deed", ["sleep", "spin", "swallow", "deaf", "wait_in_c", "swarm"])
def test_what_hangs_is_killed_at_its_deadline(deed: str, born: Born):
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as good:
            with pytest.raises(TimeoutError):
                async with pool.borrow() as bad, asyncio.timeout(0.2) as limit:
                    await bad.call(deed)
            await bad.gone()
            late_s = time.monotonic() - (limit.when() or 0.0)
            assert late_s < 5.0  # on a machine that does other things too; see the soak for the promise
            assert await good.call("add") == 1
        await pool.close()
        assert born() == set()

    run(body())


def test_files_that_it_sends_along_are_not_kept():
    async def body() -> None:
        ours, theirs = socket.socketpair()
        frames: list[bytes] = []
        wire = Wire(ours, frames.append, frames.append)  # type: ignore[arg-type]  # the end would be one too many
        with theirs:
            before = open_files()
            for piece in pack(Made()):
                socket.send_fds(theirs, [bytes([piece])], [theirs.fileno()])
            await eventually(lambda: len(frames) == 1)
            assert open_files() == before
        wire.close()

    run(body())


def test_the_dead_of_one_object_are_buried_before_the_next():
    async def body() -> None:
        pool = hosts(Villain, reuse="process")
        dead = []
        for _ in range(4):
            async with pool.borrow() as host:
                dead.append((host.pid, await host.call("orphan")))
        assert len(set(dead)) == 1, "it is the same process, with no more dead below it"
        await pool.close()

    run(body())


@pytest.mark.parametrize("deed", ["child", "daemon"])
def test_what_it_started_dies_with_it(deed: str):
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as host:
            below = await host.call(deed)
            assert is_alive(below)
            await host.call("add")
            assert is_alive(below), "what belongs to a living process lives"
        await eventually(lambda: not is_alive(below))
        await pool.close()

    run(body())


def test_one_that_raised_is_not_used_again():
    async def body() -> None:
        pool = hosts(Villain, reuse="object", ahead=0)
        async with pool.borrow() as first:
            with pytest.raises(EnvError):
                await first.call("door")
            assert await first.call("add") == 1, "whoever has it may go on, for instance to close it"
        async with pool.borrow() as second:
            assert second.pid != first.pid
        async with pool.borrow() as third:
            assert third.pid == second.pid
        await pool.close()

    run(body())


def test_one_that_is_dead_says_so_whenever_it_is_called():
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as host:
            for _ in range(2):
                with pytest.raises(EnvError, match="exit code 7"):
                    await host.call("exit_at_once")
        await pool.close()

    run(body())


def test_one_that_closed_its_output_goes_on():
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as host:
            assert await host.call("mute") == 1
            assert await host.call("add") == 1
        await pool.close()

    run(body())


def test_one_killed_from_outside_is_told():
    async def body() -> None:
        pool = hosts(Villain)
        async with pool.borrow() as host, asyncio.TaskGroup() as group:
            call = group.create_task(failure_of(host.call("sleep")))
            await asyncio.sleep(0)
            os.kill(host.pid, signal.SIGKILL)
        assert "killed by SIGKILL, as the system does when memory runs out" in str(call.result())
        await pool.close()

    run(body())


async def failure_of(work) -> EnvError | None:
    try:
        await work
    except EnvError as error:
        return error
    return None


def test_the_error_is_of_the_kind_that_was_asked_for():
    async def body() -> None:
        pool = hosts(Villain, error=RewardError)
        async with pool.borrow() as host:
            with pytest.raises(RewardError, match="thing door: KeyError"):
                await host.call("door")
        await pool.close()

    run(body())
