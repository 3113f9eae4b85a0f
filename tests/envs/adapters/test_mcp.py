"""MCP servers, real ones: processes that are started here, over stdio and over HTTP."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import cloudpickle
import pytest
from tests.envs.adapters.playing import error_of, play

from windrow.envs.protocol import DEADLINE, Briefing, Observation, Step
from windrow.envs.tools import McpServer, mcp_http, mcp_stdio, with_tools, write_call
from windrow.envs.tools.servers import RemoteTool
from windrow.errors import ConfigError
from windrow.text import Message
from windrow.trajectory import Task

HERE = Path(__file__).parent
SMALL, REAL = str(HERE / "mcp_small.py"), str(HERE / "mcp_real.py")


class Quiet:
    """An environment that has nothing to say."""

    async def start(self, task: Task) -> Observation:
        return "go"

    async def step(self, action: str) -> Step:
        return Step(observation="went", terminated=True)

    async def close(self) -> None:
        pass


def small(manner: str = "", *, shared: bool = False) -> McpServer:
    return mcp_stdio(sys.executable, [SMALL, manner], shared=shared)


def answer(step: Step) -> str:
    assert isinstance(step.observation, tuple)
    (message,) = step.observation
    assert isinstance(message, Message)
    return message.content


def by_name(tools: Sequence[RemoteTool]) -> dict[str, RemoteTool]:
    return {tool.name: tool for tool in tools}


def children() -> set[int]:
    """Processes below this one that still live."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = {int(pid) for each in listed for pid in each.read_text().split()}
    return {pid for pid in found if not _is_dead(pid)}


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No test leaves a process or an open file behind."""
    before, files = children(), open_files()
    yield
    assert children() <= before
    assert open_files() <= files


# the real SDK on both sides


def test_the_tools_of_a_program_are_offered_and_called():
    server = mcp_stdio(sys.executable, [REAL], env={"WINDROW_SAYS": "hello"}, prefix="my_")
    actions = [
        write_call("my_add", a=2, b=3),
        write_call("my_add", a="x"),
        write_call("my_refuse", why="no"),
        write_call("my_variable", name="WINDROW_SAYS"),
        write_call("add", a=1),
        "done",
    ]
    played = asyncio.run(play(with_tools(Quiet, [server]), actions))
    assert isinstance(played.first, Briefing)
    offered = {tool["function"]["name"]: tool["function"] for tool in played.first.tools}
    assert [*offered] == ["my_add", "my_refuse", "my_wait", "my_variable"]
    assert offered["my_add"]["description"] == "Add two numbers."
    assert offered["my_add"]["parameters"]["required"] == ["a"]
    said = [answer(step) for step in played.steps[:-1]]
    assert said[0] == "5"
    assert said[1].startswith("error: Error executing tool add: 1 validation error")
    assert said[2].startswith("error: Error executing tool refuse")
    assert said[3] == "hello"
    assert said[4] == "error: there is no tool 'add'; did you mean my_add?"
    assert played.steps[-1].terminated


@contextmanager
def over_http() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, REAL, str(port)], **quiet) as process:  # type: ignore[call-overload]
        try:
            asyncio.run(listening(port))
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            process.kill()


async def listening(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                await writer.wait_closed()
                return


def test_the_tools_of_a_server_over_http_are_called_until_it_is_killed():
    async def body(url: str, process: "subprocess.Popen[bytes]") -> None:
        make = with_tools(Quiet, [mcp_http(url, headers={"X-Windrow": "1"})])
        played = await play(make, [write_call("add", a=2), write_call("refuse", why="no"), "done"])
        assert [answer(step)[:12] for step in played.steps[:2]] == ["3", "error: Error"]
        first, second = mcp_http(url).session(), mcp_http(url).session()
        tools, others = by_name(await first.open()), by_name(await second.open())
        with by_deadline(0.2):
            assert await error_of(tools["wait"].call({})) == f"EnvError: mcp server '{url}' tool wait: it took too long"
        assert await tools["add"].call({"a": 1}) == "2"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(error_of(tools["wait"].call({})))
            await others["add"].call({"a": 1})
            process.kill()
        assert waiting.result() == f"EnvError: mcp server '{url}' is gone"
        assert (await error_of(others["add"].call({"a": 1}))).startswith(f"EnvError: mcp server '{url}'")
        await first.close()
        await second.close()
        assert (await error_of(mcp_http(url).session().open())).startswith(
            f"EnvError: mcp server '{url}' did not start: ConnectError"
        )

    with over_http() as (url, process):
        asyncio.run(body(url, process))


@contextmanager
def by_deadline(seconds: float) -> Iterator[None]:
    token = DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    yield
    DEADLINE.reset(token)


# a small one that misbehaves


def test_each_episode_has_a_program_of_its_own():
    make = with_tools(Quiet, [small()])

    async def two() -> list[list[str]]:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(play(make, [write_call("count")] * 2 + [write_call("pid")])) for _ in range(2)]
        return [[answer(step) for step in each.result().steps] for each in both]

    (*first, one), (*second, other) = asyncio.run(two())
    assert first == second == ["1", "2"]
    assert one != other


def test_a_shared_program_serves_every_episode_until_it_is_closed():
    server = small(shared=True)
    make = with_tools(Quiet, [server])

    async def three() -> list[str]:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(play(make, [write_call("count")])) for _ in range(2)]
        said = [answer(each.result().steps[0]) for each in both]
        said.append(answer((await play(make, [write_call("count")])).steps[0]))
        await server.close()
        said.append(answer((await play(make, [write_call("count")])).steps[0]))
        return sorted(said)  # the last one, on a new program, is never closed but ends with the event loop

    assert asyncio.run(three()) == ["1", "1", "2", "3"]


def test_a_shared_program_that_died_is_started_again_for_the_next_episode():
    server = small(shared=True)
    make = with_tools(Quiet, [server])

    async def body() -> None:
        assert "is gone" in await error_of(play(make, [write_call("die")]))
        assert answer((await play(make, [write_call("count")])).steps[0]) == "1"
        await server.close()

    asyncio.run(body())


def test_a_program_that_dies_is_the_environments_fault_with_its_last_words():
    said = asyncio.run(error_of(play(with_tools(Quiet, [small()]), [write_call("die")])))
    assert said.startswith("EnvError: mcp server ")
    assert "mcp_small.py" in said
    assert "is gone; it said last: x" in said
    assert said.endswith("x\nout of luck")
    assert len(said) < 2_500


def test_a_program_that_is_killed_from_outside_is_gone():
    async def body() -> str:
        session = small().session()
        tools = by_name(await session.open())
        os.kill(int(await tools["pid"].call({})), signal.SIGKILL)
        said = await error_of(tools["count"].call({}))
        assert "is closed" in await error_of(tools["count"].call({}))
        await session.close()
        return said

    assert asyncio.run(body()).endswith("is gone")


def test_what_is_no_text_is_named():
    (step,) = asyncio.run(play(with_tools(Quiet, [small()]), [write_call("odd")])).steps
    assert answer(step) == "(image)\nand words"


def test_a_call_ends_by_its_deadline_and_the_program_with_the_session():
    async def body() -> tuple[str, float]:
        session = small().session()
        tools = by_name(await session.open())
        began = monotonic()
        with by_deadline(0.2):
            said = await error_of(tools["deaf"].call({}))
        took = monotonic() - began
        await session.close()
        return said, took

    said, took = asyncio.run(body())
    assert said.endswith("tool deaf: it took too long")
    assert took < 5


def test_an_opening_that_is_cut_off_leaves_no_program():
    async def body() -> None:
        env = with_tools(Quiet, [small("silent")])()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await env.start(Task(ordinal=0))
        await env.close()

    before = children()
    asyncio.run(body())
    assert children() == before


def test_a_program_that_ignores_being_told_to_end_is_killed():
    async def body() -> str:
        session = small("stubborn").session()
        with by_deadline(0.5):
            said = await error_of(session.open())
        await session.close()
        return said

    before = children()
    assert asyncio.run(body()).endswith("start: it took too long")
    assert children() == before


def test_cancelling_the_opening_at_any_moment_leaves_nothing():
    async def body(after: int) -> bool:
        session = small().session()
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(session.open())
            for _ in range(after):
                await asyncio.sleep(0.002)
            opening.cancel()
        await session.close()
        return opening.cancelled()

    before = children()
    cut = [asyncio.run(body(after)) for after in (0, 1, 2, 4, 8, 16, 32, 200)]
    assert cut[0]
    assert not cut[-1]
    assert children() == before


REFUSED = {
    "broken": "did not start: MCPError: Connection closed; it said last: cannot work like this",
    "endless": "did not start: EnvError: the list of its tools has more than 100 pages",
}


@pytest.mark.parametrize("manner", REFUSED)
def test_a_program_that_cannot_serve_is_named_with_why(manner: str):
    said = asyncio.run(error_of(play(with_tools(Quiet, [small(manner)]), [])))
    assert said.startswith("EnvError: mcp server ")
    assert said.endswith(REFUSED[manner])


def test_a_program_that_does_not_exist_is_a_mistake_of_the_settings():
    said = asyncio.run(error_of(play(with_tools(Quiet, [mcp_stdio("no-such-program", ["-x"])]), [])))
    assert said.startswith("ConfigError: mcp server 'no-such-program -x' cannot be started: [Errno 2]")
    with pytest.raises(ConfigError, match="needs an address that begins with http:// or https://"):
        mcp_http("localhost:80")


def test_a_server_travels_to_another_process():
    make = cloudpickle.loads(cloudpickle.dumps(with_tools(Quiet, [small()])))
    assert answer(asyncio.run(play(make, [write_call("count")])).steps[0]) == "1"
