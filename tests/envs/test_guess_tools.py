"""The hidden number that only tools can find."""

import asyncio
import pickle
from random import Random
from typing import Any

import pytest

from windrow.envs.guess_tools import GuessToolsEnv
from windrow.envs.protocol import Briefing, Step
from windrow.envs.shipped import describe, find
from windrow.envs.tools import write_call
from windrow.errors import ConfigError, EnvError
from windrow.text import Message
from windrow.trajectory import Split, Task

TASK = Task(ordinal=0, seed=11)


def scores(seeds: range, split: Split = "held_out", rng: Random | None = None) -> list[float]:
    async def score(seed: int) -> float:
        env = GuessToolsEnv()
        await env.start(Task(ordinal=seed, seed=seed, split=split))
        total, step = 0.0, Step()
        while not step.terminated:
            step = await env.step(env.solve() if rng is None else env.wander(rng))
            total += step.reward
        return total

    async def all_of_them() -> list[float]:
        return [await score(seed) for seed in seeds]

    return asyncio.run(all_of_them())


def test_it_solves_a_thousand_held_out_tasks_with_full_marks():
    assert scores(range(1_000)) == [1.0] * 1_000


def test_any_size_of_range_can_be_solved_within_its_budget():
    """The budget is tight, so every size and every place of the number in it counts."""

    async def solved(size: int, seed: int) -> float:
        env = GuessToolsEnv(size, size)
        await env.start(Task(ordinal=0, seed=seed))
        step = Step()
        while not step.terminated:
            step = await env.step(env.solve())
        return step.reward

    async def all_sizes() -> list[float]:
        return [await solved(size, seed) for size in (*range(2, 20), 31, 32, 33, 63, 64) for seed in range(20)]

    assert set(asyncio.run(all_sizes())) == {1.0}


def test_chance_rarely_finds_it():
    found = scores(range(1_000), rng=Random(5))
    assert set(found) == {0.0, 1.0}
    assert 0.005 < sum(found) / len(found) < 0.2


def test_the_parts_share_no_problem_and_have_thousands():
    async def problems(split: Split) -> set[str]:
        found = set()
        for seed in range(1_500):
            env = GuessToolsEnv()
            await env.start(Task(ordinal=0, seed=seed, split=split))
            found.add((await env.step("")).info["problem"])
        return found

    train, held_out = asyncio.run(problems("train")), asyncio.run(problems("held_out"))
    assert len(train) > 1_490
    assert len(held_out) > 1_490
    assert not train & held_out


def begun(seed: int = TASK.seed) -> tuple[GuessToolsEnv, Briefing]:
    env = GuessToolsEnv(8, 8)
    first = asyncio.run(env.start(Task(ordinal=0, seed=seed)))
    assert isinstance(first, Briefing)
    return env, first


def test_it_begins_with_the_range_the_budget_and_the_tools():
    env, first = begun()
    low, high = env._problem.low, env._problem.high
    assert first.messages[0].content == (
        f"there is a hidden number from {low} to {high}. find it with the tools; "
        f"you have 4 calls, the one that submits it included."
    )
    assert [tool["function"]["name"] for tool in first.tools] == ["compare", "submit"]
    assert first.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "what to compare it with"}},
        "required": ["number"],
    }


@pytest.mark.parametrize(("offset", "said"), [(-1, "higher than"), (0, "equal to"), (1, "lower than")])
def test_a_comparison_tells_where_the_number_is(offset: int, said: str):
    env, _ = begun()
    number = env._problem.secret + offset
    step = asyncio.run(env.step(write_call("compare", number=number)))
    assert step.observation == (Message("tool", f"{said} {number}", "compare"),)
    assert (step.reward, step.terminated) == (0.0, False)


@pytest.mark.parametrize(("offset", "said", "reward"), [(0, "right", 1.0), (1, "wrong", 0.0)])
def test_submitting_ends_it(offset: int, said: str, reward: float):
    env, _ = begun()
    step = asyncio.run(env.step(write_call("submit", number=env._problem.secret + offset)))
    assert step.observation == (Message("tool", said, "submit"),)
    assert (step.reward, step.terminated) == (reward, True)


NO_CALLS = {
    "": "error: this calls no tool; call compare or submit",
    "it is 7": "error: this calls no tool; call compare or submit",
    "9" * 5_000: "error: this calls no tool; call compare or submit",
    "<tool_call>{}</tool_call>": 'error: a call is an object with "name" and "arguments"',
    write_call("comprae", number=3): "error: there is no tool 'comprae'; did you mean compare?",
    write_call("compare"): "error: compare cannot be called like that: it needs the argument number",
    write_call("compare", number="x"): "error: compare cannot be called like that: expected int, got str for number",
    write_call("compare", nmber=3): "error: compare has no argument 'nmber'; did you mean number?",
}


@pytest.mark.parametrize("action", NO_CALLS, ids=range(len(NO_CALLS)))
def test_what_is_no_proper_call_is_told_and_costs_one(action: str):
    env, _ = begun()
    steps = [asyncio.run(env.step(action)) for _ in range(4)]
    first = steps[0].observation
    assert isinstance(first, tuple)
    assert first[0].content == NO_CALLS[action]
    assert [step.terminated for step in steps] == [False, False, False, True]
    assert sum(step.reward for step in steps) == 0


def test_several_calls_in_one_message_are_answered_in_order_and_cost_one_each():
    env, _ = begun()
    low = env._problem.low
    step = asyncio.run(env.step("".join(write_call("compare", number=low - each) for each in (1, 2, 3, 4, 5))))
    assert step.observation == tuple(Message("tool", f"higher than {low - each}", "compare") for each in (1, 2, 3, 4))
    assert step.terminated


def test_nothing_is_done_after_the_call_that_ends_it():
    env, _ = begun()
    wrong, right = env._problem.secret + 1, env._problem.secret
    step = asyncio.run(env.step(write_call("submit", number=wrong) + write_call("submit", number=right)))
    assert step.observation == (Message("tool", "wrong", "submit"),)
    assert (step.reward, step.terminated) == (0.0, True)


def test_it_is_shipped():
    assert find("guess_tools") is GuessToolsEnv
    assert (describe("guess_tools").kind, describe("guess_tools").tag) == ("tools", "guess_tools")
    pickle.dumps(find("guess_tools", largest=16))


@pytest.mark.parametrize(("smallest", "largest"), [(1, 8), (9, 8)])
def test_a_range_that_holds_nothing_to_find_is_refused(smallest: int, largest: int):
    with pytest.raises(ConfigError, match=r"guess_tools needs 2 <= smallest <= largest, got"):
        GuessToolsEnv(smallest, largest)


@pytest.mark.parametrize("odd", ["x", 8.5, None])
def test_a_size_is_a_whole_number(odd: Any):
    with pytest.raises(ConfigError, match=r"guess_tools.largest must be an integer, got"):
        GuessToolsEnv(largest=odd)


@pytest.mark.parametrize("action", ["nothing", "submit"])
def test_it_is_played_once_from_its_start_to_its_end(action: str):
    env = GuessToolsEnv(8, 8)
    with pytest.raises(EnvError, match="guess_tools has not been started"):
        asyncio.run(env.step(""))
    asyncio.run(env.start(TASK))
    right = write_call("submit", number=env._problem.secret)
    while not asyncio.run(env.step(right if action == "submit" else "")).terminated:
        pass
    with pytest.raises(EnvError, match="guess_tools is over"):
        asyncio.run(env.step(right))
    with pytest.raises(EnvError, match="guess_tools was started twice"):
        asyncio.run(env.start(TASK))
