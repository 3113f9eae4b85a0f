"""`windrow plan`: which devices each role of a training should have, and why."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.cli.output import Column, Output
from windrow.errors import ConfigError

if TYPE_CHECKING:
    from windrow.pipelines.planning import Reinforced
    from windrow.plan.planner import Candidate, Plan

DESCRIPTION = """\
Compare the ways to share devices between generation and training: all take turns (colocated), each has its own
(disjoint), or training borrows some of generation's (overlapping). Each is played for a few steps by the real
scheduler in the simulator; the fastest is chosen, of equally fast ones the simplest. A layout that CONFIG says is
checked, and the others are shown beside it. Nothing is trained and no device is touched.
"""

EPILOG = """\
examples:
  windrow plan examples/demo.yaml devices=2
  windrow plan examples/demo.yaml devices=2 roles.actor_infer.device_mapping=auto roles.actor_train.device_mapping=auto
  windrow plan examples/demo.yaml devices=2 --from RUN --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file for windrow train")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings that replace those of the file"
    )
    parser.add_argument("--from", dest="run", metavar="RUN", help="a former run, whose metrics replace estimates")
    parser.add_argument(
        "--device-gb", type=float, metavar="GB", help="memory of one device, where it cannot be asked for it"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.pipelines.config import Cloning, read
    from windrow.pipelines.planning import question_of
    from windrow.plan.layouts import candidates
    from windrow.plan.planner import make_plan
    from windrow.store.run import find_run

    if args.device_gb is not None and not args.device_gb > 0:
        raise ConfigError(f"command line: --device-gb must be above 0, got {args.device_gb:g}")
    file = read(args.config, args.overrides).value
    question = question_of(file, None if args.run is None else Path(find_run(args.run)), args.device_gb)
    assert not isinstance(file, Cloning), "refused above"
    with out.progress("layouts", len(candidates(question))) as at:
        plan = make_plan(question, at)
    tell(file, plan, out)
    out.result(as_json(file, plan))
    return 0


def tell(file: "Reinforced", plan: "Plan", out: Output) -> None:
    """The plan for people."""
    from windrow.cluster.mapping import spelled
    from windrow.pipelines.planning import roles_of

    roles = [(name, spelled(devices) or "apart") for name, devices in roles_of(file, plan.layout).items()]
    out.table(
        [Column("role", "left"), Column("devices", "left")], roles, title=f"{plan.layout.kind}, {plan.devices} devices"
    )
    rows = [_row(each) for each in plan.candidates]
    words = [Column(name, "left") for name in ("layout", "generation", "training")]
    out.table([*words, "s per step", "in use", "lag", Column("verdict", "left")], rows, title="layouts")
    figures = [
        (figure.name, f"{figure.value:.3g} {figure.unit}".strip(), figure.origin, figure.how) for figure in plan.figures
    ]
    names = ("figure", "value", "origin", "how")
    out.table([Column(name, "left") for name in names], figures, title="what went in")
    for reason in plan.reasons:
        out.say(reason)


def as_json(file: "Reinforced", plan: "Plan") -> dict[str, object]:
    """The plan for programs."""
    from windrow.pipelines.planning import roles_of

    return {
        "layout": plan.layout.kind,
        "devices": plan.devices,
        "roles": {name: [*devices] for name, devices in roles_of(file, plan.layout).items()},
        "candidates": [_candidate(each) for each in plan.candidates],
        "reasons": plan.reasons,
        "figures": plan.figures,
    }


def _row(each: "Candidate") -> tuple[object, ...]:
    from windrow.cluster.mapping import spelled

    trial = each.trial
    return (
        each.layout.kind,
        spelled(each.layout.infer),
        spelled(each.layout.train) or "apart",
        None if trial is None else trial.step_s,
        None if trial is None else f"{trial.utilisation:.0%}",
        None if trial is None else trial.lag,
        f"{each.verdict}: {each.why}",
    )


def _candidate(each: "Candidate") -> dict[str, object]:
    trial = each.trial
    return {
        "layout": each.layout.kind,
        "infer": each.layout.infer,
        "train": each.layout.train,
        "seconds_per_step": None if trial is None else trial.step_s,
        "utilisation": None if trial is None else trial.utilisation,
        "lag": None if trial is None else trial.lag,
        "waits_for": None if trial is None else trial.waits_for,
        "verdict": each.verdict,
        "why": each.why,
    }
