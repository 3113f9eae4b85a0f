"""`windrow replay`: the state of the scheduler at any moment of a journal."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windrow.cli.output import Column, Output
from windrow.errors import ConfigError
from windrow.types import Reason

DESCRIPTION = """\
Rebuild the scheduler from a journal, up to its end or to one event, check every promise, and show the ledger.
"""

EPILOG = """\
examples:
  windrow simulate examples/sim/long_tail.yaml steps=5 --journal run.jsonl
  windrow replay run.jsonl
  windrow replay run.jsonl --until 500 --check
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="a file that `simulate --journal` wrote")
    parser.add_argument("--until", metavar="N", type=int, help="stop after so many events")
    parser.add_argument(
        "--check", action="store_true", help="check the promises after every event, not only at the end"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.core.journal import Entry, replay
    from windrow.core.machine import Machine

    if args.until is not None and args.until < 0:
        raise ConfigError(f"command line: --until must be 0 or more, got {args.until}")
    events = 0

    def look(machine: Machine, _entry: Entry, _commands: object) -> None:
        nonlocal events
        events += 1
        if args.check:
            machine.check()

    with about(args.journal):
        machine = replay(read_lines(args.journal), until=args.until, look=look)
    machine.check()
    out.say(f"{events:,} events replayed to {machine.now:,.3f} s; version {machine.version}; all promises hold")
    rows = [
        (mode, what, account.admitted, account.trained, account.delivered, account.alive, _by_reason(account.dropped))
        for mode, ledger in machine.ledgers.items()
        for what, account in (("groups", ledger.groups), ("attempts", ledger.attempts))
        if account.admitted
    ]
    words = Column("what", "left"), Column("dropped", "left")
    columns: list[Column | str] = ["mode", words[0], "admitted", "trained", "delivered", "alive", words[1]]
    out.table(columns, rows)
    out.result(
        {
            "events": events,
            "now": machine.now,
            "version": machine.version,
            "late": machine.late,
            "halted": machine.halted,
            "ledger": machine.ledgers,
        }
    )
    return 0


@contextmanager
def about(path: str) -> Iterator[None]:
    """Errors name the file that they are about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_lines(path: str) -> Iterator[bytes]:
    """The lines of a journal, with a clear error if there is no such file."""
    if not Path(path).is_file():
        raise ConfigError(f"no such journal; `windrow simulate CONFIG --journal {path}` writes one")
    with Path(path).open("rb") as file:
        yield from file


def _by_reason(dropped: dict[Reason, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in dropped.items()) or "none"
