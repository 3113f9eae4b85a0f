"""Calls of tools in what a policy says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.envs.tools import Call, Unreadable, find_calls, write_call

LOOK = '{"name": "look", "arguments": {"at": 3}}'
LOOKED = Call("look", {"at": 3})

CALLS: dict[str, list[Call]] = {
    f"<tool_call>\n{LOOK}\n</tool_call>": [LOOKED],
    f"<tool_call>{LOOK}</tool_call>": [LOOKED],
    f"I shall look.\n<tool_call>\n{LOOK}\n</tool_call>\n": [LOOKED],
    f"<tool_call>{LOOK}</tool_call>\n<tool_call>{LOOK}</tool_call>": [LOOKED, LOOKED],
    f"<tool_call>\n{LOOK}": [LOOKED],  # its end was never sampled, or is the end of the message
    f"<tool_call>{LOOK}<tool_call>{LOOK}": [LOOKED, LOOKED],
    f"<tool_call>[{LOOK}, {LOOK}]</tool_call>": [LOOKED, LOOKED],
    f"<tool_call>\n```json\n{LOOK}\n```\n</tool_call>": [LOOKED],
    f"<think>perhaps <tool_call>x</tool_call></think><tool_call>{LOOK}</tool_call>": [LOOKED],
    f"perhaps <tool_call>x</tool_call></think><tool_call>{LOOK}</tool_call>": [LOOKED],  # the prompt began to think
    LOOK: [LOOKED],
    f"\n  {LOOK}\n": [LOOKED],
    f"so:\n```json\n{LOOK}\n```": [LOOKED],
    f"so:\n```\n{LOOK}\n```\nand\n```json\n{LOOK}\n```": [LOOKED, LOOKED],
    '{"name": "look", "parameters": {"at": 3}}': [LOOKED],
    '{"name": "look", "arguments": "{\\"at\\": 3}"}': [LOOKED],
    '<tool_call>{"name": "look"}</tool_call>': [Call("look", {})],
    "": [],
    "no call at all": [],
    "I might use a <tool_call, or {not}": [],
    '{"name": "a person"}': [],
    '{"answer": 42}': [],
    '```json\n{"answer": 42}\n```': [],
    "```python\nprint({})\n```": [],
    f"look {LOOK} look": [],
    f"<think><tool_call>{LOOK}</tool_call></think> nothing": [],
}


@pytest.mark.parametrize(("said", "expected"), CALLS.items(), ids=range(len(CALLS)))
def test_calls_are_found_where_models_write_them(said: str, expected: list[Call]):
    assert find_calls(said) == expected


UNREADABLE = {
    "<tool_call></tool_call>": "this is no call: Input data was truncated",
    "<tool_call>look</tool_call>": "this is no call: JSON is malformed: invalid character (byte 0)",
    "<tool_call>{'n': 'look'}</tool_call>": "this is no call: JSON is malformed: object keys must be strings (byte 1)",
    '<tool_call>{"name": "look", "argum</tool_call>': "this is no call: Input data was truncated",
    f"<tool_call>{LOOK} and more</tool_call>": "this is no call: JSON is malformed: trailing characters (byte 42)",
    "<tool_call>" + "[" * 100_000 + "</tool_call>": "this is no call: it is nested too deeply",
    '<tool_call>{"name": 3}</tool_call>': 'a call is an object with "name" and "arguments"',
    '<tool_call>{"name": ""}</tool_call>': 'a call is an object with "name" and "arguments"',
    "<tool_call>[]</tool_call>": 'a call is an object with "name" and "arguments"',
    "<tool_call>null</tool_call>": 'a call is an object with "name" and "arguments"',
    '<tool_call>{"name": "look", "arguments": [1]}</tool_call>': "the arguments of look are no object",
    '<tool_call>{"name": "look", "arguments": "x"}</tool_call>': "the arguments of look are no object",
    '<tool_call>{"name": "look", "arguments": null}</tool_call>': "the arguments of look are no object",
    '{"name": "look", "arguments": {}': "this is no call: Input data was truncated",
    '{"name": "look", "arguments": }': "this is no call: JSON is malformed: invalid character (byte 30)",
}


@pytest.mark.parametrize(("said", "why"), UNREADABLE.items(), ids=range(len(UNREADABLE)))
def test_what_cannot_be_read_says_why(said: str, why: str):
    assert find_calls(said) == [Unreadable(why)]


def test_a_bad_call_does_not_take_the_good_ones_with_it():
    found = find_calls(f"<tool_call>{LOOK}</tool_call><tool_call>?</tool_call><tool_call>{LOOK}</tool_call>")
    assert [type(each) for each in found] == [Call, Unreadable, Call]


@given(name=st.text(min_size=1), arguments=st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text()))
def test_what_is_written_is_found(name: str, arguments: dict[str, int | str]):
    whole = "".join([name, *arguments, *(value for value in arguments.values() if isinstance(value, str))])
    if "<tool_call>" not in whole and "</t" not in whole and "```" not in whole:
        found = find_calls(write_call("x") + write_call("y", k=1) + write_call(name, **arguments))
        assert found == [Call("x", {}), Call("y", {"k": 1}), Call(name, arguments)]


@given(st.text() | st.text(alphabet='<>/tool_ca"{}[]:,name argumets`\n'))
def test_whatever_is_said_is_read_without_an_error(said: str):
    assert all(isinstance(each, Call | Unreadable) for each in find_calls(said))
