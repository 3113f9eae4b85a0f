"""`windrow doctor`: what would be in the way here, and what to do about it."""

import argparse

from windrow.cli.output import Column, Output

DESCRIPTION = """\
Look at this machine, its software, its sandbox and its limits, and at a Ray cluster if --address names one. Each check
says what it found and what to do. Nothing is changed, and nobody else is asked. Ends with 1 if anything is bad.
"""

EPILOG = """\
examples:
  windrow doctor
  windrow doctor --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="ADDRESS", help="a Ray cluster to look at: auto, or HOST:PORT; none is started"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.doctor import cluster, machine, software

    found = [*software.findings(), *machine.findings(), *cluster.findings(args.address)]
    is_well = all(finding.state != "bad" for finding in found)
    rows = [(finding.name, finding.state, finding.found, finding.advice) for finding in found]
    out.table([Column(name, "left") for name in ("check", "state", "found", "what to do")], rows)
    bad = [finding.name for finding in found if finding.state == "bad"]
    out.say("nothing is in the way" if is_well else f"in the way: {', '.join(bad)}")
    out.result({"checks": found, "ok": is_well})
    return 0 if is_well else 1
