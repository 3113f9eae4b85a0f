"""`windrow simulate`: the real scheduler on a virtual clock, alone or beside others."""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.cli.output import Column, Output
from windrow.config import load
from windrow.errors import ConfigError

if TYPE_CHECKING:
    from windrow.cli.journal_file import Write
    from windrow.sim.compare import Comparison
    from windrow.sim.config import SimConfig
    from windrow.sim.report import Report

DESCRIPTION = """\
Play the scheduler against modelled engines, environments, rewards and a trainer, on a virtual clock.
Reports how busy everything was, how many steps per second came out, how old the batches were, what was
wasted and why, whether short episodes were favoured, and what the run waited for.
With --compare, play other ways to schedule on the same workload beside it, and draw a picture.
"""

EPILOG = """\
examples:
  windrow simulate examples/sim/long_tail.yaml
  windrow simulate examples/sim/long_tail.yaml machine.train.staleness=2 slots=128
  windrow simulate examples/sim/long_tail.yaml --compare
  windrow simulate examples/sim/long_tail.yaml --compare --policies keep_1,barrier --json
  windrow simulate examples/sim/long_tail.yaml steps=5 --journal run.jsonl
"""

WELL_ENDED = ("done", "source ended")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings that replace those of the file"
    )
    parser.add_argument("--compare", action="store_true", help="play several policies on the same workload")
    parser.add_argument("--policies", metavar="A,B", help="with --compare: only these")
    parser.add_argument("--png", metavar="FILE", help="with --compare: where the picture goes (default CONFIG's name)")
    parser.add_argument("--no-png", action="store_true", help="with --compare: draw no picture")
    parser.add_argument(
        "--journal", metavar="FILE", help="without --compare: write every event down, for `windrow replay`"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.sim.config import SimConfig

    if args.journal is not None and args.compare:
        raise ConfigError("command line: --journal writes down one run; leave --compare out")
    if not args.compare and (args.policies is not None or args.png is not None or args.no_png):
        raise ConfigError("command line: --policies, --png and --no-png go with --compare")
    if args.png is not None and args.no_png:
        raise ConfigError("command line: --png and --no-png contradict each other")
    config = load(args.config, args.overrides, SimConfig).value.located(Path(args.config).parent)
    return _compare(args, config, out) if args.compare else _simulate(args, config, out)


def _place(option: str, name: str) -> Path:
    """A path that a file can be written to."""
    path = Path(name)
    if not name or path.is_dir():
        raise ConfigError(f"command line: {option} must name a file, got {name!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"command line: {option} {name}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"command line: {option} {name}: {path.parent} cannot be written to")
    return path


# one run


def _simulate(args: argparse.Namespace, config: "SimConfig", out: Output) -> int:
    from windrow.cli.journal_file import written

    journal = None if args.journal is None else _place("--journal", args.journal)
    began = time.perf_counter()
    with nullcontext() if journal is None else written(journal, config.machine) as record:
        report, code = _play(config, record, out)
    real_s = time.perf_counter() - began
    _tell(config, report, real_s, out)
    if journal is not None:
        out.say(f"journal: {journal}")
    out.result(
        {"config": args.config, "seed": config.seed, "real_s": real_s, "memory_mb": _memory_mb(), "report": report}
    )
    return code


def _play(config: "SimConfig", record: "Write | None", out: Output) -> tuple["Report", int]:
    """One run to its end or to Ctrl-C, and the exit code that it deserves."""
    from windrow.core.machine import Machine
    from windrow.sim.world import Progress, World

    world = World(config, Machine(config.machine), record=record)
    with out.progress("steps", config.steps) as at:

        def show(progress: Progress) -> None:
            at(progress.steps, f"{progress.now:,.0f} s virtual, {progress.events:,} events")

        try:
            report = world.run(show)
        except KeyboardInterrupt:
            return world.report(), 130
    return report, 0 if report.outcome in WELL_ENDED else 1


def _tell(config: "SimConfig", report: "Report", real_s: float, out: Output) -> None:
    waste = ", ".join(f"{cause} {share:.1%}" for cause, share in report.waste.items()) or "none"
    dropped = ", ".join(f"{count} {why}" for why, count in report.dropped.items()) or "none"
    lags = ", ".join(f"{lag}: {groups}" for lag, groups in report.staleness.items())
    waits = f"90 % below {report.batch_wait_p90_s:.3g} s, longest {report.batch_wait_max_s:.3g} s"
    rows = [
        ("ended", report.outcome),
        ("virtual time", f"{report.seconds:,.0f} s in {real_s:.1f} s of real time, {report.events:,} events"),
        ("steps", f"{report.steps}, one every {_per(report.steps_per_s)}"),
        ("trajectories", f"{report.trajectories}, {report.trajectories_per_s:.3g} per second"),
        ("slots busy", f"{report.slots_busy:.1%} of {config.slots}; environments {report.envs_busy:.1%}"),
        ("engines busy", f"{report.engines_busy:.1%}" if config.engines.count else "engines cost no time here"),
        ("trainer busy", f"{report.trainer_busy:.1%}"),
        ("batch waiting", f"mean {report.batch_wait_mean_s:.3g} s, {waits}"),
        ("staleness", f"mean {report.staleness_mean:.2f}, max {report.staleness_max} versions (groups by lag {lags})"),
        ("dropped groups", dropped),
        ("waste", f"{waste} (share of slot-seconds)"),
        ("length bias", f"{report.length_bias:+.2%} over {report.groups_settled} groups"),
        ("bottleneck", f"{report.bottleneck}: {report.because}"),
    ]
    out.table([Column("figure", "left"), Column("value", "left")], rows)


def _per(rate: float) -> str:
    return f"{1 / rate:.3g} s" if rate else "never"


def _memory_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# several


def _compare(args: argparse.Namespace, config: "SimConfig", out: Output) -> int:
    from windrow.sim.compare import POLICIES, compare, find, ignored_by_rivals, machine, pieces
    from windrow.sim.plot import draw

    png = None if args.no_png else _png_path(args)
    policies = POLICIES if args.policies is None else find(args.policies.split(","))
    total = pieces(config, policies)
    out.say(f"{len(policies)} policies × {config.seeds} seeds × {config.steps} steps of {args.config}")
    with out.progress("runs", total) as at:
        comparison = compare(config, policies, at)
    if not comparison.runs:
        raise ConfigError(next(iter(comparison.skipped.values()), "nothing was played"))
    whole = comparison.pieces == total
    if not whole:
        out.warn(f"stopped early: {comparison.pieces} of {total} runs are in these figures")
    for what, why in comparison.skipped.items():
        out.warn(f"{what} left out: {why}")
    ignored = ignored_by_rivals(config)
    if ignored:
        out.warn(f"the other schedulers play without {', '.join(ignored)}: they have less to do")
    failed = {run.policy: run.report.outcome for run in comparison.runs if run.report.outcome not in WELL_ENDED}
    for policy, outcome in failed.items():
        out.warn(f"{policy} did not come to its end: {outcome}")
    ours = {policy.name for policy in POLICIES if policy.make is machine}
    _tell_comparison(comparison, out)
    if png is not None:
        draw(comparison, ours, f"{Path(args.config).name}: the same workload, several schedulers", png)
        out.say(f"picture: {png}")
    out.result(_result(comparison, config, png))
    return (1 if failed else 0) if whole else 130


def _tell_comparison(comparison: "Comparison", out: Output) -> None:
    from windrow.sim.compare import POLICIES

    found = comparison.policies
    base = found.get("barrier")
    rows = [
        (
            name,
            f"{row.step_s:.1f}",
            f"{row.steps_per_s / base.steps_per_s:.2f}×" if base and base.steps_per_s else "–",
            f"{row.slots_busy:.1%}",
            f"{row.staleness_mean:.2f} / {row.staleness_max}",
            str(row.groups_dropped),
            ", ".join(f"{cause} {share:.1%}" for cause, share in row.waste.items()) or "none",
            f"{row.length_bias:+.1%}",
        )
        for name, row in found.items()
    ]
    columns = ["policy", "s per step", "vs barrier", "slots busy", "lag mean/max", "dropped", "waste", "length bias"]
    out.table(columns, rows, title="medians over seeds; maxima for lag max and dropped")
    for policy in POLICIES:
        if policy.name in found:
            out.say(f"  {policy.name:<13} {policy.what}")
    out.say()
    _tell_limits(comparison, out)
    out.say(f"{comparison.events_per_s:,.0f} events per CPU second, world included")


def _tell_limits(comparison: "Comparison", out: Output) -> None:
    """The figures that no scheduler can beat, and how near ours come to them."""
    from windrow.sim.verdicts import against_limits

    rows = [
        (line.what, f"{line.limit_s:.1f}", line.policy, "–" if line.ours_s is None else f"{line.ours_s:.1f}",
         "–" if line.ratio is None else f"{line.ratio:.3f}")
        for line in against_limits(comparison)
    ]  # fmt: skip
    if rows:
        words = Column("limit", "left"), Column("policy", "left")
        columns: list[Column | str] = [words[0], "s per step", words[1], "its s per step", "ratio"]
        out.table(columns, rows, title="limits")


def _png_path(args: argparse.Namespace) -> Path:
    """Where the picture goes; refused before anything is played if it cannot be drawn there."""
    from windrow.sim.plot import require_matplotlib

    if args.png is not None and not args.png.endswith(".png"):
        raise ConfigError(f"command line: --png must name a file that ends in .png, got {args.png!r}")
    require_matplotlib()
    return _place("--png", args.png or f"{Path(args.config).stem}.png")


def _result(comparison: "Comparison", config: "SimConfig", png: Path | None) -> dict[str, object]:
    from windrow.sim.verdicts import limits_as_json

    return {
        "limits": limits_as_json(comparison),
        "policies": comparison.policies,
        "events_per_s": comparison.events_per_s,
        "skipped": comparison.skipped,
        "seeds": config.seeds,
        "steps": config.steps,
        "png": png,
    }
