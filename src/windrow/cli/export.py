"""`windrow export`: the model of a run, in the form that others load."""

import argparse
from typing import TYPE_CHECKING

from windrow.cli.output import Output
from windrow.errors import ConfigError

if TYPE_CHECKING:
    from windrow.store.checkpoints import Which

DESCRIPTION = """\
Copy the model of a checkpoint out of a run: a folder in the format of Hugging Face, with its tokenizer, which
`from_pretrained` loads. Nothing is changed in the run, which may go on meanwhile.
"""

EPILOG = """\
examples:
  windrow export RUN --to model
  windrow export RUN --to best-model --step best
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name in runs/")
    parser.add_argument("--to", metavar="DIR", required=True, help="where to; a folder that is new or empty")
    parser.add_argument(
        "--step",
        metavar="N",
        default="latest",
        help="which checkpoint: a step, best, or latest (what is taken if none)",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.store.export import export
    from windrow.store.run import RunFolder, find_run

    which = which_checkpoint(args.step)
    folder = RunFolder.read(find_run(args.run))
    checkpoint = export(folder, args.to, which)
    score = "" if checkpoint.score is None else f", score {checkpoint.score:.3g}"
    out.say(f"{args.to} has the model of step {checkpoint.step}{score}, from {folder.path}")
    out.result({"run": folder.path, "step": checkpoint.step, "score": checkpoint.score, "to": args.to})
    return 0


def which_checkpoint(text: str) -> "Which":
    """What `--step` says."""
    match text:
        case "latest" | "best":
            return text
        case _ if text.isascii() and text.isdecimal():
            return int(text)
        case _:
            raise ConfigError(f"command line: --step must be a step, best or latest, got {text!r}")
