"""`windrow story`: what happened to one group or attempt, and why."""

import argparse
import re

from windrow.cli.output import Output
from windrow.cli.replay import about, read_lines
from windrow.errors import ConfigError

DESCRIPTION = """\
Tell the story of one group (g17) or one attempt (g17.a3) from a journal: when it was granted, to whom, under
which weights, how it ended, and what became of it.
"""

EPILOG = """\
examples:
  windrow simulate examples/sim/long_tail.yaml steps=5 --journal run.jsonl
  windrow story run.jsonl g17
  windrow story run.jsonl g17.a3
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="a file that `simulate --journal` wrote")
    parser.add_argument("id", metavar="ID", help="a group (g17) or an attempt (g17.a3)")


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.core.commands import AnyCommand
    from windrow.core.journal import Entry, replay
    from windrow.core.machine import Machine
    from windrow.core.stories import lines

    found = re.fullmatch(r"g(\d+)(\.a\d+)?", args.id)
    if found is None:
        raise ConfigError(f"command line: ID must be a group like g17 or an attempt like g17.a3, got {args.id!r}")
    number, attempt = int(found[1]), found[2] or ""
    told: list[str] = []

    def look(_machine: Machine, entry: Entry, commands: list[AnyCommand]) -> None:
        told.extend(lines(entry.event, commands, entry.now, number))

    with about(args.journal):
        machine = replay(read_lines(args.journal), look=look)
    name = re.compile(rf"\b{re.escape(args.id)}\b")
    if not any(name.search(text) for text in told):
        raise ConfigError(f"{args.journal}: nothing about {args.id}; groups and attempts are counted from 0")
    if attempt:
        told = [text for text in told if name.search(text) or f" g{number} " in text]
    for text in told:
        out.say(text)
    ending = machine.story(number, int(attempt[2:]) if attempt else None)
    out.say(ending)
    out.result({"id": args.id, "story": told, "now": ending})
    return 0
