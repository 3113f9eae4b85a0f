"""`windrow explain`: every setting of a configuration, what it means, its value and where that came from."""

import argparse
import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from windrow.cli.output import Output
from windrow.config import Loaded, Setting, describe, load, top_keys, top_value
from windrow.config.settings import REQUIRED
from windrow.errors import ConfigError

DESCRIPTION = """\
List every setting with its value, where that came from, its default, and what it means.
Without CONFIG, list what could be set, with the defaults. Which command the settings are for is seen from
CONFIG, unless --for says it.
"""

EPILOG = """\
examples:
  windrow explain
  windrow explain examples/sim/long_tail.yaml
  windrow explain examples/sim/long_tail.yaml slots=128 --json
  windrow explain examples/rollout/guess.yaml
  windrow explain --for rollout
  windrow explain --for "train agentic"
"""

MODELS = {
    "simulate": "windrow.sim.config.SimConfig",
    "rollout": "windrow.rollout.assembly.RolloutFile",
    "train agentic": "windrow.pipelines.config.Agentic",
    "train rlvr": "windrow.pipelines.config.Rlvr",
    "train sft": "windrow.pipelines.config.Cloning",
}
"""What each command reads."""

Row = dict[str, object]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a YAML file")
    parser.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="settings that replace those of the file",
    )
    parser.add_argument("--for", dest="command", choices=[*MODELS], help="the command that reads the settings")


def run(args: argparse.Namespace, out: Output) -> int:
    given = [] if args.config is None else [args.config, *args.overrides]
    models = {name: _model(name) for name in ([args.command] if args.command else MODELS)}
    files = [Path(argument) for argument in given if "=" not in argument]
    explain(given, _fitting(files[:1], models), out)
    return 0


def _model(command: str) -> type[msgspec.Struct]:
    module, _, name = MODELS[command].rpartition(".")
    return cast("type[msgspec.Struct]", vars(importlib.import_module(module))[name])


def _fitting(files: list[Path], models: dict[str, type[msgspec.Struct]]) -> type[msgspec.Struct]:
    """The model that knows most of what stands at the top of a file; the first one if nothing is known."""
    if not files:
        return next(iter(models.values()))
    written = set(top_keys(files[0]))
    named = models.get(f"train {top_value(files[0], [], 'pipeline')}")
    if named is not None:
        return named
    return max(models.values(), key=lambda model: len(written.intersection(model.__struct_fields__)))


def explain(given: Sequence[str], model: type[msgspec.Struct], out: Output) -> None:
    """Explain this model as these arguments of the command line make it."""
    files = [argument for argument in given if "=" not in argument]
    overrides = [argument for argument in given if "=" in argument]
    if len(files) > 1:
        raise ConfigError(f"command line: one CONFIG at most, got {' and '.join(files)}")
    if given:
        rows = _rows_of_value(load(files[0] if files else None, overrides, model), model)
    else:
        rows = [_row(setting, setting.default, _origin(setting)) for setting in describe(model)]
    for section, members in itertools.groupby(rows, key=_section):
        out.say(f"# {section}")
        for row in members:
            out.say(_line(row))
        out.say()
    out.result({"settings": rows})


def _rows_of_value(loaded: Loaded[msgspec.Struct], model: type[msgspec.Struct]) -> list[Row]:
    settings = describe(model, loaded.value)
    return [_row(setting, setting.value, loaded.origins[setting.key]) for setting in settings]


def _origin(setting: Setting) -> str:
    return "required" if setting.default is REQUIRED else "default"


def _row(setting: Setting, value: object, origin: str) -> Row:
    return {
        "key": setting.key,
        "value": None if value is REQUIRED else value,
        "origin": origin,
        "kind": setting.kind,
        "default": None if setting.default is REQUIRED else setting.default,
        "required": setting.default is REQUIRED,
        "description": setting.description,
        "when": setting.when,
    }


def _section(row: Row) -> str:
    section, dot, _ = str(row["key"]).partition(".")
    return section if dot else "general"


def _line(row: Row) -> str:
    """Two lines: what it is set to and why, then what it means."""
    origin = row["origin"]
    if origin not in ("default", "required"):
        origin = f"{origin}; {'required' if row['required'] else 'default ' + _text(row['default'])}"
    value = "?" if row["origin"] == "required" else _text(row["value"])
    when = f" (with {row['when']})" if row["when"] else ""
    meaning = "; ".join(str(part) for part in (row["description"], row["kind"]) if part)
    return f"{row['key']}: {value}  [{origin}]\n    {meaning}{when}"


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case float():
            return f"{value:g}"
        case _:
            return msgspec.json.encode(value).decode()
