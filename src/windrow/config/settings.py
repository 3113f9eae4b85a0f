"""Every setting of a model: its key, kind, default and line of description, and its value if there is one."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from windrow.config.kinds import (
    Kind,
    Section,
    description,
    item_of,
    sections,
    tag_field_of,
    tag_of,
    wording,
)
from windrow.config.source import Place, dotted

ANY_NAME = "NAME"
"""Stands for the names in a mapping, in the list of what could be set."""

REQUIRED = msgspec.NODEFAULT
"""The default of a setting that must be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that can be set."""

    place: Place
    kind: str
    """What it may be, in words."""
    default: object
    """Its default, or REQUIRED."""
    description: str
    when: str = ""
    """The choice that brings this setting with it, such as `env.kind: maze`; empty if it is always there."""
    value: object = msgspec.UNSET
    """Its value, where a value was given to `describe`."""

    @property
    def key(self) -> str:
        return dotted(self.place)


def describe(model: Section, value: msgspec.Struct | None = None) -> list[Setting]:
    """Every setting of this model; with a value, every setting that the value has."""
    return list(_of_section(_At((), value=value), model))


def default_of(section: Section, field: msgspec.structs.FieldInfo, around: object) -> object:
    """The default of a field, or REQUIRED: from the default of the section around it, else its own."""
    if isinstance(around, section):
        return getattr(around, field.name)
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


@dataclass(frozen=True, slots=True)
class _At:
    """Where the walk is, and what is known there."""

    place: Place
    value: object = msgspec.UNSET
    """The value here; UNSET on the walk over what could be set."""
    default: object = REQUIRED
    """What stands here when nothing is written."""
    when: str = ""


def _of_section(at: _At, section: Section) -> Iterator[Setting]:
    for field in msgspec.structs.fields(section):
        value = getattr(at.value, field.name) if isinstance(at.value, section) else msgspec.UNSET
        inner = _At((*at.place, field.encode_name), value, default_of(section, field, at.default), at.when)
        walk = _could_be if value is msgspec.UNSET else _is
        yield from walk(inner, field.type, description(field.type))


def _could_be(at: _At, kind: Kind, about: str) -> Iterator[Setting]:
    """All that could be set here, whichever form and names are chosen."""
    among, entry, item = sections(kind), item_of(kind, dict), item_of(kind, list)
    if len(among) == 1:
        yield from _of_section(at, among[0])
    elif among:
        yield _tag(at, among, about)
        for section in among:
            when = f"{dotted(at.place)}.{tag_field_of(section)}: {tag_of(section)}"
            yield from _of_section(_At(at.place, default=at.default, when=when), section)
    elif entry is not None and sections(entry):
        yield from _could_be(_At((*at.place, ANY_NAME), when=at.when), entry, about)
    elif item is not None and sections(item):
        yield from _could_be(_At((*at.place, 0), when=at.when), item, about)
    else:
        yield _leaf(at, kind, about)


def _is(at: _At, kind: Kind, about: str) -> Iterator[Setting]:
    """All that is set here, following the value."""
    among, entry, item = sections(kind), item_of(kind, dict), item_of(kind, list)
    match at.value:
        case msgspec.Struct() as value if type(value) in among:
            if len(among) > 1:
                yield _tag(at, among, about)
            yield from _of_section(at, type(value))
        case dict() as entries if entries and entry is not None:
            for name, value in entries.items():
                below = at.default.get(name, REQUIRED) if isinstance(at.default, dict) else REQUIRED
                yield from _is(_At((*at.place, str(name)), value, below, at.when), entry, about)
        case list() as items if items and item is not None and sections(item):
            for position, value in enumerate(items):
                yield from _is(_At((*at.place, position), value, when=at.when), item, about)
        case _:
            yield _leaf(at, kind, about)


def _tag(at: _At, among: list[Section], about: str) -> Setting:
    tags = [tag for section in among if (tag := tag_of(section)) is not None]
    default = tag_of(type(at.default)) if isinstance(at.default, msgspec.Struct) else REQUIRED
    return Setting(
        place=(*at.place, tag_field_of(among[0]) or "type"),
        kind=f"one of {', '.join(tags)}",
        default=default,
        description=about,
        when=at.when,
        value=tag_of(type(at.value)) if isinstance(at.value, msgspec.Struct) else msgspec.UNSET,
    )


def _leaf(at: _At, kind: Kind, about: str) -> Setting:
    return Setting(
        place=at.place,
        kind=wording(kind),
        default=at.default,
        description=about or description(kind),
        when=at.when,
        value=at.value,
    )
