"""What a user wrote: plain values from a file and the command line, and where each of them was written.

Promises: keys are text and appear once; numbers are numbers also when written 1e-3; `yes`, `off` and `1:30`
stay the text that they look like. Whether a setting exists is not known here.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean

Raw = None | bool | int | float | str | list["Raw"] | dict[str, "Raw"]
"""A value as it was written."""

Place = tuple[str | int, ...]
"""The way to a value: names of sections and settings, positions in lists."""

COMMAND_LINE = "command line"
SHOWN = 60  # characters of a value in a message


def dotted(place: Place) -> str:
    """A place as users write it: `train.tags.math`, `stages[2].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def shown(raw: object) -> str:
    """A value as users write it, cut when it is long."""
    match raw:
        case None:
            text = "nothing"
        case bool():
            text = str(raw).lower()
        case _:
            text = repr(raw)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


class Source:
    """One configuration as written: the tree of values and the origin of each place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree: dict[str, Raw] = {}
        self._origins: dict[Place, str] = {}  # all and only places that were written, with where
        self._overrides: set[Place] = set()  # all and only places that the command line names

    def origin(self, place: Place) -> str | None:
        """Where exactly this place was written; None if nowhere."""
        return self._origins.get(place)

    def is_override(self, place: Place) -> bool:
        """Whether the command line names exactly this place."""
        return place in self._overrides

    def error(self, place: Place, message: str) -> ConfigError:
        """The error that begins with where the place was written, else what is in it, else what is around it.

        A section that only the command line names was written nowhere itself; what is in it was.
        """
        inside = (origin for below, origin in self._origins.items() if place and below[: len(place)] == place)
        around = (
            self._origins[place[:length]] for length in range(len(place), 0, -1) if place[:length] in self._origins
        )
        where = self.origin(place) or next(inside, None) or next(around, self.name)
        return ConfigError(f"{where}: {message}")

    def override(self, text: str) -> None:
        """Apply one `section.key=value` of the command line."""
        key, equals, written = text.partition("=")
        place = tuple(part.strip() for part in key.split("."))
        if not equals:
            raise ConfigError(f"{COMMAND_LINE}: {text!r} sets nothing; write {text}=VALUE")
        if not all(place):
            raise ConfigError(f"{COMMAND_LINE}: {text!r} names no setting; write section.key=VALUE")
        inner: dict[str, Raw] = self.tree
        for depth, part in enumerate(place[:-1], start=1):
            below = inner.setdefault(part, {})
            if not isinstance(below, dict):
                set_to = f"{dotted(place[:depth])} is {shown(below)} ({self.origin(place[:depth])})"
                raise ConfigError(f"{COMMAND_LINE}: {key} cannot be set, because {set_to}")
            inner = below
        self._origins = {p: origin for p, origin in self._origins.items() if p[: len(place)] != place}
        inner[place[-1]] = self._override_value(key.strip(), written, place)
        self.wrote(place, COMMAND_LINE)
        self._overrides.add(place)

    def wrote(self, place: Place, origin: str) -> None:
        self._origins[place] = origin

    def _override_value(self, key: str, written: str, place: Place) -> Raw:
        try:
            node = _compose(written)
        except _NotYaml as error:
            raise ConfigError(f"{COMMAND_LINE}: {key}={written} is not YAML: {error}") from None
        return None if node is None else _Reader(self, lines=False).value(node, place)


def read(path: Path | None, overrides: Iterable[str]) -> Source:
    """The file (or nothing) with the overrides applied in their order."""
    source = Source(COMMAND_LINE) if path is None else _read_file(path)
    for text in overrides:
        source.override(text)
    return source


def top_value(path: str | Path, overrides: Iterable[str], key: str) -> Raw:
    """What a file or the command line says for one key at the top, whatever the file is for; None if nothing."""
    return read(Path(path), overrides).tree.get(key)


def top_keys(path: Path) -> list[str]:
    """What stands at the top of a file, whatever it is for."""
    return [*_read_file(path).tree]


def _read_file(path: Path) -> Source:
    name = str(path)
    try:
        root = _compose(_text_of(path))
    except _NotYaml as error:
        where = name if error.line is None else f"{name}:{error.line}"
        raise ConfigError(f"{where}: this is not YAML: {error}") from None
    if root is None:
        raise ConfigError(f"{name}: the file is empty; it must hold settings, one `key: value` per line")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{name}:{_line(root)}: the file must hold settings, one `key: value` per line")
    source = Source(name)
    tree = _Reader(source, lines=True).value(root, ())
    assert isinstance(tree, dict)
    source.tree = tree
    return source


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_instead(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: this is a folder; name a file in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: this is not text in UTF-8; a configuration is a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error


def _instead(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    files = sorted(str(path.with_name(file.name)) for file in path.parent.iterdir() if file.is_file())
    return did_you_mean(str(path), [file for file in files if file.endswith((".yaml", ".yml"))])


class _NotYaml(Exception):
    """What the YAML parser has to say, and on which line if it knows."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """YAML whose bare words are what they look like: no `off` for false, no 1:30 for 90, no 010 for 8."""

    yaml_implicit_resolvers = {}


_TAG = "tag:yaml.org,2002:"
_RESOLVED = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9_]*)",
    "float": r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}
for _name, _pattern in _RESOLVED.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


def _compose(text: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark
        raise _NotYaml(problem, None if mark is None else mark.line + 1) from None
    except yaml.YAMLError as error:
        raise _NotYaml(str(error).splitlines()[0], None) from None
    return root


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns parsed YAML into plain values and notes in the source where each was written."""

    def __init__(self, source: Source, *, lines: bool) -> None:
        self._source = source
        self._lines = lines
        self._above: list[yaml.Node] = []  # all and only nodes that are being read

    def value(self, node: yaml.Node, place: Place) -> Raw:
        if any(node is outer for outer in self._above):
            raise self._error(node, f"{dotted(place)} contains itself; write it out")
        self._above.append(node)
        match node:
            case yaml.MappingNode():
                value = self._mapping(node, place)
            case yaml.SequenceNode():
                value = self._sequence(node, place)
            case _:
                value = self._scalar(node, place)
        self._above.pop()
        return value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Raw:
        mapping: dict[str, Raw] = {}
        for key_node, below in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, f"a key of {dotted(place) or 'the file'} must be one word")
            key = str(key_node.value)
            inner = (*place, key)
            if key in mapping:
                raise self._error(key_node, f"{dotted(inner)} is set twice; keep one")
            self._note(inner, key_node)
            mapping[key] = self.value(below, inner)
        return mapping

    def _sequence(self, node: yaml.SequenceNode, place: Place) -> Raw:
        items: list[Raw] = []
        for position, below in enumerate(node.value):
            inner = (*place, position)
            self._note(inner, below)
            items.append(self.value(below, inner))
        return items

    def _scalar(self, node: yaml.Node, place: Place) -> Raw:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text.replace("_", ""))
            case "float":
                return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
            case "str":
                return text
            case tag:
                raise self._error(node, f"{dotted(place)} has the tag {tag}; write a plain value")

    def _note(self, place: Place, node: yaml.Node) -> None:
        self._source.wrote(place, self._where(node))

    def _error(self, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError(f"{self._where(node)}: {message}")

    def _where(self, node: yaml.Node) -> str:
        return f"{self._source.name}:{_line(node)}" if self._lines else COMMAND_LINE
