"""Python functions as tools."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import cloudpickle
import msgspec
import numpy as np
import pytest
from msgspec import Meta
from tests.envs.adapters.playing import error_of

from windrow.envs.protocol import Step
from windrow.envs.tools import as_tool
from windrow.envs.tools.docstrings import Told, read_docstring
from windrow.errors import ConfigError


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclass
class Place:
    """Overruled by what is said of the argument."""

    city: str
    country: str = "Iceland"


class Box(msgspec.Struct):
    title: str
    inside: Place


def weather(
    place: Place,
    days: Annotated[int, Meta(ge=1, le=7, description="how far ahead")],
    unit: Unit = Unit.CELSIUS,
    detail: Literal["short", "long"] = "short",
    tags: list[str] | None = None,
    limits: dict[str, float] = {},  # noqa: B006 -- a default that must not be touched
) -> str:
    """Tell the weather.

    It may be wrong.

    Args:
        place: where
        unit (Unit): of temperatures,
            as used there

    Returns:
        words
    """
    return f"{place.city}, {place.country}: {days} {unit.name} {detail} {tags} {limits}"


def test_hints_and_docstring_become_a_schema():
    assert as_tool(weather).schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather.\n\nIt may be wrong.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "country": {"type": "string", "default": "Iceland"}},
                        "required": ["city"],
                        "description": "where",
                    },
                    "days": {"type": "integer", "minimum": 1, "maximum": 7, "description": "how far ahead"},
                    "unit": {
                        "enum": ["celsius", "kelvin"],
                        "description": "of temperatures, as used there",
                        "default": "celsius",
                    },
                    "detail": {"enum": ["long", "short"], "default": "short"},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                    "limits": {"type": "object", "additionalProperties": {"type": "number"}, "default": {}},
                },
                "required": ["place", "days"],
            },
        },
    }


def called(function: Callable[..., Any], **arguments: object) -> object:
    return asyncio.run(as_tool(function).call(arguments))


def test_arguments_arrive_as_what_the_hints_say_and_defaults_are_the_functions_own():
    said = called(weather, place={"city": "Vik"}, days=3, unit="kelvin", tags=["wind"])
    assert said == "Vik, Iceland: 3 KELVIN short ['wind'] {}"


def test_text_that_means_a_number_is_one_where_only_a_number_will_do():
    def show(count: int, share: float, sure: bool, either: int | str, text: str) -> str:
        """Show."""
        return f"{count!r} {share!r} {sure!r} {either!r} {text!r}"

    assert called(show, count="5", share="0.5", sure="true", either="6", text="7") == "5 0.5 True '6' '7'"
    assert called(show, count=5, share=1, sure=True, either=6, text="7") == "5 1.0 True 6 '7'"


UNFIT: dict[str, tuple[dict[str, object], str]] = {
    "one is missing": ({"days": 1}, "weather cannot be called like that: it needs the argument place"),
    "a wrong type": (
        {"place": {"city": "Vik"}, "days": "soon"},
        "weather cannot be called like that: expected int, got str for days",
    ),
    "out of bounds": (
        {"place": {"city": "Vik"}, "days": 9},
        "weather cannot be called like that: expected int <= 7 for days",
    ),
    "inside another": (
        {"place": {"city": 3}, "days": 1},
        "weather cannot be called like that: expected str, got int for place.city",
    ),
    "no such choice": (
        {"place": {"city": "Vik"}, "days": 1, "unit": "feet"},
        "weather cannot be called like that: invalid enum value 'feet' for unit",
    ),
    "an unknown one": ({"plaec": 1}, "weather has no argument 'plaec'; did you mean place?"),
}


@pytest.mark.parametrize(("arguments", "expected"), UNFIT.values(), ids=UNFIT)
def test_what_it_cannot_be_called_with_never_reaches_it(arguments: dict[str, object], expected: str):
    assert asyncio.run(error_of(as_tool(weather).call(arguments))) == f"Unfit: {expected}"


def test_a_function_may_be_asynchronous_or_a_method():
    class Shelf:
        """Holds things."""

        book = "Edda"

        async def take(self) -> str:
            """Take what is there."""
            await asyncio.sleep(0)
            return self.book

    tool = as_tool(Shelf().take)
    assert tool.schema["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}
    assert asyncio.run(tool.call({})) == "Edda"


STEP = Step(observation="over", reward=1.0, terminated=True)
RESULTS = {
    "text as it is": ('a "b"', 'a "b"'),
    "nothing": (None, "null"),
    "numbers": ([1, 2.5], "[1,2.5]"),
    "a dict": ({"a": True}, '{"a":true}'),
    "a dataclass": (Place("Vik"), '{"city":"Vik","country":"Iceland"}'),
    "a struct": (Box("t", Place("Vik")), '{"title":"t","inside":{"city":"Vik","country":"Iceland"}}'),
    "numpy's": ({"a": np.float32(0.5), "b": np.arange(3)}, '{"a":0.5,"b":[0,1,2]}'),
    "a step": (STEP, STEP),
}


@pytest.mark.parametrize(("given", "expected"), RESULTS.values(), ids=RESULTS)
def test_results_are_text_or_json(given: object, expected: object):
    def give() -> object:
        """Give."""
        return given

    assert called(give) == expected


def test_a_result_that_json_cannot_hold_is_the_environments_fault():
    def give() -> object:
        """Give."""
        return object()

    said = asyncio.run(error_of(as_tool(give).call({})))
    assert said.startswith("EnvError: tool give returned <object object at")
    assert said.endswith("return text or what JSON can hold")


def test_another_name_and_description_may_be_given():
    tool = as_tool(weather, name="forecast", description="Looks ahead.")
    assert tool.schema["function"]["name"] == "forecast"
    assert tool.schema["function"]["description"] == "Looks ahead."


def test_an_argument_may_be_called_title():
    def buy(box: Box, title: str = "") -> str:
        """Buy."""
        return title + box.title

    properties = as_tool(buy).schema["function"]["parameters"]["properties"]
    assert properties["title"] == {"type": "string", "default": ""}
    assert [*properties["box"]["properties"]] == ["title", "inside"]


def test_it_travels_to_another_process():
    tool = cloudpickle.loads(cloudpickle.dumps(as_tool(weather, name="forecast")))
    assert tool.schema == as_tool(weather, name="forecast").schema
    assert asyncio.run(tool.call({"place": {"city": "Vik"}, "days": 1})).startswith("Vik")


# what is wrong with a function is said when the tool is made


def no_hint(number) -> str:
    """Say."""
    return str(number)


def many(*numbers: int) -> str:
    """Say."""
    return str(numbers)


def anything(**things: int) -> str:
    """Say."""
    return str(things)


def nameless(number: int, /) -> str:
    """Say."""
    return str(number)


def odd_type(number: "threading") -> str:  # type: ignore[name-defined]  # noqa: F821 -- as it happens
    """Say."""
    return str(number)


def own_class(number: ConfigError) -> str:
    """Say."""
    return str(number)


def two_arrays(number: list[int] | tuple[int, int]) -> str:
    """Say."""
    return str(number)


def undocumented(number: int) -> str:
    return str(number)


def misspelt(number: int) -> str:
    """Say.

    Args:
        nunber: what
    """
    return str(number)


class Chain(msgspec.Struct):
    next: "Chain | None" = None


def endless(chain: Chain) -> str:
    """Say."""
    return str(chain)


MISTAKES: dict[Any, str] = {
    no_hint: "argument number of tool no_hint has no type hint; add one, as in `number: str`",
    many: r"tool many takes \*numbers: int; a policy needs arguments with names, so name them",
    anything: r"tool anything takes \*\*things: int; a policy needs arguments with names",
    nameless: "argument number of tool nameless has no name to a caller; leave out the `/`",
    odd_type: "the type hints of tool odd_type cannot be read: name 'threading' is not defined",
    own_class: "the arguments of tool own_class cannot come as JSON: type <class .*ConfigError'> is not supported",
    two_arrays: "the arguments of tool two_arrays cannot come as JSON: Type unions may not contain more than one array",
    undocumented: "tool undocumented has no docstring; say in one what it does",
    misspelt: "the docstring of tool misspelt tells of 'nunber', which is no argument of it; did you mean number?",
    endless: r"the arguments of tool endless hold themselves \(Chain\); a schema must come to an end",
    partial(weather, days=1): "is no function; wrap it in a `def` with type hints and a docstring",
    Place: "is no function; wrap it in a `def`",
}


@pytest.mark.parametrize("function", MISTAKES, ids=lambda function: str(function)[:20])
def test_a_function_that_is_no_tool_is_refused(function: Callable[..., Any]):
    with pytest.raises(ConfigError, match=MISTAKES[function]):
        as_tool(function)


# docstrings


DOCSTRINGS = {
    "": Told("", {}),
    "One line.": Told("One line.", {}),
    "One.\n\n    Two.\n": Told("One.\n\nTwo.", {}),
    "One.\n\n  Args:\n   a: first\n   b (int, optional): second\n     goes on\n   c:\n     below\n": Told(
        "One.", {"a": "first", "b": "second goes on", "c": "below"}
    ),
    "One.\n    Arguments:\n      *a: many\n      **b: more: or less\n\n    Raises:\n      KeyError: never": Told(
        "One.", {"a": "many", "b": "more: or less"}
    ),
    "One.\n\n    Returns:\n        a: no argument\n    Args:\n        b: one": Told("One.", {"b": "one"}),
    "Args:\n  words without a colon\n  a: first": Told("", {"a": "first"}),
}


@pytest.mark.parametrize(("text", "expected"), DOCSTRINGS.items(), ids=range(len(DOCSTRINGS)))
def test_a_docstring_is_read_by_its_sections(text: str, expected: Told):
    assert read_docstring(text) == expected
