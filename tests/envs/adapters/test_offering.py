"""Tools beside any environment, up to the tokens that a model sees."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.envs.adapters.playing import error_of, play

from windrow.envs.guess import GuessEnv
from windrow.envs.plain import plain
from windrow.envs.protocol import Briefing, Env, Observation, Rewritten, Solvable, Step, Wanderable
from windrow.envs.tools import Call, as_tool, find_calls, with_tools, write_call
from windrow.errors import ConfigError, EnvError
from windrow.text import ByteCodec, ChatCodec, Message
from windrow.tiny import tiny_tokenizer
from windrow.trajectory import Task


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(why: str) -> str:
    """Raise something."""
    raise KeyError(why)


def give_up() -> str:
    """Blame the environment."""
    raise EnvError("the tool's own fault")


def long(length: int) -> str:
    """Say much."""
    return "x" * length


class Sums:
    """Asks for a sum, which must be said without a tool."""

    def __init__(self, first: Observation = "what is 2 + 3?") -> None:
        self.first = first
        self.asked = 0
        self.closed = False

    async def start(self, task: Task) -> Observation:
        return self.first

    async def step(self, action: str) -> Step:
        self.asked += 1
        return Step(observation=f"no. {self.asked}", reward=float(action == "5"), terminated=action == "5")

    async def close(self) -> None:
        self.closed = True


def answers(step: Step) -> list[str]:
    assert isinstance(step.observation, Sequence)
    return [message.content if isinstance(message, Message) else message for message in step.observation]


def test_calls_are_answered_by_tools_and_anything_else_by_the_environment():
    played = asyncio.run(play(with_tools(Sums, [add]), [write_call("add", a=2, b=3), "six", "5"]))
    assert played.first == Briefing((Message("user", "what is 2 + 3?"),), (as_tool(add).schema,))
    assert played.steps == (
        Step(observation=(Message("tool", "5", "add"),)),
        Step(observation="no. 1"),
        Step(observation="no. 2", reward=1.0, terminated=True),
    )


MESSAGE = Message("system", "add")
FIRST: list[tuple[Observation, tuple[Message, ...], int]] = [
    ("go", (Message("user", "go"),), 1),
    (MESSAGE, (MESSAGE,), 1),
    ([MESSAGE, MESSAGE], (MESSAGE, MESSAGE), 1),
    (Rewritten((MESSAGE,)), (MESSAGE,), 1),
    (Briefing((MESSAGE,), ({"type": "function"},)), (MESSAGE,), 2),
]


@pytest.mark.parametrize(("first", "messages", "tools"), FIRST)
def test_whatever_is_seen_first_is_briefed_with_the_tools(
    first: Observation, messages: tuple[Message, ...], tools: int
):
    seen = asyncio.run(play(with_tools(lambda: Sums(first), [add]), [])).first
    assert isinstance(seen, Briefing)
    assert (seen.messages, len(seen.tools)) == (messages, tools)


TOLD = {
    write_call("ad", a=1, b=2): "error: there is no tool 'ad'; did you mean add?",
    write_call("x" * 5_000): "error: there is no tool '" + "x" * 59 + "; known are add, fail, give_up, long",
    write_call("add", a=1): "error: add cannot be called like that: it needs the argument b",
    "<tool_call>add</tool_call>": "error: this is no call: JSON is malformed: invalid character (byte 0)",
    write_call("fail", why="door"): "error: fail: KeyError: 'door'",
    write_call("long", length=125): "x" * 120 + "… (5 characters more)",
    write_call("long", length=120): "x" * 120,
}


@pytest.mark.parametrize("action", TOLD, ids=range(len(TOLD)))
def test_a_policys_mistakes_are_told_to_it(action: str):
    (step,) = asyncio.run(play(with_tools(Sums, [add, fail, give_up, long], max_chars=120), [action])).steps
    assert answers(step) == [TOLD[action]]
    assert not step.terminated


def test_what_a_tool_raises_fails_the_episode_if_that_is_wanted():
    make = with_tools(Sums, [fail], on_error="raise")
    said = asyncio.run(error_of(play(make, [write_call("fail", why="door")])))
    assert said == "EnvError: tool fail: KeyError: 'door'"
    (step,) = asyncio.run(play(make, [write_call("fail")])).steps  # that is still the policy's mistake
    assert answers(step) == ["error: fail cannot be called like that: it needs the argument why"]


def test_an_error_of_the_environment_is_never_told_to_the_policy():
    said = asyncio.run(error_of(play(with_tools(Sums, [give_up]), [write_call("give_up")])))
    assert said == "EnvError: the tool's own fault"


def test_calls_beyond_the_budget_are_told_so():
    call = write_call("add", a=1, b=1)
    played = asyncio.run(play(with_tools(Sums, [add], max_calls=2), [call, call + call, "5"]))
    assert [answers(step) for step in played.steps[:2]] == [
        ["2"],
        ["2", "error: no calls left of 2; answer without a tool"],
    ]
    assert played.score == 1.0


def test_each_call_may_be_rewarded():
    call = write_call("add", a=1, b=1)
    played = asyncio.run(play(with_tools(Sums, [add], reward_per_call=-0.25), [call + call, "5"]))
    assert [step.reward for step in played.steps] == [-0.5, 1.0]


class Counter:
    """A plain class whose tools change it."""

    def reset(self) -> str:
        self.count = 0
        return "count to 2"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "use the tools", 0.0, False

    def up(self) -> str:
        """Count one more."""
        self.count += 1
        return str(self.count)

    def done(self) -> Step:
        """Say that it is done."""
        return Step(observation="over", reward=float(self.count == 2), terminated=True, info={"count": self.count})


def test_tools_can_use_the_state_of_a_plain_object_and_end_the_episode():
    make = with_tools(plain(Counter), lambda counter: [counter.up, counter.done])
    played = asyncio.run(play(make, [write_call("up"), write_call("up") + write_call("done") + write_call("up")]))
    assert [answers(step) for step in played.steps] == [["1"], ["2", "over"]]
    last = played.steps[-1]
    assert (last.reward, last.terminated, last.info) == (1.0, True, {"count": 2})


def test_tools_can_use_the_state_of_an_environment():
    def tools(env: Sums) -> list[Callable[..., Any]]:
        def asked() -> int:
            """How often it was asked."""
            return env.asked

        return [asked]

    played = asyncio.run(play(with_tools(Sums, tools), ["1", write_call("asked")]))
    assert answers(played.steps[-1]) == ["1"]


def test_a_step_of_a_tool_shows_text():
    def odd() -> Step:
        """Show a message."""
        return Step(observation=Message("user", "x"))

    said = asyncio.run(error_of(play(with_tools(Sums, [odd]), [write_call("odd")])))
    assert said.startswith("EnvError: tool odd shows Message(")


def test_another_way_of_calling_may_be_given():
    def by_at_sign(said: str) -> list[Call]:
        return [Call("add", {"a": 1, "b": int(word[1:])}) for word in said.split() if word.startswith("@")]

    (step,) = asyncio.run(play(with_tools(Sums, [add], parse=by_at_sign), ["so @4 and @5"])).steps
    assert answers(step) == ["5", "6"]


def test_the_environment_is_closed():
    made: list[Sums] = []

    def make() -> Env:
        made.append(Sums())
        return made[-1]

    asyncio.run(play(with_tools(make, [add]), []))
    assert made[0].closed


def test_skills_of_the_environment_pass_through():
    simple, guess = with_tools(Sums, [add])(), with_tools(GuessEnv, [add])()
    assert isinstance(guess, Solvable)
    assert not isinstance(simple, Solvable)
    assert not isinstance(simple, Wanderable)

    class Roaming(Sums):
        def wander(self, rng: Random) -> str:
            return "about"

    assert isinstance(with_tools(Roaming, [add])(), Wanderable)


def test_what_is_no_tool_is_refused_when_it_is_offered():
    with pytest.raises(ConfigError, match="3 is no tool; give a function, the result of as_tool, or a server"):
        with_tools(Sums, [3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="has no docstring"):
        with_tools(Sums, [lambda: "x"])
    said = asyncio.run(error_of(play(with_tools(Sums, [add, as_tool(add)]), [])))
    assert said == "ConfigError: two tools are called add; give one of them another name"
    said = asyncio.run(error_of(play(with_tools(Sums, lambda env: add), [])))  # type: ignore[arg-type, return-value]
    assert "give a list of them" in said


def test_it_travels_to_another_process():
    make = cloudpickle.loads(cloudpickle.dumps(with_tools(Sums, [add])))
    (step,) = asyncio.run(play(make, [write_call("add", a=2, b=3)])).steps
    assert answers(step) == ["5"]


# in the tokens that a model sees

HERMES = r"""\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
You may call functions. Their signatures, one per line:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
A call is a JSON object within <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- elif not (tools and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("kind", ["template with tools", "template without tools", "no template", "bytes"])
def test_the_schema_stands_in_the_prompt_and_the_answers_in_what_follows(kind: str):
    tokenizer = tiny_tokenizer()
    if kind == "template with tools":
        tokenizer.chat_template = HERMES
    elif kind == "no template":
        tokenizer.chat_template = None
    codec = ByteCodec() if kind == "bytes" else ChatCodec(tokenizer)
    call = write_call("add", a=2, b=3)
    played = asyncio.run(play(with_tools(Sums, [add]), [call + call]))
    assert isinstance(played.first, Briefing)
    begun = codec.decode(codec.begin(played.first.messages, played.first.tools))
    assert '"name": "add"' in begun
    assert '"description": "Add two numbers."' in begun
    assert '"required": ["a", "b"]' in begun
    assert "what is 2 + 3?" in begun
    observation = played.steps[0].observation
    assert isinstance(observation, tuple)
    response = np.array([*(call + call).encode()], np.int32)
    after = codec.decode(codec.extend(response, observation))
    if kind == "template with tools":
        assert begun.count("# Tools") == 1
        assert "<tool_response>\n5\n</tool_response>\n<tool_response>\n5\n</tool_response>" in after
        assert "# Tools" not in after
    assert after.count("5") == 2


def test_a_call_survives_being_tokens():
    codec = ChatCodec(tiny_tokenizer())
    call = write_call("add", a=2, b=3)
    assert find_calls(codec.decode(codec.encode(call))) == [Call("add", {"a": 2, "b": 3})]
