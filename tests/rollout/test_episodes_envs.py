"""What an episode owes its environment: tools, deadlines, limits; and what it keeps of what was said."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, played
from tests.rollout.toys import Breaking, Echo, EnvLog, Slow

from windrow.envs.protocol import Briefing, Observation, Step, deadline
from windrow.errors import ConfigError, Refused
from windrow.rollout.config import EnvManagerConfig
from windrow.rollout.env_config import TagConfig
from windrow.sources.lists import ListSource
from windrow.text import ByteCodec, Message
from windrow.trajectory import Task, Trajectory

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Offering(Echo):
    """Begins with a tool on offer, and answers as that tool."""

    async def start(self, task: Task) -> Observation:
        await super().start(task)
        return Briefing((Message("user", "add 1 and 2"),), (ADD,))

    async def step(self, action: str) -> Any:
        step = await super().step(action)
        return Step(observation=Message("tool", "3", "add"), terminated=step.terminated)


@played
async def test_the_policy_is_offered_the_tools_of_a_briefing():
    rig = Rig(env=partial(Offering, turns=2), tasks=1, keep=True)
    await rig.full(n=2)
    trajectory = next(iter(rig.kept.values()))
    (chain,) = trajectory.chains
    shown = ByteCodec().decode(chain.token_ids[: trajectory.turns[0].begin])
    assert '"name": "add"' in shown
    assert shown.endswith("add 1 and 2\n")


@played
async def test_a_trajectory_keeps_what_was_shown_and_said_turn_by_turn():
    rig = Rig(env=partial(Offering, turns=2), tasks=1, keep=True)
    await rig.full(n=2)
    trajectory = next(iter(rig.kept.values()))
    first, second = trajectory.turns
    assert first.seen == (Message("user", "add 1 and 2"),)
    assert second.seen == (Message("tool", "3", "add"),)
    tokens = trajectory.chains[0].token_ids
    assert [turn.action for turn in trajectory.turns] == [
        ByteCodec().decode(tokens[turn.begin : turn.end]) for turn in trajectory.turns
    ]
    assert trajectory.answer == second.action


class Looking(Echo):
    """Notes by when it must answer."""

    seen: list[tuple[str, float | None, float]]

    def __init__(self, log: EnvLog, seen: list[tuple[str, float | None, float]], **echo: Any) -> None:
        super().__init__(log, **echo)
        self.seen = seen

    def look(self, what: str) -> None:
        self.seen.append((what, deadline(), asyncio.get_running_loop().time()))

    async def start(self, task: Task) -> Observation:
        self.look("start")
        return await super().start(task)

    async def step(self, action: str) -> Any:
        self.look("step")
        return await super().step(action)

    async def close(self) -> None:
        self.look("close")
        await super().close()


@played
async def test_each_call_sees_by_when_it_must_answer():
    seen: list[tuple[str, float | None, float]] = []
    times: dict[str, Any] = {"start_timeout_s": 7.0, "step_timeout_s": 5.0, "close_timeout_s": 3.0}
    rig = Rig(env=partial(Looking, seen=seen), tasks=1, group_size=1, **times)
    await rig.full(n=1)
    await rig.scheduler.shutdown()
    within = {what: due - now for what, due, now in seen if due is not None}
    assert within == pytest.approx({"start": 7.0, "step": 5.0, "close": 3.0})
    assert deadline() is None


@pytest.mark.parametrize(("slow", "says"), [({"start_s": 50.0}, "start 0"), ({"step_s": 50.0}, "step 0")])
def test_start_and_step_have_deadlines_of_their_own(slow: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture):
    @played
    async def body() -> None:
        times: dict[str, Any] = {"start_timeout_s": 20.0, "step_timeout_s": 30.0}
        rig = Rig(env=lambda log: Echo(log, **slow), tasks=1, group_size=1, config={"env_retries": 0}, **times)
        assert await rig.batch(n=-1) is None
        assert asyncio.get_running_loop().time() < 40.0
        assert says in caplog.text

    body()


@played
async def test_no_more_of_a_kind_play_at_once_than_allowed():
    """Sixteen slots and eight tasks, but three environments of this kind at a time."""
    most = 0

    class Counted(Slow):
        async def start(self, task: Task) -> Observation:
            nonlocal most
            most = max(most, len([env for env in self.log.open if isinstance(env, Counted)]))
            return await super().start(task)

    slow = partial(Counted, seconds=10.0, slow=frozenset(range(8)))
    rig = Rig(env=slow, tasks=8, max_at_once=3)
    await rig.full(n=16)
    assert most == 3


@played
async def test_the_limit_of_one_kind_does_not_hold_up_another():
    rig = Rig()
    tags = {
        "scarce": TagConfig(env=lambda: Slow(rig.log, seconds=50.0, slow=frozenset(range(99))), max_at_once=1),
        "plenty": TagConfig(env=lambda: Echo(rig.log)),
    }
    ended: dict[str, list[float]] = {}

    def note(group: list[Trajectory]) -> bool:
        ended.setdefault(group[0].task.tag, []).append(group[0].ended_at)
        return True

    other = rig.join("val", tags=tags, max_tasks=8, group_size=1, filter=note)
    await rig.full(n=-1, of=other)
    assert max(ended["plenty"]) < 50.0
    assert max(ended["scarce"]) > 200.0  # four, one after the other


class NoStart:
    def reset(self) -> str:
        return ""


class Ordinary(NoStart):
    def start(self, task: Task) -> str:
        return ""


class NeverClosed:
    async def start(self, task: Task) -> str:
        return ""

    async def step(self, action: str) -> Step:
        return Step()


class Sized(NeverClosed):
    def __init__(self, size: int) -> None:
        self.size = size

    async def close(self) -> None: ...


async def alone(task: Task, policy: Any) -> float:
    return 1.0


@played
async def test_an_endless_source_with_nothing_but_quarantined_tasks_ends_in_words():
    """Two tasks that always fail, again and again: fewer failures than the breaker looks at, and yet it opens."""
    source = ListSource((Task(ordinal=0, seed=seed) for seed in range(2)), passes=None)
    rig = Rig(config={"breaker_share": 0.5, "env_retries": 1, "retry_after_s": 0.0})
    val = rig.join("val", Breaking, tasks=source, group_size=1)
    with pytest.raises(Refused, match=r"64 of the last 64 attempts failed; the first: .*KeyError: 'the door'"):
        await rig.batch(n=4, of=val)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"env": NoStart}, r"NoStart has no start, so it is no environment; .*windrow.plain\(NoStart\)"),
        ({"env": "gues"}, "unknown environment 'gues'; did you mean guess"),
        (
            {"env": "guess", "env_args": {"size": 3}},
            "unknown argument 'size' of environment 'guess'; known are turns",
        ),
        ({"env": "sokoban", "env_args": {"size": 3}}, "sokoban"),
        ({"env": Ordinary}, "Ordinary.start is an ordinary function; write async def start"),
        ({"env": NeverClosed}, "NeverClosed has no close, so it is no environment; write async def close"),
        ({"env": Sized}, "Sized cannot be made with env_args {}: missing a required argument: 'size'"),
        ({"env": alone}, r"env is the function alone, which plays by itself; give windrow.agent\(alone\)"),
        ({"env": "nim.py:Nim"}, "nim.py: no such file"),
        ({"env": 3}, "env must be a name or something that makes an environment, got 3"),
        ({"tags": {"a": TagConfig()}, "step_timeout_s": 3.0}, "step_timeout_s stands beside tags"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_they_are_made(wrong: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        EnvManagerConfig(**wrong).kinds("train")


def test_arguments_go_to_the_class_of_the_environment():
    kinds = EnvManagerConfig(env="guess", env_args={"turns": 1}).kinds("train")
    step = asyncio.run(_one_step(kinds[""].make()))
    assert step.terminated


async def _one_step(env: Any) -> Step:
    await env.start(Task(ordinal=0, seed=1))
    step: Step = await env.step("no number")
    return step
