"""Python functions as tools: a schema from type hints and docstring, arguments checked before the call.

Promises: what a function cannot be called with never reaches it; what is wrong with a function is said when the tool is
made, not when a policy first calls it. A synchronous function runs on the event loop: one that waits belongs into an
environment with a thread or a process of its own.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from windrow.envs.protocol import Step
from windrow.envs.tools.docstrings import Told, read_docstring
from windrow.errors import ConfigError, EnvError
from windrow.nearest import did_you_mean
from windrow.text import Tool

REFERENCE = "#/$defs/"


class Unfit(ValueError):
    """Arguments that a tool cannot be called with; the policy is told so."""


def as_tool(function: "Callable[..., Any] | ToolFunction", *, name: str = "", description: str = "") -> "ToolFunction":
    """A function as a tool; its name and its docstring are its own unless others are given."""
    if isinstance(function, ToolFunction):
        return function
    if not inspect.isroutine(function):
        raise ConfigError(f"{function!r:.60} is no function; wrap it in a `def` with type hints and a docstring")
    return ToolFunction(function, name, description)


class ToolFunction:
    """A function that a policy can call."""

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        self.function = function
        self.name = name or function.__name__
        told = read_docstring(inspect.getdoc(function) or "")
        self._given = (function, name, description)
        self._description = description or told.description
        if not self._description:
            raise ConfigError(f"tool {self.name} has no docstring; say in one what it does")
        self._arguments, properties, required = _described(function, self.name, told)
        parameters = {"type": "object", "properties": properties, "required": required}
        about = {"name": self.name, "description": self._description, "parameters": parameters}
        self.schema: Tool = {"type": "function", "function": about}

    def __reduce__(self) -> tuple[type["ToolFunction"], tuple[Callable[..., Any], str, str]]:
        return ToolFunction, self._given  # the type of its arguments was made here and does not travel

    async def call(self, arguments: Mapping[str, Any]) -> str | Step:
        """Call it; raises Unfit if it cannot be called like that, and whatever the function raises."""
        result = self.function(**self._checked(arguments))
        if inspect.isawaitable(result):
            result = await result
        return result if isinstance(result, str | Step) else self._as_text(result)

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = self._arguments.__struct_fields__
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise Unfit(f"{self.name} has no argument {unknown[0]!r}{did_you_mean(unknown[0], known)}")
        given = _converted(arguments, self._arguments, self.name)
        return {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}

    def _as_text(self, result: object) -> str:
        try:
            return msgspec.json.encode(result, enc_hook=_builtin).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvError(f"tool {self.name} returned {result!r:.60}; return text or what JSON can hold") from error


def _converted(arguments: Mapping[str, Any], kind: type[msgspec.Struct], name: str) -> msgspec.Struct:
    """Arguments of their types; text that means a number is one, where only a number will do."""
    try:
        return msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        what = what.replace("Object missing required field", "it needs the argument").replace("`", "")
        place = f" for {where.rstrip('`')}" if where else ""
        raise Unfit(f"{name} cannot be called like that: {what[:1].lower()}{what[1:]}{place}") from error


def _described(function: Callable[..., Any], name: str, told: Told) -> tuple[type[msgspec.Struct], Any, list[str]]:
    """The type of the arguments, and what a schema says of them: their properties, and which are required."""
    signature = inspect.signature(function)
    hints = _hints(function, name)
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        _check(parameter, hints, name)
        hint = hints[parameter.name]
        given = parameter.default is inspect.Parameter.empty
        fields.append((parameter.name, hint) if given else (parameter.name, Union[hint, UnsetType], UNSET))  # noqa: UP007 -- hints are values here
    stray = [argument for argument in told.arguments if argument not in signature.parameters]
    if stray:
        near = did_you_mean(stray[0], signature.parameters)
        raise ConfigError(f"the docstring of tool {name} tells of {stray[0]!r}, which is no argument of it{near}")
    kind, schema = _schema(fields, name)
    properties: dict[str, Any] = schema.get("properties", {})
    for argument, about in properties.items():
        _complete(about, told.arguments.get(argument, ""), signature.parameters[argument].default)
    return kind, properties, list(schema.get("required", []))


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"the type hints of tool {name} cannot be read: {error}") from error


def _check(parameter: inspect.Parameter, hints: Mapping[str, Any], name: str) -> None:
    if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ConfigError(f"tool {name} takes {parameter}; a policy needs arguments with names, so name them")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigError(f"argument {parameter.name} of tool {name} has no name to a caller; leave out the `/`")
    if parameter.name not in hints:
        raise ConfigError(
            f"argument {parameter.name} of tool {name} has no type hint; add one, as in `{parameter.name}: str`"
        )


def _schema(fields: list[Any], name: str) -> tuple[type[msgspec.Struct], dict[str, Any]]:
    try:
        kind = msgspec.defstruct(name, fields, kw_only=True)
        (top,), parts = msgspec.json.schema_components([kind], ref_template=REFERENCE + "{name}")
    except (TypeError, ValueError) as error:
        why = str(error).splitlines()[-1]
        raise ConfigError(f"the arguments of tool {name} cannot come as JSON: {why}") from error
    return kind, _inlined(top, parts, (), name)


def _inlined(schema: Any, parts: Mapping[str, Any], within: tuple[str, ...], name: str) -> Any:  # noqa: ANN401 -- a schema is any JSON
    """A schema in one piece: templates show it as it is, and models read it better so."""
    if isinstance(schema, list):
        return [_inlined(each, parts, within, name) for each in schema]
    if not isinstance(schema, dict):
        return schema
    part = str(schema.get("$ref", "")).removeprefix(REFERENCE)
    if part in within:
        raise ConfigError(f"the arguments of tool {name} hold themselves ({part}); a schema must come to an end")
    if part:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined(parts[part], parts, (*within, part), name) | rest
    plain = {key: value for key, value in schema.items() if key not in {"title", "properties"}}
    made = {key: _inlined(value, parts, within, name) for key, value in plain.items()}
    properties = schema.get("properties")
    if properties is not None:
        made["properties"] = {key: _inlined(value, parts, within, name) for key, value in properties.items()}
    return made


def _complete(about: dict[str, Any], description: str, default: object) -> None:
    """Add what the function says of an argument."""
    if description:
        about["description"] = description  # it knows more than the type does
    if default is inspect.Parameter.empty:
        return
    try:
        about.setdefault("default", msgspec.to_builtins(default))
    except (TypeError, ValueError):  # one that JSON cannot hold stays the function's own
        return


def _builtin(value: object) -> object:
    """Values of numpy as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")
