"""The entrance: finds the subcommand, runs it, turns errors into one line and an exit code.

Promises:
- a subcommand's module is imported only when that subcommand is used, so `windrow --help` is quick;
- with `--json` standard output holds exactly one JSON object, on its last line, and nothing else;
- exit codes: 0 done, 1 failure, 2 a configuration, an input or a command line that cannot work,
  130 interrupted, 143 ended by SIGTERM after what there is was saved; an error of ours is one line on standard error,
  without a traceback.

It knows nothing about what the commands do.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import NoReturn, Protocol, cast

import windrow
from windrow.cli.output import Output
from windrow.errors import ConfigError, InternalError, WindrowError
from windrow.nearest import did_you_mean

DONE = 0
FAILED = 1
UNUSABLE = 2
INTERRUPTED = 130


class Command(Protocol):
    """What the module of a subcommand has."""

    DESCRIPTION: str
    """What the command does, in a few sentences; the top of its --help."""
    EPILOG: str
    """Examples; the bottom of its --help."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; `--help` and `--json` are there already."""

    def run(self, args: argparse.Namespace, out: Output) -> int:
        """Do it and return an exit code; may catch KeyboardInterrupt to print what there is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a subcommand lives, and its line in `windrow --help`."""

    module: str
    help: str


COMMANDS = {
    "train": Entry("windrow.cli.train", "train a policy, or go on with a run that was stopped"),
    "rollout": Entry("windrow.cli.rollout", "collect batches with real engines and environments, without training"),
    "runs": Entry("windrow.cli.runs", "list runs: how far they came, how good they are"),
    "export": Entry("windrow.cli.export", "copy the model of a run to where others can load it"),
    "plan": Entry("windrow.cli.plan", "say which devices each role of a training should have, and why"),
    "doctor": Entry("windrow.cli.doctor", "look for what would be in the way here, and say what to do about it"),
    "simulate": Entry("windrow.cli.simulate", "play the scheduler against modelled engines and environments"),
    "env": Entry("windrow.cli.env", "list environments, check one for the usual mistakes, play one"),
    "examples": Entry("windrow.cli.examples", "list the examples, and the command that runs each"),
    "explain": Entry("windrow.cli.explain", "list every setting, its meaning, its value and where that is from"),
    "replay": Entry("windrow.cli.replay", "rebuild the scheduler from a journal and check its promises"),
    "story": Entry("windrow.cli.story", "tell what happened to one group or attempt"),
    "bench": Entry("windrow.cli.bench", "measure speed against an alternative"),
}


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, options in full, and the nearest option suggested."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """Options and positional arguments in any order; whatever is left over is an error."""
        args, rest = self.parse_known_intermixed_args(list(argv))
        if rest:
            what = "option" if rest[0].startswith("-") else "argument"
            name = rest[0].partition("=")[0]
            self.error(f"unknown {what} {rest[0]}{did_you_mean(name, self._option_string_actions)}")
        return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run `windrow` with these arguments and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow terminal encoding is no reason to stop
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as stop:  # argparse leaves this way, after --help too
        return stop.code if isinstance(stop.code, int) else DONE
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
        return FAILED
    except ConfigError as error:
        _complain(f"error: {error}")
        return UNUSABLE
    except WindrowError as error:
        _complain(f"error: {error}")
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise
        _complain(f"error: {error.filename}: {(error.strerror or 'cannot be used').lower()}")
        return FAILED


def _run(argv: list[str]) -> int:
    top = _top_parser()
    args = top.parse_args(argv)
    if args.command is None:
        top.print_help(sys.stderr)
        return UNUSABLE
    name: str = args.command
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}{did_you_mean(name, list(COMMANDS))}")
    return _run_command(name, args.rest)


def _top_parser() -> Parser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {entry.help}" for name, entry in COMMANDS.items()]
    parser = Parser(
        "windrow",
        "A rollout scheduler for reinforcement learning of language models that act.",
        "\n".join(["commands:", *lines, "", "windrow COMMAND --help explains a command."]),
    )
    parser.add_argument("--version", action="version", version=f"windrow {windrow.__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of those below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the command")
    return parser


def _run_command(name: str, argv: list[str]) -> int:
    command = cast("Command", importlib.import_module(COMMANDS[name].module))
    parser = Parser(f"windrow {name}", command.DESCRIPTION, command.EPILOG)
    command.configure(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object as the last line of standard output, all else on standard error",
    )
    args = parser.parse_all(argv)
    out = Output(json=args.json)
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        code = command.run(args, out)
    if args.json and code == DONE and not out.has_result:
        raise InternalError(f"windrow {name} ended without a result for --json")
    out.finish()
    return code


def _complain(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"windrow: {text}\n")


def _let_go_of_stdout() -> None:
    """Point standard output at nothing, so that the flush at exit does not fail a second time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
