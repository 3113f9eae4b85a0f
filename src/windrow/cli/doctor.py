"""`windrow doctor`: what would be in the way here, and what to do about it."""

import argparse
from typing import TYPE_CHECKING

from windrow.cli.output import Column, Output
from windrow.errors import ConfigError

if TYPE_CHECKING:
    from windrow.doctor.findings import Finding

DESCRIPTION = """\
Look at this machine, its software, its sandbox and its limits, and at a Ray cluster if --address names one. Each check
says what it found and what to do. Nothing is changed, and nobody else is asked. Ends with 1 if anything is bad.

With a training file its chain is tried instead: weights go from the trainer to an engine, which plays some episodes,
and an update with a learning rate of 0 is made on them. Do all weights stay as they are, and do trainer and engine
agree about the tokens? It takes as long as a model takes to load and to play a few episodes, on this machine alone.
"""

EPILOG = """\
examples:
  windrow doctor
  windrow doctor --json
  windrow doctor examples/demo.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a file for windrow train, whose chain is tried")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings that replace those of the file"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS", help="a Ray cluster to look at: auto, or HOST:PORT; none is started"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    found = _of_machine(args.address) if args.config is None else _of_chain(args, out)
    is_well = all(finding.state != "bad" for finding in found)
    rows = [(finding.name, finding.state, finding.found, finding.advice) for finding in found]
    out.table([Column(name, "left") for name in ("check", "state", "found", "what to do")], rows)
    bad = [finding.name for finding in found if finding.state == "bad"]
    out.say("nothing is in the way" if is_well else f"in the way: {', '.join(bad)}")
    out.result({"checks": found, "ok": is_well})
    return 0 if is_well else 1


def _of_machine(address: str | None) -> "list[Finding]":
    from windrow.doctor import cluster, machine, software

    return [*software.findings(), *machine.findings(), *cluster.findings(address)]


def _of_chain(args: argparse.Namespace, out: Output) -> "list[Finding]":
    if args.address is not None:
        raise ConfigError("command line: --address looks at a cluster, CONFIG at a file; give one of them")
    out.say(f"windrow doctor: trying the chain of {args.config}")
    from transformers.utils import logging as transformers_logging

    from windrow.doctor import chain
    from windrow.pipelines.config import read

    file = read(args.config, args.overrides).value
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
    return chain.findings(file)
