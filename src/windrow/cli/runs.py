"""`windrow runs`: which runs there are, how far they came, how good they are."""

import argparse
import time
from pathlib import Path

from windrow.cli.output import Column, Output
from windrow.errors import ConfigError

DESCRIPTION = """\
List the runs in a folder: whether each is running, finished or stopped (it can be resumed), its last step, the
score of its newest checkpoint and of its best one.
"""

EPILOG = """\
examples:
  windrow runs
  windrow runs runs --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="where the runs are (runs)")


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.store.listing import list_runs

    root = Path(args.folder)
    if not root.is_dir():
        raise ConfigError(f"there is no folder {root}; windrow train CONFIG begins a run")
    found = list_runs(root)
    rows = [
        (
            Path(run.run).name,
            run.state or "damaged",
            run.step,
            run.checkpoint,
            run.score,
            run.best,
            "–" if run.created_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created_at)),
        )
        for run in found
    ]
    if rows:
        out.table(["run", Column("state", "left"), "step", "checkpoint", "score", "best", "begun"], rows)
    else:
        out.say(f"no runs in {root}")
    for run in found:
        if run.trouble:
            out.warn(run.trouble)
    out.result({"runs": found})
    return 0
