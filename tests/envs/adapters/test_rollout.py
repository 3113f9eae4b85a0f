"""Adapted environments on the whole rollout path: what becomes of them in trajectories."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.rollout.kit import Rig, played

from windrow.envs.agents import Policy, agent
from windrow.envs.guess import GuessEnv
from windrow.envs.plain import plain
from windrow.envs.protocol import EnvFactory, Step
from windrow.envs.tools import with_tools, write_call
from windrow.text import ByteCodec, Message
from windrow.trajectory import Chain, Task, Trajectory


async def one(make: EnvFactory, says: str) -> Trajectory:
    """One trajectory of a policy that always says the same."""
    rig = Rig(
        env=lambda _: make(),
        script=lambda _: [*says.encode(), ByteCodec.END],
        tasks=1,
        group_size=1,
        keep=True,
        config={"rollout_batch_size": 1},
    )
    await rig.full(0, 1)
    (kept,) = rig.kept.values()
    return kept


def text(chain: Chain) -> str:
    return ByteCodec().decode(chain.token_ids)


class Twice:
    turn = 0

    def reset(self, task: Task) -> str:
        return f"task {task.ordinal}"

    def step(self, action: str) -> tuple[str, float, bool]:
        self.turn += 1
        return f"turn {self.turn}", 0.5, self.turn == 2


@played
async def test_a_plain_class():
    kept = await one(plain(Twice), "go")
    assert (kept.score, kept.ending, text(kept.chains[0])) == (1.0, "terminated", "task 0\ngoturn 1\ngo")


@played
async def test_an_agent_that_adds_to_its_conversation_has_one_chain():
    async def rollout(task: Task, policy: Policy) -> Step:
        talk: list[Any] = [{"role": "user", "content": "begin"}]
        for _ in range(2):
            talk.append({"role": "assistant", "content": await policy.chat(talk)})
            talk.append({"role": "user", "content": "on"})
        await policy.chat(talk)
        return Step(reward=0.25, info={"talk": len(talk)})

    kept = await one(agent(rollout), "go")
    assert [text(chain) for chain in kept.chains] == ["begin\ngoon\ngoon\ngo"]
    assert (kept.score, kept.ending, kept.info) == (0.25, "terminated", {"talk": 5})


@played
async def test_an_agent_that_changes_its_conversation_has_another_chain():
    async def rollout(task: Task, policy: Policy) -> float:
        await policy.chat([Message("user", "begin")])
        await policy.chat([Message("user", "in short")])
        return 1.0

    kept = await one(agent(rollout), "go")
    assert [text(chain) for chain in kept.chains] == ["begin\ngo", "in short\ngo"]


def look(at: int) -> str:
    """Look at something."""
    return f"seen {at}"


@played
async def test_tools_are_in_the_prompt_and_their_answers_in_the_chain():
    call = write_call("look", at=3)
    kept = await one(with_tools(agent(asking(2)), [look], max_calls=1), call)
    begun, _, rest = text(kept.chains[0]).partition(call)
    assert '"description": "Look at something."' in begun
    assert rest.startswith("seen 3\n")
    assert "error: no calls left of 1; answer without a tool\n" in rest


def asking(times: int) -> Callable[..., Any]:
    async def rollout(task: Task, policy: Policy) -> float:
        for _ in range(times):
            await policy("go on")
        return 1.0

    return rollout


@pytest.mark.parametrize("says", ["0", "what?"])
@played
async def test_an_environment_behind_tools_is_played_as_without_them(says: str):
    bare, tooled = await one(GuessEnv, says), await one(with_tools(GuessEnv, [look]), says)
    assert (bare.score, bare.ending, len(bare.turns)) == (tooled.score, tooled.ending, len(tooled.turns))
