"""`windrow env`: list the shipped environments, check one for the usual mistakes, play one in the terminal."""

import argparse
import asyncio
import math
from typing import TYPE_CHECKING

import msgspec

from windrow.cli.output import Column, Output
from windrow.config.source import read
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean

if TYPE_CHECKING:
    from windrow.checking.rules import Finding
    from windrow.checking.settings import CheckSettings, Report

DESCRIPTION = """\
list   name the environments that come with windrow
check  play one with its own solution, without a plan and with strange words, and look for the usual mistakes
play   play one yourself

An environment is the name of a shipped one, or one of your own: path.py:Class or package.module:Class. A class has
start, step and close, or reset and step; an `async def rollout(task, policy)` does, and a function that makes one, too.
check exits with 1 if it finds an error, and with 2 if there is nothing to check.
"""

EPILOG = """\
examples:
  windrow env list
  windrow env check guess
  windrow env check guess --tasks 200 --json
  windrow env check examples/own_environment.py:Caesar
  windrow env check examples/own_environment.py:Caesar --args tries=5
  windrow env play guess --seed 3
"""

VERBS = ("list", "check", "play")
ONLY = {
    "check": ("tasks", "max_steps", "timeout", "reward_range"),
    "play": ("split",),
}
"""Options that belong to one verb."""
SHARED = ("seed", "args", "reward", "payload")
"""Options of both."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", metavar="list|check|play", help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a shipped environment, path.py:Class or module:Class")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the first task (default 0)")
    parser.add_argument(
        "--args", nargs="+", action="extend", metavar="KEY=VALUE", help="arguments of the environment's class"
    )
    parser.add_argument("--payload", metavar="JSON", help="payload of every task")
    parser.add_argument(
        "--reward", metavar="NAME", help="score with this reward: a shipped one or path.py:Class (default: its own)"
    )
    parser.add_argument("--tasks", type=int, metavar="N", help="check: held-out tasks that each policy plays (50)")
    parser.add_argument("--max-steps", type=int, metavar="N", help="check: longest episode that ends (500 turns)")
    parser.add_argument("--timeout", type=float, metavar="S", help="check: longest time for one call (10 s)")
    parser.add_argument(
        "--reward-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="check: worst score and full marks (0 1)"
    )
    parser.add_argument("--split", metavar="train|held_out", help="play: which part of the problems (train)")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.verb not in VERBS:
        raise ConfigError(f"command line: env cannot {args.verb}{did_you_mean(args.verb, VERBS)}")
    _refuse_strangers(args)
    if args.verb == "list":
        return _list(out)
    if args.name is None and args.args and "=" not in args.args[-1]:
        raise ConfigError(f"command line: {args.args[-1]} was taken for an argument; write it before --args")
    if args.name is None:
        raise ConfigError(f"command line: name an environment to {args.verb}, or see `windrow env list`")
    return _check(args, out) if args.verb == "check" else _play(args, out)


def _refuse_strangers(args: argparse.Namespace) -> None:
    """Options that would change nothing."""
    allowed = () if args.verb == "list" else (*SHARED, *ONLY[args.verb])
    given = {name: value for name, value in vars(args).items() if value is not None}
    for name in (*SHARED, *ONLY["check"], *ONLY["play"]):
        if name in given and name not in allowed:
            raise ConfigError(f"command line: --{name.replace('_', '-')} has no meaning for env {args.verb}")
    if args.verb == "list" and args.name is not None:
        raise ConfigError(f"command line: env list takes no name, got {args.name!r}")


def _list(out: Output) -> int:
    from windrow.envs.shipped import SHIPPED

    columns = [Column(name, "left") for name in ("name", "kind", "tag", "about")]
    out.table(columns, [(each.name, each.kind, each.tag, each.about) for each in SHIPPED.values()])
    rows = [{"name": each.name, "tag": each.tag, "kind": each.kind} for each in SHIPPED.values()]
    out.result({"environments": rows})
    return 0


# check


def _check(args: argparse.Namespace, out: Output) -> int:
    from windrow.checking.examining import expected
    from windrow.checking.messages import Job
    from windrow.checking.parent import INTERRUPTED, check

    job = Job(target=args.name, args=_arguments(args), reward=args.reward or "", settings=_settings(args))
    with out.progress("episodes", expected(job.settings)) as at:
        report = check(job, at)
    _tell(report, out)
    out.result(report)
    if report.ended == INTERRUPTED:
        out.warn("interrupted: only what was found until then is told")
        return 130
    return 0 if report.ok else 1


def _arguments(args: argparse.Namespace) -> dict[str, object]:
    return dict(read(None, args.args or []).tree)


def _settings(args: argparse.Namespace) -> "CheckSettings":
    from windrow.checking.settings import CheckSettings
    from windrow.types import checked

    _refuse_nonsense(args)
    low, high = args.reward_range or (0.0, 1.0)
    given = {"tasks": args.tasks, "seed": args.seed, "max_steps": args.max_steps, "timeout_s": args.timeout}
    try:
        return checked(
            CheckSettings(
                lowest=low,
                highest=high,
                payload=_payload(args),
                **{name: value for name, value in given.items() if value is not None},
            )
        )
    except ValueError as error:
        raise ConfigError(f"command line: {error}") from None


def _refuse_nonsense(args: argparse.Namespace) -> None:
    for option, count in {"--tasks": args.tasks, "--max-steps": args.max_steps}.items():
        if count is not None and count < 1:
            raise ConfigError(f"command line: {option} must be 1 or more, got {count}")
    if args.timeout is not None and not 0 < args.timeout < math.inf:
        raise ConfigError(f"command line: --timeout must be a number of seconds above 0, got {args.timeout:g}")


def _payload(args: argparse.Namespace) -> object:
    if args.payload is None:
        return None
    try:
        return msgspec.json.decode(args.payload)
    except msgspec.DecodeError as error:
        raise ConfigError(f"command line: --payload {args.payload} is not JSON: {error}") from None


def _tell(report: "Report", out: Output) -> None:
    for finding in report.findings:
        out.say(_words(finding))
        out.say(f"    {finding.way_out}")
    if report.findings:
        out.say()
    errors = sum(finding.severity == "error" for finding in report.findings)
    rows = [
        ("solve", _score(report.solve_score)),
        ("random", _score(report.random_score)),
        ("played", f"{report.tasks} held-out tasks, {report.episodes} episodes in {report.seconds:.1f} s"),
        ("found", f"{errors} errors, {len(report.findings) - errors} warnings"),
        ("verdict", "ok" if report.ok else f"not ok{'' if report.ended == 'done' else f'; {report.ended}'}"),
    ]
    out.table([Column(report.name, "left"), Column("", "left")], rows)


def _words(finding: "Finding") -> str:
    met = f", {finding.count} times" if finding.count > 1 else ""
    seed = "" if finding.task is None else f"seed {finding.task}"
    turn = "" if finding.turn is None else f", turn {finding.turn}"
    where = f" ({seed}{turn}{met})" if seed else f" ({met.removeprefix(', ')})" if met else ""
    return f"{finding.severity} {finding.rule}: {finding.message}{where}"


def _score(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


# play


def _play(args: argparse.Namespace, out: Output) -> int:
    from windrow.checking.loading import load
    from windrow.cli.env_play import Session
    from windrow.trajectory import Task

    if args.split not in (None, "train", "held_out"):
        raise ConfigError(f"command line: --split must be train or held_out, got {args.split!r}")
    subject = load(args.name, _arguments(args), args.reward or "")
    task = Task(ordinal=0, seed=args.seed or 0, payload=_payload(args), split=args.split or "train")
    with asyncio.Runner() as runner:
        return Session(subject, task, runner, out).play()
