"""The kinds of values that a model asks for: what they are made of, and how they are called in a message."""

import math
import types
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, inspect

Kind = Any
"""An annotation as Python holds it: no narrower type covers classes, unions and Annotated."""

Section = type[msgspec.Struct]


def bare(kind: Kind) -> Kind:
    """The kind without its bounds and description."""
    return get_args(kind)[0] if _origin(kind) is Annotated else kind


def metas(kind: Kind) -> list[Meta]:
    """Its bounds and descriptions, outermost last."""
    if _origin(kind) is not Annotated:
        return []
    return [extra for extra in get_args(kind)[1:] if isinstance(extra, Meta)]


def description(kind: Kind) -> str:
    """The line that says what the setting is for."""
    given = [meta.description for meta in metas(kind) if meta.description]
    inner = [text for member in members(kind) if member is not kind and (text := description(member))]
    return (given or inner or [""])[-1]


def members(kind: Kind) -> list[Kind]:
    """The alternatives of a union; otherwise the kind itself."""
    inner = bare(kind)
    if _origin(inner) in (Union, types.UnionType):
        return list(get_args(inner))
    return [kind]


def sections(kind: Kind) -> list[Section]:
    """The Structs among its alternatives."""
    found = [bare(member) for member in members(kind)]
    return [member for member in found if is_section(member)]


def is_section(kind: Kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not kind.__struct_config__.array_like


def item_of(kind: Kind, container: type, *, key: bool = False) -> Kind | None:
    """What the `dict` or `list` among the alternatives holds (or its keys); None if there is none."""
    for member in members(kind):
        inner = bare(member)
        if _origin(inner) is container:
            return get_args(inner)[0 if key else -1]
    return None


def size_of(kind: Kind) -> Meta:
    """How many items a list or a mapping may have."""
    every = [meta for member in [kind, *members(kind)] for meta in metas(member)]
    low = max((meta.min_length for meta in every if meta.min_length is not None), default=None)
    high = min((meta.max_length for meta in every if meta.max_length is not None), default=None)
    return Meta(min_length=low, max_length=high)


def may_be_infinite(kind: Kind, number: float) -> bool:
    """Whether the kind takes infinity: a number without any bound does; nothing takes NaN."""
    infos = [inspect.type_info(bare(member)) for member in members(kind) if not _is_bounded(member)]
    return not math.isnan(number) and not _is_bounded(kind) and any(isinstance(i, inspect.FloatType) for i in infos)


def _is_bounded(kind: Kind) -> bool:
    return any(bound is not None for meta in metas(kind) for bound in (meta.ge, meta.gt, meta.le, meta.lt))


def tag_of(section: Section) -> str | None:
    tag = section.__struct_config__.tag
    return None if tag is None else str(tag)


def tag_field_of(section: Section) -> str | None:
    return section.__struct_config__.tag_field


def choices(kind: Kind) -> list[str]:
    """The words that a Literal or an enumeration allows, in their order."""
    return [str(value) for member in members(kind) for value in _values(bare(member))]


def wording(kind: Kind) -> str:
    """The kind in words, after `must be`: `an integer of 1 or more`."""
    return " or ".join(
        one_of(choices(member)) if choices(member) else _word(inspect.type_info(member)) for member in members(kind)
    )


def one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _origin(kind: object) -> object:
    return get_origin(kind)


def _values(kind: Kind) -> list[object]:
    if _origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _word(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inner):
            return _word(inner)
        case inspect.IntType():
            return "an integer" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "text" + _length(info, "characters")
        case inspect.LiteralType(values=values):
            return one_of([str(value) for value in values])
        case inspect.NoneType():
            return "null"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"a list{_length(info, 'items')}, each {_word(item)}"
        case inspect.DictType(value_type=value):
            return f"a mapping{_length(info, 'names')}, each value {_word(value)}"
        case inspect.StructType(cls=cls, tag=tag, tag_field=tag_field):
            return f"a section with {tag_field}: {tag}" if tag is not None else f"a section ({_fields(cls)})"
        case inspect.UnionType(types=alternatives):
            return " or ".join(_word(each) for each in alternatives)
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def _fields(section: Section) -> str:
    names = [field.encode_name for field in msgspec.structs.fields(section)]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _bounds(number: inspect.IntType | inspect.FloatType) -> str:
    if number.ge is not None and number.le is not None:
        return f" from {_plain(number.ge)} to {_plain(number.le)}"
    words = [
        *([f"of {_plain(number.ge)} or more"] if number.ge is not None else []),
        *([f"above {_plain(number.gt)}"] if number.gt is not None else []),
        *([f"of {_plain(number.le)} or less"] if number.le is not None else []),
        *([f"below {_plain(number.lt)}"] if number.lt is not None else []),
        *([f"divisible by {_plain(number.multiple_of)}"] if number.multiple_of is not None else []),
    ]
    return "".join(f" {word}" for word in words[:1]) + "".join(f" and {word}" for word in words[1:])


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


Sized = inspect.StrType | inspect.ListType | inspect.VarTupleType | inspect.DictType


def _length(sized: Sized, what: Literal["characters", "items", "names"]) -> str:
    low, high = sized.min_length, sized.max_length
    words = [*([f"at least {low}"] if low else []), *([f"at most {high}"] if high is not None else [])]
    return f" of {' and '.join(words)} {what}" if words else ""
