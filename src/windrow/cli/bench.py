"""`windrow bench`: measure, each thing beside its alternative, in one run."""

import argparse
import importlib
from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from windrow.bench import Result, Say
from windrow.cli.output import Column, Output
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean

DESCRIPTION = """\
Measure a part of windrow beside an alternative, in one run, as medians of alternating rounds. Time is CPU time
for batch, core and engine, which do not wait, and real time for the others.
"""

EPILOG = """\
examples:
  windrow bench --list
  windrow bench core
  windrow bench core --json
  windrow bench router
  windrow bench ray --quick
  windrow bench sandbox --json
  windrow bench async --quick
"""

BENCHMARKS = {
    "async": "windrow.bench.asynchronous",
    "batch": "windrow.bench.batch",
    "core": "windrow.bench.core",
    "engine": "windrow.bench.engine",
    "ray": "windrow.bench.on_ray",
    "router": "windrow.bench.router",
    "sandbox": "windrow.bench.sandbox",
    "trl": "windrow.bench.trl",
}


class Benchmark(Protocol):
    """What the module of a benchmark has."""

    WHAT: str

    def run(self, say: Say) -> list[Result]:
        """Measure."""


@runtime_checkable
class Quick(Protocol):
    """A benchmark that has a short form."""

    def run_quick(self, say: Say) -> list[Result]:
        """Measure less of the same."""


@runtime_checkable
class Learning(Protocol):
    """A benchmark that can train for a while to see what is learnt."""

    def run_learning(self, say: Say) -> list[Result]:
        """Train and compare."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one; see --list")
    parser.add_argument("--list", action="store_true", help="name all benchmarks")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="the short form, where there is one")
    form.add_argument("--learning", action="store_true", help="async: train a tiny model in both ways; takes minutes")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.list:
        rows = [{"name": name, "what": _find(name).WHAT} for name in BENCHMARKS]
        out.table([Column("name", "left"), Column("what", "left")], [[*row.values()] for row in rows])
        out.result({"benchmarks": rows})
        return 0
    if args.name is None:
        raise ConfigError(f"command line: name a benchmark{did_you_mean('', BENCHMARKS)}")
    results = _form(args)(out.say)
    columns: list[Column | str] = [Column("what", "left"), "ours", "alternative", "ratio", Column("unit", "left")]
    out.table(columns, [(r.what, r.ours, r.alternative, f"{r.ratio:.2f}", r.unit) for r in results])
    out.result({"name": args.name, "results": results})
    return 0


def _form(args: argparse.Namespace) -> Callable[[Say], list[Result]]:
    """What is to be run of a benchmark."""
    found: object = _find(args.name)
    if args.quick:
        if not isinstance(found, Quick):
            raise ConfigError(f"command line: {args.name} has no short form; leave --quick out")
        return found.run_quick
    if args.learning:
        if not isinstance(found, Learning):
            raise ConfigError(f"command line: {args.name} trains nothing; leave --learning out")
        return found.run_learning
    return _find(args.name).run


def _find(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise ConfigError(f"command line: unknown benchmark {name}{did_you_mean(name, BENCHMARKS)}")
    return cast("Benchmark", importlib.import_module(BENCHMARKS[name]))
