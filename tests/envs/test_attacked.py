"""What a policy or a careless caller may do to environments, and what must not come of it."""

import asyncio
from collections.abc import Callable

import pytest
from tests.envs.adapters.playing import play

from windrow.envs.guess import GuessEnv
from windrow.envs.guess_tools import GuessToolsEnv
from windrow.envs.plain import plain
from windrow.envs.protocol import Briefing, Env, EnvFactory
from windrow.envs.shipped import SHIPPED, find
from windrow.envs.tools.calls import find_calls, write_call
from windrow.envs.tools.offering import with_tools
from windrow.errors import ConfigError, EnvError
from windrow.text import Message
from windrow.trajectory import Task

TASK = Task(ordinal=0, seed=3)


class Quiz:
    """One question."""

    def reset(self) -> str:
        return "what?"

    def step(self, action: str) -> tuple[str, float, bool]:
        return action, 1.0, True


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def halve(number: int) -> int:
    """Halve a number."""
    return number // 2


# the end is the end


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_environment_is_not_played_before_its_start_nor_after_its_end(name: str):
    async def body() -> None:
        env = find(name)()
        with pytest.raises(EnvError):
            await env.step("5")
        env = find(name)()
        await env.start(TASK)
        over = False
        while not over:
            step = await env.step(env.solve())  # type: ignore[attr-defined]
            over = step.terminated or step.truncated
        with pytest.raises(EnvError):
            await env.step("5")
        await env.close()

    asyncio.run(body())


@pytest.mark.parametrize("turns", [0, -3, "x", 2.5])
def test_a_game_needs_a_number_of_turns(turns: object):
    make: Callable[..., Env] = GuessEnv
    with pytest.raises(ConfigError, match="turns"):
        make(turns=turns)


# tools beside tools


@pytest.mark.parametrize("make", [GuessToolsEnv, with_tools(plain(Quiz), [halve])], ids=["its own", "others"])
def test_tools_that_an_environment_offers_itself_can_still_be_called(make: EnvFactory):
    name = "compare" if make is GuessToolsEnv else "halve"
    played = asyncio.run(play(with_tools(make, [double]), [write_call(name, number=4), write_call("double", number=4)]))
    assert isinstance(played.first, Briefing)
    offered = [tool["function"]["name"] for tool in played.first.tools]
    assert {name, "double"} <= set(offered)
    said = [message.content for shown in played.shown for message in messages(shown)]
    assert len(said) == 2
    assert "no tool" not in said[0]
    assert said[1] == "8"


def messages(shown: object) -> list[Message]:
    assert isinstance(shown, tuple | list)
    return [*shown]


def test_two_tools_of_one_name_are_refused_wherever_they_come_from():
    make = with_tools(with_tools(plain(Quiz), [double]), [double])
    with pytest.raises(ConfigError, match="two tools are called double"):
        asyncio.run(play(make, []))


@pytest.mark.parametrize("said", ["<tool_call>what</tool_call>" * 50, write_call("double", number=1) * 50])
def test_what_is_no_call_that_counts_is_not_paid_for(said: str):
    make = with_tools(plain(Quiz), [double], max_calls=2, reward_per_call=0.1)
    assert asyncio.run(play(make, [said])).score <= 0.2 + 1e-9


def test_an_answer_in_json_is_no_call_because_of_the_words_in_it():
    assert find_calls('{"answer": {"name": "Bob", "arguments": "none"}}') == []
