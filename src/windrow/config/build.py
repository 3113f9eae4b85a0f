"""Building a model from what a user wrote, or saying in one line why that cannot be."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, TypeVar, cast

import msgspec

from windrow.config.kinds import (
    Kind,
    Section,
    choices,
    item_of,
    may_be_infinite,
    members,
    one_of,
    sections,
    size_of,
    tag_field_of,
    tag_of,
    wording,
)
from windrow.config.settings import REQUIRED, default_of, describe
from windrow.config.source import Place, Raw, Source, dotted, read, shown
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean, nearest

M = TypeVar("M", bound=msgspec.Struct)

DEFAULT = "default"
QUOTES = "; put it in quotes"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A configuration that was read, and where each of its settings came from."""

    value: M
    origins: dict[str, str]
    """Dotted key to `file.yaml:LINE`, `command line` or `default`, for every setting of the value."""


def load(
    path: str | Path | None, overrides: Iterable[str], model: type[M], refused: Mapping[str, str] | None = None
) -> Loaded[M]:
    """Read the file (None: defaults alone), apply the overrides in order, check and build the model.

    `refused` says of settings that people look for and that there are not what there is instead, by dotted key.
    """
    source = read(None if path is None else Path(path), overrides)
    value = cast("M", _Builder(source, model, refused or {}).section(model, source.tree, (), None))
    origins = {setting.key: source.origin(setting.place) or DEFAULT for setting in describe(model, value)}
    return Loaded(value, origins)


class _Builder:
    """Walks the model and what was written side by side, from the top."""

    def __init__(self, source: Source, model: Section, refused: Mapping[str, str]) -> None:
        self._source = source
        self._model = model
        self._refused = refused

    def section(self, section: Section, raw: dict[str, Raw], place: Place, default: object) -> msgspec.Struct:
        """The section as written; what is not written stays as it is in its default, if that has its form."""
        fields = {field.encode_name: field for field in msgspec.structs.fields(section)}
        values: dict[str, object] = {}
        for name, below in raw.items():
            inner = (*place, name)
            if name == tag_field_of(section):
                self._check_tag([section], below, inner)
            elif name not in fields:
                self._unknown(inner, list(fields))
            else:
                field = fields[name]
                values[field.name] = self.value(field.type, below, inner, default_of(section, field, default))
        for name, field in fields.items():
            if field.name in values:
                continue
            values[field.name] = default_of(section, field, default)
            if values[field.name] is REQUIRED:
                key = dotted((*place, name))
                raise self._source.error(place, f"{key} is missing; it must be {wording(field.type)}")
        return self._make(section, values, place)

    def value(self, kind: Kind, raw: Raw, place: Place, default: object = REQUIRED) -> object:
        among = sections(kind)
        if among == members(kind) and len(among) == 1 and self._source.is_override(place):
            self._refuse_whole(among[0], place)
        if isinstance(raw, dict) and among:
            return self.section(self._chosen(among, raw, place, default), raw, place, default)
        if isinstance(raw, dict) and (entry := item_of(kind, dict)) is not None:
            self._fit(Annotated[dict[str, Any], size_of(kind)], kind, raw, place)
            return {
                self._name(kind, name, place): self.value(entry, below, (*place, name)) for name, below in raw.items()
            }
        if isinstance(raw, list) and (item := item_of(kind, list)) is not None:
            self._fit(Annotated[list[Any], size_of(kind)], kind, raw, place)
            return [self.value(item, below, (*place, at)) for at, below in enumerate(raw)]
        return self._fit(kind, kind, raw, place)

    def _chosen(self, among: list[Section], raw: dict[str, Raw], place: Place, default: object) -> Section:
        """The form of a section that its tag names, or that it has by default."""
        tag_field = tag_field_of(among[0])
        if len(among) == 1 or tag_field is None:
            return among[0]
        if tag_field in raw:
            return self._check_tag(among, raw[tag_field], (*place, tag_field))
        for section in among:
            if isinstance(default, section):
                return section
        tags = one_of([str(tag_of(section)) for section in among])
        raise self._source.error(place, f"{dotted((*place, tag_field))} is missing; it must be {tags}")

    def _check_tag(self, among: list[Section], raw: Raw, place: Place) -> Section:
        by_tag = {str(tag_of(section)): section for section in among}
        if str(raw) in by_tag:
            return by_tag[str(raw)]
        hint = _meant(raw, list(by_tag))
        raise self._wrong(place, one_of(list(by_tag)), raw, hint)

    def _name(self, kind: Kind, name: str, place: Place) -> object:
        """A name in a mapping, as the kind of its keys."""
        names = item_of(kind, dict, key=True)
        try:
            return msgspec.convert(name, names, strict=False)
        except msgspec.ValidationError:
            hint = _meant(name, choices(names))
            message = f"{name!r} in {dotted(place)} must be {wording(names)}{hint}"
            raise self._source.error((*place, name), message) from None

    def _fit(self, kind: Kind, words: Kind, raw: Raw, place: Place) -> object:
        """The value as its kind, which is called by these words when it does not fit."""
        if isinstance(raw, float) and not math.isfinite(raw) and not may_be_infinite(kind, raw):
            raise self._wrong(place, wording(words), raw, "; use a finite number")
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError:
            hint = _way_out(kind, raw)
            if hint == QUOTES and self._source.is_override(place):
                hint = f"; the shell takes quotes away, so write \"{dotted(place)}='{raw}'\""
            raise self._wrong(place, wording(words), raw, hint) from None

    def _make(self, section: Section, values: dict[str, object], place: Place) -> msgspec.Struct:
        try:
            return section(**values)
        except (ValueError, ConfigError) as error:
            message = str(error)
            key = message.partition(" ")[0].rstrip(":,;").split(".")
            names = [field.encode_name for field in msgspec.structs.fields(section)]
            if key[0] not in names:
                raise self._source.error(place, f"{dotted(place)}: {message}" if place else message) from error
            prefix = f"{dotted(place)}." if place else ""
            raise self._source.error((*place, *key), f"{prefix}{message}") from error

    def _wrong(self, place: Place, words: str, raw: Raw, hint: str) -> ConfigError:
        return self._source.error(place, f"{dotted(place)} must be {words}, got {shown(raw)}{hint}")

    def _unknown(self, place: Place, names: list[str]) -> NoReturn:
        """Refuse a key: the same word elsewhere is suggested, else the nearest in its section."""
        *around, name = place
        if dotted(place) in self._refused:
            raise self._source.error(place, f"there is no {dotted(place)}; {self._refused[dotted(place)]}")
        near = nearest(str(name), names)
        elsewhere = [setting for setting in describe(self._model) if setting.place[-1] == name]
        needs = [setting.when for setting in elsewhere if setting.place == place]
        if needs:
            hint = f"; it needs {needs[0]}"
        elif elsewhere:
            hint = f"; did you mean {elsewhere[0].key}?"
        elif near is not None:
            hint = f"; did you mean {dotted((*around, near))}?"
        else:
            hint = did_you_mean(str(name), names)
        raise self._source.error(place, f"unknown setting {dotted(place)}{hint}")

    def _refuse_whole(self, section: Section, place: Place) -> NoReturn:
        first = msgspec.structs.fields(section)[0].encode_name
        key = dotted(place)
        message = f"{key} is a section; set what is in it, such as {key}.{first}=VALUE"
        raise self._source.error(place, message)


def _meant(raw: Raw, words: list[str]) -> str:
    near = nearest(str(raw), words)
    return "" if near is None else f"; did you mean {near}?"


def _way_out(kind: Kind, raw: Raw) -> str:
    """The nearest value that would fit, at the end of a message."""
    if isinstance(raw, str) and choices(kind):
        return _meant(raw, choices(kind))
    if isinstance(raw, bool | int | float) and _fits(kind, str(raw)):
        return QUOTES
    if isinstance(raw, str) and _fits(kind, raw, strict=False):
        return f"; did you mean {raw}, without quotes?"
    if isinstance(raw, float) and raw.is_integer() and _fits(kind, int(raw)):
        return f"; did you mean {int(raw)}?"
    return ""


def _fits(kind: Kind, raw: Raw, *, strict: bool = True) -> bool:
    try:
        msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError:
        return False
    return True
