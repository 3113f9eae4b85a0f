"""Agents that keep their own loop, as environments."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.envs.adapters.playing import error_of, play

from windrow.envs.agents import AgentEnv, Policy, agent
from windrow.envs.protocol import DEADLINE, Briefing, Rewritten, Step, deadline
from windrow.errors import ConfigError, EnvError
from windrow.rollout.virtual_time import run
from windrow.text import Message
from windrow.trajectory import Task

TASK = Task(ordinal=0, seed=3)
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}


def user(text: str) -> Message:
    return Message("user", text)


def said(text: str) -> Message:
    return Message("assistant", text)


async def twice(task: Task, policy: Policy) -> float:
    first = await policy(f"seed {task.seed}")
    second = await policy(f"you said {first}")
    return len(first) + len(second)


def test_a_function_is_played_turn_by_turn():
    played = asyncio.run(play(agent(twice), ["a", "bc"]))
    assert played.first == "seed 3"
    assert played.steps == (Step(observation="you said a"), Step(reward=3.0, terminated=True))


def test_each_episode_is_a_run_of_its_own():
    make = agent(twice)

    async def two() -> list[float]:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(play(make, [word, word])) for word in ("a", "bcd")]
        return [each.result().score for each in both]

    assert asyncio.run(two()) == [2.0, 6.0]


def test_it_travels_to_another_process_with_its_arguments():
    async def shout(task: Task, policy: Policy, *, word: str) -> float:
        return float(await policy(word) == word)

    make = cloudpickle.loads(cloudpickle.dumps(agent(shout, word="hey")))
    played = asyncio.run(play(make, ["hey"]))
    assert (played.first, played.score) == ("hey", 1.0)


RETURNED = {
    "a number": (0.5, Step(reward=0.5, terminated=True)),
    "right": (True, Step(reward=1.0, terminated=True)),
    "one of numpy's": (np.float32(0.25), Step(reward=0.25, terminated=True)),
    "a step with info": (Step(reward=1.0, info={"a": 1}), Step(reward=1.0, terminated=True, info={"a": 1})),
    "a step that was cut off": (Step(truncated=True), Step(truncated=True)),
}


@pytest.mark.parametrize(("returned", "expected"), RETURNED.values(), ids=RETURNED)
def test_what_it_returns_ends_the_episode(returned: object, expected: Step):
    async def once(task: Task, policy: Policy) -> object:
        await policy("go")
        return returned

    (step,) = asyncio.run(play(agent(once), ["on"])).steps
    assert step == expected


# mistakes


async def silent(task: Task, policy: Policy) -> float:
    return 0.5


async def forgetful(task: Task, policy: Policy) -> None:
    await policy("go")


async def raising(task: Task, policy: Policy) -> float:
    await policy("go")
    raise KeyError("door")


async def leaving(task: Task, policy: Policy) -> float:
    await policy("go")
    sys.exit(3)


async def double(task: Task, policy: Policy) -> float:
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(policy(word)) for word in ("a", "b")]
    return len(both)


async def stubborn_double(task: Task, policy: Policy) -> float:
    async with asyncio.TaskGroup() as group:
        group.create_task(policy("a"))
        group.create_task(error_of(policy("b")))
    return 1.0


async def ending_itself(task: Task, policy: Policy) -> float:
    await policy("go")
    raise asyncio.CancelledError


async def blind(task: Task, policy: Policy) -> float:
    await policy(None)  # type: ignore[arg-type]
    return 1.0


async def late_tools(task: Task, policy: Policy) -> float:
    await policy("go")
    await policy(Briefing((user("tools"),), (TOOL,)))
    return 1.0


async def nothing_new(task: Task, policy: Policy) -> float:
    reply = await policy.chat([user("go")])
    await policy.chat([user("go"), said(reply)])
    return 1.0


async def other_tools(task: Task, policy: Policy) -> float:
    reply = await policy.chat([user("go")], [TOOL])
    await policy.chat([user("go"), said(reply), user("on")], [TOOL, TOOL])
    return 1.0


async def odd_message(task: Task, policy: Policy) -> float:
    await policy.chat([{"role": "user", "content": [{"type": "text"}]}])
    return 1.0


async def foreign_message(task: Task, policy: Policy) -> float:
    await policy.chat([{"role": "assistant", "content": "", "tool_calls": [1]}])
    return 1.0


def hasty(task: Task, policy: Policy) -> float:
    return 0.5


MISTAKES: dict[Callable[..., Any], str] = {
    silent: "EnvError: silent returned 0.5 without asking the policy; await policy(…) in it",
    forgetful: "EnvError: forgetful returned None as its reward; return a number",
    raising: "KeyError: 'door'",
    leaving: "EnvError: leaving called sys.exit(3)",
    double: "EnvError: double asked the policy again before it had answered; await each answer",
    stubborn_double: "EnvError: stubborn_double asked the policy again before it had answered; await each answer",
    ending_itself: "EnvError: ending_itself was cancelled from inside",
    blind: "EnvError: policy.call shows None; show text",
    late_tools: "EnvError: the policy was offered tools after it had begun; offer them in the first observation",
    nothing_new: "EnvError: policy.chat was asked with nothing new; add a message",
    other_tools: "EnvError: policy.chat was given other tools than at first; they stay the same for an episode",
    odd_message: "EnvError: policy.chat got {'role': 'user', 'content': [{'type': 'text'}]}; a message has a role",
    foreign_message: "EnvError: policy.chat got a message with 'tool_calls'; only role, content and name are known",
    hasty: "EnvError: hasty returned 0.5 at once; write it as `async def`",
}


@pytest.mark.parametrize("rollout", MISTAKES, ids=lambda rollout: rollout.__name__)
def test_a_mistake_is_the_environments_fault_and_leaves_no_task(rollout: Callable[..., Any]):
    assert run(alone(error_of(play(agent(rollout), ["on", "on", "on"])))).startswith(MISTAKES[rollout])


async def alone(work: Coroutine[Any, Any, str]) -> str:
    """What the work gives; no task may outlive it, and nothing may be complained about."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(str(what)))
    gc.freeze()  # what was there before, torch for one, need not be looked through again and again
    try:
        result = await work
        await asyncio.sleep(0)
        gc.collect()
    finally:
        gc.unfreeze()
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert complaints == []
    return result


@pytest.mark.parametrize("thing", [3, "twice", lambda task, policy: (yield 1)])
def test_what_can_never_be_one_is_refused_when_it_is_named(thing: Any):
    with pytest.raises(ConfigError, match=r"needs an `async def rollout\(task, policy\)` that returns its reward"):
        agent(thing)


def test_an_object_that_can_be_called_and_a_partial_have_names():
    class Judge:
        async def __call__(self, task: Task, policy: Policy) -> float:
            return 1.0

    assert "Judge returned 1" in asyncio.run(error_of(play(agent(Judge()), [])))
    assert "silent returned 0.5" in asyncio.run(error_of(play(agent(partial(partial(silent))), [])))


def test_a_step_without_a_question_is_refused():
    env = agent(twice)()
    assert "has not asked anything" in asyncio.run(error_of(env.step("on")))


def test_asking_after_the_end_is_refused():
    late: list[str] = []

    async def trailing(task: Task, policy: Policy) -> float:
        await policy("go")
        asyncio.get_running_loop().call_soon(lambda: waiting.append(policy))
        return 1.0

    waiting: list[Policy] = []

    async def body() -> None:
        await play(agent(trailing), ["on"])
        await asyncio.sleep(0)
        late.append(await error_of(waiting[0]("more?")))

    asyncio.run(body())
    assert late == [
        "EnvError: test_asking_after_the_end_is_refused.<locals>.trailing asked the policy after its episode was over"
    ]


def test_asking_from_another_event_loop_is_refused():
    async def astray(task: Task, policy: Policy) -> float:
        await asyncio.to_thread(lambda: asyncio.run(policy("go")))
        return 1.0

    assert "asked the policy on another event loop than its own" in asyncio.run(error_of(play(agent(astray), [])))


# ending early


def test_closing_in_the_middle_ends_the_function_and_its_own_cleaning_up_is_waited_for():
    done: list[str] = []

    async def careful(task: Task, policy: Policy) -> float:
        try:
            await policy("go")
        finally:
            await asyncio.sleep(1)
            done.append("clean")
        return 1.0

    async def body() -> str:
        env = agent(careful)()
        await env.start(TASK)
        await env.close()
        await env.close()
        return ""

    run(alone(body()))
    assert done == ["clean"]


def test_a_step_that_is_cancelled_ends_the_function_even_if_nobody_closes_it():
    async def slow(task: Task, policy: Policy) -> float:
        await policy("go")
        await asyncio.sleep(3600)
        return 1.0

    async def body() -> str:
        env = agent(slow)()
        await env.start(TASK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await env.step("on")
        return ""

    run(alone(body()))


def test_a_start_that_is_cancelled_ends_the_function():
    async def slow(task: Task, policy: Policy) -> float:
        await asyncio.sleep(3600)
        return 1.0

    async def body() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await agent(slow)().start(TASK)
        return ""

    run(alone(body()))


def test_a_function_that_swallows_its_cancellation_is_not_waited_for_for_ever():
    enough = asyncio.Event()

    async def deaf(task: Task, policy: Policy) -> float:
        await policy("go")
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    async def body() -> str:
        env = agent(deaf)()
        await env.start(TASK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await env.step("on")
        with pytest.raises(EnvError, match="goes on although it was cancelled; let CancelledError pass in it"):
            await env.close()
        enough.set()
        return ""

    run(alone(body()))


def test_a_function_that_asks_again_whatever_happens_ends_when_it_is_closed():
    async def insisting(task: Task, policy: Policy) -> float:
        while True:
            try:
                await policy("go")
            except asyncio.CancelledError:
                continue

    async def body() -> str:
        env = agent(insisting)()
        await env.start(TASK)
        with pytest.raises(EnvError, match="asked the policy after its episode was over"):
            await env.close()
        return ""

    run(alone(body()))


def test_a_question_that_the_function_gives_up_is_answered_by_what_it_does_next():
    async def impatient(task: Task, policy: Policy) -> float:
        try:
            async with asyncio.timeout(1):
                await policy("quick!")
        except TimeoutError:
            return -1.0
        return 1.0

    async def body() -> str:
        env = agent(impatient)()
        await env.start(TASK)
        await asyncio.sleep(2)
        assert await env.step("too late") == Step(reward=-1.0, terminated=True)
        await env.close()
        return ""

    run(alone(body()))


def test_the_function_sees_the_deadline_of_the_call_it_works_for():
    seen: list[float | None] = []

    async def looking(task: Task, policy: Policy) -> float:
        seen.append(deadline())
        await policy("go")
        seen.append(deadline())
        return 1.0

    async def body() -> None:
        env = agent(looking)()
        for call, by in ((lambda: env.start(TASK), 10.0), (lambda: env.step("on"), 20.0)):
            DEADLINE.set(by)
            await call()
        await env.close()

    asyncio.run(body())
    assert seen == [10.0, 20.0]


# chat


def shown_by(rollout: Callable[[Task, Policy], Coroutine[Any, Any, float]], *answers: str) -> list[object]:
    played = run(play(agent(rollout), answers))
    return [played.first, *(step.observation for step in played.steps if not step.terminated)]


def test_a_conversation_that_grew_adds_only_what_is_new():
    async def chatting(task: Task, policy: Policy) -> float:
        talk: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
        for _ in range(2):
            talk.append({"role": "assistant", "content": await policy.chat(talk), "name": None})
            talk.append(Message("tool", "42", "look"))
        await policy.chat(talk)
        return 1.0

    assert shown_by(chatting, "a", "b", "c") == [
        (Message("system", "be brief"), user("go")),
        (Message("tool", "42", "look"),),
        (Message("tool", "42", "look"),),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        [user("go"), said("A"), user("on")],
        [user("went"), said("a"), user("on")],
        [user("go")],
        [user("summary")],
        [user("go"), said("a "), user("on")],
    ],
)
def test_a_conversation_that_was_changed_replaces_the_history(changed: list[Message]):
    async def rewriting(task: Task, policy: Policy) -> float:
        await policy.chat([user("go")])
        again = await policy.chat(changed)
        await policy.chat([*changed, said(again), user("more")])
        return 1.0

    assert shown_by(rewriting, "a", "b", "c") == [(user("go"),), Rewritten(tuple(changed)), (user("more"),)]


def test_calls_and_chats_share_one_history():
    async def both(task: Task, policy: Policy) -> float:
        first = await policy("go")
        second = await policy.chat([user("go"), said(first), user("on")])
        await policy(Rewritten((user("again"),)))
        assert policy.history == (user("again"), said("c"))
        await policy.chat([*policy.history, user("more")])
        return float(second == "b")

    assert shown_by(both, "a", "b", "c", "d") == [
        "go",
        (user("on"),),
        Rewritten((user("again"),)),
        (user("more"),),
    ]


def test_tools_are_offered_with_the_first_chat_and_stay():
    async def calling(task: Task, policy: Policy) -> float:
        first = await policy.chat([user("go")], [TOOL])
        await policy.chat([user("go"), said(first), user("on")], [TOOL])
        return 1.0

    assert shown_by(calling, "a", "b") == [Briefing((user("go"),), (TOOL,)), (user("on"),)]


def test_cancelling_at_any_moment_leaves_nothing_running():
    """The whole play is cut off after one more step of the event loop each time, until it comes to its end."""

    async def working(task: Task, policy: Policy) -> float:
        for turn in range(3):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            await policy(f"turn {turn}")
            await asyncio.sleep(0)
        return 1.0

    async def cut(after: int) -> bool:
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(play(agent(working), ["on"] * 3))
            for _ in range(after):
                await asyncio.sleep(0)
            playing.cancel()
        return not playing.cancelled()

    async def body(after: int) -> str:
        return "whole" if await cut(after) else "cut"

    results = [run(alone(body(after))) for after in range(60)]
    assert results[0] == "cut"
    assert results[-1] == "whole"


def test_the_environment_of_a_function_can_be_named_in_types():
    assert isinstance(agent(twice)(), AgentEnv)
