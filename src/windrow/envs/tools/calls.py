"""Calls of tools in what a policy says.

Promises: a call is found where a model would write one: between `<tool_call>` and `</tool_call>`, any number of them;
without these, in a fence of JSON, or as the whole answer. What looks like a call and cannot be read is told, with why.
What is thought between `<think>` and `</think>` calls nothing.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from windrow.types import Value, to_json

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
FENCED = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)```", re.DOTALL)
THOUGHT = re.compile(r"\A.*</think>", re.DOTALL)
ARGUMENTS = ("arguments", "parameters")


class Call(Value, frozen=True, gc=True):
    """One call."""

    name: str
    arguments: dict[str, Any]


class Unreadable(Value, frozen=True):
    """Something that was meant as a call."""

    why: str


Found = Call | Unreadable
Parse = Callable[[str], Sequence[Found]]
"""Finds the calls in what a policy says; none if it calls nothing."""


def find_calls(said: str) -> list[Found]:
    """The calls in what a policy says."""
    said = THOUGHT.sub("", said)
    tagged = TAGGED.findall(said)
    if tagged:
        return [found for body in tagged for found in _read(_unfenced(body))]
    whole = said.strip()
    bodies = [body for body in FENCED.findall(said) if _looks_like_a_call(body)]
    if not bodies and whole.startswith("{") and whole.endswith("}") and _looks_like_a_call(whole):
        bodies = [whole]
    return [found for body in bodies for found in _read(body)]


def write_call(name: str, /, **arguments: object) -> str:
    """A call as a policy writes it."""
    return f"<tool_call>\n{to_json({'name': name, 'arguments': arguments}).decode()}\n</tool_call>"


def _read(body: str) -> list[Found]:
    decoded = _decoded(body.strip())
    if isinstance(decoded, Unreadable):
        return [decoded]
    return [_call(each) for each in decoded] if isinstance(decoded, list) and decoded else [_call(decoded)]


def _decoded(text: str) -> Any:  # noqa: ANN401 -- any JSON
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        return Unreadable(f"this is no call: {error}")
    except RecursionError:
        return Unreadable("this is no call: it is nested too deeply")


def _call(decoded: Any) -> Found:  # noqa: ANN401 -- any JSON
    match decoded:
        case {"name": str(name)} if name:
            given: Any = next((decoded[key] for key in ARGUMENTS if key in decoded), {})
            arguments = _decoded(given) if isinstance(given, str) else given
            if isinstance(arguments, dict):
                return Call(name, arguments)
            return Unreadable(f"the arguments of {name} are no object")
        case _:
            return Unreadable('a call is an object with "name" and "arguments"')


def _looks_like_a_call(body: str) -> bool:
    if '"name"' not in body or not any(f'"{key}"' in body for key in ARGUMENTS):
        return False
    decoded = _decoded(body.strip())
    if isinstance(decoded, Unreadable):
        return True
    return any(_has_the_keys(each) for each in (decoded if isinstance(decoded, list) else [decoded]))


def _has_the_keys(decoded: object) -> bool:
    return isinstance(decoded, dict) and "name" in decoded and any(key in decoded for key in ARGUMENTS)


def _unfenced(body: str) -> str:
    fenced = FENCED.search(body)
    return fenced[1] if fenced else body
