"""One contract for all places: an environment cannot tell where it is played, as far as whoever plays it can see."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.isolation.kit import Born, eventually, is_alive, open_files, run
from tests.soak.kit import Mixed, play_all

from windrow.envs.guess import GuessEnv
from windrow.envs.places import Place, PlaceSettings, open_place
from windrow.envs.protocol import DEADLINE, Briefing, Env, Isolation, Observation, Rewritten, Step, deadline
from windrow.errors import ConfigError, EnvError
from windrow.rollout import virtual_time
from windrow.text import Message
from windrow.trajectory import Task

EVERYWHERE: tuple[Isolation, ...] = ("inline", "thread", "process")
everywhere = pytest.mark.parametrize("isolation", EVERYWHERE)
apart = pytest.mark.parametrize("isolation", EVERYWHERE[1:])


class Echo:
    """Does what it is told by the action: its name, then what it is about."""

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.said: list[str] = []
        self.closed = 0

    async def start(self, task: Task) -> Observation:
        self.said.append(f"start {task.ordinal} {task.payload}")
        match task.payload:
            case {"show": show}:
                return show  # type: ignore[no-any-return]  # that is the question
            case _:
                return f"{self.name} {task.ordinal}"

    async def step(self, action: str) -> Any:
        self.said.append(action)
        verb, _, rest = action.partition(" ")
        return await getattr(self, f"do_{verb}")(rest)

    async def close(self) -> None:
        self.closed += 1
        if self.said[-1:] == ["say wait to close"]:
            raise RuntimeError("the door is stuck")

    async def do_say(self, rest: str) -> Step:
        return Step(observation=rest, reward=float(len(self.said)), info={"said": tuple(self.said)})

    async def do_large(self, _: str) -> Step:
        return Step(observation="ł" * (5 << 20), terminated=True)

    async def do_info(self, _: str) -> Step:
        return Step(truncated=True, info={"board": np.eye(3, dtype=np.int8), "by": Echo, "none": None})

    async def do_messages(self, _: str) -> Step:
        return Step(observation=[Message("tool", "42", name="calculator"), Message("user", "go on")])

    async def do_rewrite(self, _: str) -> Step:
        return Step(observation=Rewritten((Message("user", "anew"),)))

    async def do_deadline(self, _: str) -> Step:
        return Step(info={"deadline": deadline()})

    async def do_break(self, rest: str) -> Step:
        raise KeyError(rest)

    async def do_nonsense(self, _: str) -> Any:
        return 17

    async def do_hang(self, _: str) -> Step:
        await asyncio.Event().wait()
        return Step()

    async def do_block(self, _: str) -> Step:
        time.sleep(0.3)  # noqa: ASYNC251 -- that is the point
        return Step()

    async def do_pid(self, _: str) -> Step:
        return Step(info={"pid": os.getpid()})

    async def do_exit(self, _: str) -> Step:
        os._exit(3)


def place(isolation: Isolation, make: Callable[[], Env] = Echo, **settings: Any) -> Place:
    return open_place(make, PlaceSettings(name="echo", isolation=isolation, **{"ahead": 0} | settings))


async def said(env: Env, action: str) -> Step:
    step = await env.step(action)
    assert isinstance(step, Step)
    return step


@everywhere
def test_an_episode_goes_its_way(isolation: Isolation):
    async def body() -> None:
        here = place(isolation, partial(Echo, "żółw"))
        env = here.make()
        assert await env.start(Task(ordinal=7, payload=[1, "ł"])) == "żółw 7"
        assert (await said(env, "say 🐢")).observation == "🐢"
        step = await said(env, "say two")
        assert step.info == {"said": ("start 7 [1, 'ł']", "say 🐢", "say two")}
        assert step.reward == 3.0
        await env.close()
        await here.close()

    run(body())


@everywhere
@pytest.mark.parametrize(
    "show",
    [
        "text",
        Message("system", "be brief"),
        [Message("system", "be brief"), Message("user", "hello")],
        Rewritten((Message("user", "anew"),)),
        Briefing((Message("user", "count"),), ({"type": "function", "function": {"name": "count"}},)),
    ],
    ids=["text", "message", "messages", "rewritten", "briefing"],
)
def test_observations_arrive_as_they_are(isolation: Isolation, show: Observation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        shown = await env.start(Task(ordinal=0, payload={"show": show}))
        assert shown == show
        assert type(shown) is type(show)
        await env.close()
        await here.close()

    run(body())


@everywhere
def test_steps_arrive_as_they_are(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        large = await said(env, "large")
        assert (large.observation, large.terminated) == ("ł" * (5 << 20), True)
        info = (await said(env, "info")).info
        assert info["board"].tolist() == np.eye(3).tolist()
        assert info["by"] is Echo
        assert (await said(env, "messages")).observation == [
            Message("tool", "42", name="calculator"),
            Message("user", "go on"),
        ]
        assert (await said(env, "rewrite")).observation == Rewritten((Message("user", "anew"),))
        nonsense: Any = await env.step("nonsense")
        assert nonsense == 17, "what it returns is judged by whoever plays it"
        await env.close()
        await here.close()

    run(body())


@everywhere
def test_the_deadline_is_the_same_inside(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        for when in (None, 17.5, asyncio.get_running_loop().time() + 5):
            DEADLINE.set(when)
            assert (await said(env, "deadline")).info == {"deadline": when}
        await env.close()
        await here.close()

    run(body())


@everywhere
def test_what_it_raises_is_told_and_it_can_still_be_closed(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        with pytest.raises((KeyError, EnvError), match="door"):
            await env.step("break door")
        await env.close()
        await here.close()

    run(body())


@everywhere
def test_what_closing_raises_is_told(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        await said(env, "say wait to close")
        with pytest.raises((RuntimeError, EnvError), match="the door is stuck"):
            await env.close()
        await here.close()

    run(body())


@everywhere
def test_episodes_at_the_same_time_do_not_disturb_each_other(isolation: Isolation, born: Born):
    async def episode(here: Place, number: int) -> None:
        env = here.make()
        assert await env.start(Task(ordinal=number)) == f"echo {number}"
        for turn in range(3):
            assert (await said(env, f"say {number} {turn}")).observation == f"{number} {turn}"
        await env.close()

    async def body() -> None:
        here = place(isolation, ahead=2)
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(episode(here, number))
        await here.close()

    run(body())
    assert born() == set()


@everywhere
def test_a_call_that_is_given_up_ends_and_so_does_the_environment(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await env.step("hang")
        await env.close()
        await here.close()

    run(body())


@apart
def test_one_that_blocks_holds_up_nobody(isolation: Isolation):
    """While it blocks, others have their turns: more of them than could be by chance."""

    async def count(turns: list[int]) -> None:
        while True:
            await asyncio.sleep(0.001)
            turns.append(1)

    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        turns: list[int] = []
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(count(turns))
            await env.step("block")
            counting.cancel()
        assert len(turns) > 5
        await env.close()
        await here.close()

    run(body())


@apart
def test_one_that_was_never_started_can_be_closed_but_not_played(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.close()
        with pytest.raises(EnvError, match="not started"):
            await env.step("say x")
        await here.close()

    run(body())


@apart
def test_closing_twice_is_closing_once(isolation: Isolation):
    async def body() -> None:
        here = place(isolation)
        env = here.make()
        await env.start(Task(ordinal=0))
        await env.close()
        await env.close()
        await here.close()

    run(body())


@apart
def test_virtual_time_is_refused(isolation: Isolation):
    async def body() -> None:
        with pytest.raises(ConfigError, match="environment 'echo' can only be isolated on the real clock"):
            place(isolation)

    virtual_time.run(body())


def test_a_shipped_environment_plays_in_a_process():
    async def body() -> None:
        here = open_place(GuessEnv, PlaceSettings(name="guess", isolation="process"))
        env = here.make()
        await env.start(Task(ordinal=0, seed=3))
        steps = [await env.step(str(number)) for number in range(4)]
        assert steps[-1].terminated
        await env.close()
        await here.close()

    run(body())


def test_a_process_is_used_once_unless_it_may_be_used_again():
    async def pids(*, reusable: bool) -> set[int]:
        here = place("process", reusable=reusable)
        found = set()
        for _ in range(3):
            env = here.make()
            await env.start(Task(ordinal=0))
            found.add((await said(env, "pid")).info["pid"])
            assert (await said(env, "say x")).reward == 3.0, "each episode has an object of its own"
            await env.close()
        await here.close()
        return found

    async def body() -> None:
        assert len(await pids(reusable=False)) == 3
        assert len(await pids(reusable=True)) == 1

    run(body())


def test_the_process_ends_when_its_environment_is_closed():
    async def body() -> None:
        here = place("process")
        env = here.make()
        await env.start(Task(ordinal=0))
        pid = (await said(env, "pid")).info["pid"]
        await env.close()
        await eventually(lambda: not is_alive(pid))
        await here.close()

    run(body())


def test_a_crash_is_one_episode_and_says_how():
    async def body() -> None:
        here = place("process")
        good, bad = here.make(), here.make()
        await good.start(Task(ordinal=1))
        await bad.start(Task(ordinal=2))
        with pytest.raises(EnvError, match="environment 'echo' step: its process ended with exit code 3"):
            await bad.step("exit")
        await bad.close()
        assert (await said(good, "say x")).observation == "x"
        await good.close()
        await here.close()

    run(body())


def test_a_place_opened_before_there_is_a_loop_gets_ready_when_it_is_used():
    here = place("process")

    async def body() -> None:
        env = here.make()
        assert await env.start(Task(ordinal=5)) == "echo 5"
        await env.close()
        await here.close()

    run(body())


def test_an_environment_that_cannot_be_sent_is_refused_when_the_place_is_opened():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="environment 'echo' cannot be sent to a process of its own"):
        place("process", lambda: Echo(str(lock)))


@pytest.mark.parametrize(("setting", "value"), [("ahead", -1), ("memory_mb", 0), ("isolation", "elsewhere")])
def test_settings_that_cannot_work_are_refused(setting: str, value: object):
    settings: Any = {"name": "echo", "isolation": "process"} | {setting: value}
    with pytest.raises(ConfigError, match=f"environment 'echo'.*{setting}"):
        open_place(Echo, PlaceSettings(**settings))


@pytest.mark.parametrize("steps", range(0, 30, 6))
def test_an_episode_cancelled_at_any_moment_leaves_nothing(steps: int, born: Born):
    async def episode(here: Place) -> None:
        env = here.make()
        try:
            await env.start(Task(ordinal=0))
            await env.step("say x")
        finally:
            await env.close()

    async def body() -> None:
        here = place("process", ahead=1)
        await episode(here)
        before = open_files()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(episode(here))
            for _ in range(steps):
                await asyncio.sleep(0.0003)
            task.cancel()
        await episode(here)
        await eventually(lambda: open_files() <= before + 1)
        await here.close()
        assert born() == set()

    run(body())


def test_many_episodes_of_which_some_crash_hang_or_eat(born: Born):
    async def body() -> None:
        here = open_place(Mixed, PlaceSettings(name="mixed", isolation="process", memory_mb=48))
        report = await play_all(here, 200, hang_s=1.0)
        assert report.wrong == []
        assert report.counts == {"ok": 176, "crash": 10, "hang": 10, "memory": 4}
        await here.close()

    run(body())
    assert born() == set()


def test_ctrl_c_does_not_reach_the_process():
    """A terminal interrupts its whole foreground group; environments are not part of ours."""

    async def body() -> None:
        here = place("process")
        env = here.make()
        await env.start(Task(ordinal=0))
        pid = (await said(env, "pid")).info["pid"]
        assert os.getpgid(pid) not in {os.getpgid(0), os.getpgid(os.getppid())}
        assert os.getsid(pid) != os.getsid(0)
        await env.close()
        await here.close()

    run(body())
