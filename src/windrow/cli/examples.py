"""`windrow examples`: what there is to try, and with which command."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from windrow.cli.output import Column, Output
from windrow.config import top_keys
from windrow.errors import ConfigError

DESCRIPTION = """\
List the examples with the command that runs each of them.
"""

EPILOG = """\
examples:
  windrow examples
  windrow examples --json
"""

FOLDER = "examples"
COMMANDS = {"pipeline": "windrow train", "slots": "windrow simulate"}
"""By a setting that only files of that command have; others are for `windrow rollout`."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=None, help=f"where to look; default {FOLDER}")


def run(args: argparse.Namespace, out: Output) -> int:
    found = [*_examples(_folder(args.folder))]
    rows = [(each["command"], each["what"]) for each in found]
    out.table([Column("command", "left"), Column("what it shows", "left")], rows)
    out.result({"examples": found})
    return 0


def _folder(named: str | None) -> Path:
    """The folder that was named, the one here, or the one beside the sources."""
    beside = Path(__file__).resolve().parents[3] / FOLDER
    for path in [Path(named)] if named else [Path(FOLDER), beside]:
        if path.is_dir():
            return path
    raise ConfigError(f"there is no folder {named or FOLDER} here; examples come with the sources of the project")


def _examples(folder: Path) -> Iterator[dict[str, str]]:
    for path in sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
        keys = top_keys(path)
        command = next((command for key, command in COMMANDS.items() if key in keys), "windrow rollout")
        yield {"path": str(path), "command": f"{command} {path}", "what": _first_comment(path)}
    for path in sorted(folder.rglob("*.py")):
        yield {"path": str(path), "command": f"python {path}", "what": _first_docstring(path)}


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _first_docstring(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.strip('"') if first.startswith('"""') else ""
