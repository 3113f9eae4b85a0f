"""Adapted environments play the same wherever they live."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.envs.adapters.playing import Played, play

from windrow.envs.agents import Policy, agent
from windrow.envs.gem import gem_env
from windrow.envs.guess_tools import GuessToolsEnv
from windrow.envs.gym import gymnasium_env
from windrow.envs.places import PlaceSettings, open_place
from windrow.envs.plain import plain
from windrow.envs.protocol import EnvFactory, Isolation
from windrow.envs.tools import mcp_stdio, with_tools, write_call
from windrow.trajectory import Task


class Sum:
    def __init__(self, most: int) -> None:
        self.most = most

    def reset(self, seed: int) -> str:
        return f"{seed % self.most} + 1?"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "", float(action == "4"), True


async def chatting(task: Task, policy: Policy) -> float:
    first = await policy("go")
    second = await policy.chat([*policy.history, {"role": "user", "content": "on"}])
    return len(first + second)


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


SMALL = mcp_stdio(sys.executable, [str(Path(__file__).with_name("mcp_small.py"))])
KINDS: dict[str, tuple[EnvFactory, list[str]]] = {
    "plain": (plain(Sum, most=7), ["4"]),
    "agent": (agent(chatting), ["a", "bc"]),
    "gymnasium": (gymnasium_env("FrozenLake-v1", actions=["left", "down", "right", "up"]), ["down"] * 5),
    "gem": (gem_env("game:Minesweeper-v0-easy"), ["\\boxed{reveal 1 1}", "\\boxed{reveal 3 3}"]),
    "guess_tools": (GuessToolsEnv, [write_call("compare", number=500), write_call("submit", number=3)]),
    "tools": (
        with_tools(plain(Sum, most=7), [double, SMALL]),
        [write_call("double", number=2), write_call("count"), "4"],
    ),
}


def played(make: EnvFactory, actions: list[str], isolation: Isolation) -> Played:
    async def at_its_place() -> Played:
        place = open_place(make, PlaceSettings(name="adapted", isolation=isolation, ahead=1))
        try:
            return await play(place.make, actions)
        finally:
            await place.close()

    return asyncio.run(at_its_place())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_it_plays_the_same_wherever_it_lives(kind: str, isolation: Isolation):
    make, actions = KINDS[kind]
    assert played(make, actions, isolation) == played(make, actions, "inline")
