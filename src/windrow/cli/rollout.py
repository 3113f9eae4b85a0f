"""`windrow rollout`: collect batches with any configuration, without training on them."""

import argparse
import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.cli.output import Column, Output, Report
from windrow.config import load

if TYPE_CHECKING:
    from windrow.core.ledger import Account, Ledger
    from windrow.protocol import DataProto
    from windrow.rollout.assembly import RolloutFile
    from windrow.rollout.scheduler import RolloutScheduler

DESCRIPTION = """\
Play episodes with real engines and environments and collect them in batches; nothing is trained.
Reports what was collected, how fast, and what became of every attempt; fails if the books do not balance.
"""

EPILOG = """\
examples:
  windrow rollout examples/rollout/guess.yaml
  windrow rollout examples/rollout/guess.yaml batches=3 --json
  windrow rollout examples/rollout/scripted.yaml rollout.staleness=1
"""


class Collected:
    """What came in."""

    def __init__(self) -> None:
        self.batches = 0
        self.trajectories = 0
        self.groups = 0
        self.tokens = 0
        self.seconds = 0.0
        self.ended = ""
        self.metrics: dict[str, float] = {}

    def add(self, batch: "DataProto") -> None:
        """One batch more."""
        tensors = batch.batch
        assert tensors is not None
        self.batches += 1
        self.trajectories += len(tensors["traj_id"].unique())
        self.groups += len(tensors["traj_group_id"].unique())
        self.tokens += int(tensors["response_mask"].sum())
        self.metrics = batch.meta_info["metrics"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings that replace those of the file"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    from windrow.rollout.assembly import RolloutFile, make_cluster
    from windrow.rollout.locating import located
    from windrow.rollout.scheduler import RolloutScheduler

    file = load(args.config, args.overrides, RolloutFile).value
    cluster = make_cluster(file)
    config = located(file.rollout, Path(args.config).parent)
    scheduler = RolloutScheduler(config, config.train_env_manager, cluster.resource_manager, cluster, "train")
    count = len(cluster.workers)
    out.say(
        f"{count} engine{'s' if count > 1 else ''}, {config.train_env_manager.slots} episodes at once"
    )  # models are made here, where Ctrl-C is heard at once
    return asyncio.run(_collect(scheduler, file, out))


async def _collect(scheduler: "RolloutScheduler", file: "RolloutFile", out: Output) -> int:
    collected = Collected()
    code = 0
    try:
        with out.progress("batches", file.batches) as at:
            await _fill(scheduler, file, collected, at)
    except asyncio.CancelledError:
        out.warn(f"stopped early: {collected.batches} of {file.batches} batches are in these figures")
        code = 130
    finally:
        await scheduler.shutdown()
    return max(code, _tell(scheduler, collected, out))


async def _fill(scheduler: "RolloutScheduler", file: "RolloutFile", collected: Collected, at: Report) -> None:
    from windrow.pipelines.rollout_only import collect

    began = time.perf_counter()
    async for batch in collect(scheduler, file.batches, file.rollout.rollout_batch_size):
        collected.seconds = time.perf_counter() - began
        collected.add(batch)
        at(collected.batches, f"{collected.trajectories} trajectories, {collected.tokens:,} tokens")
        if batch.meta_info["last"]:
            collected.ended = "no task is left"
    if collected.batches < file.batches:
        collected.ended = "no task is left"


def _tell(scheduler: "RolloutScheduler", collected: Collected, out: Output) -> int:
    """Say what was collected; 1 if something is missing from the books."""
    from windrow.rollout.summary import ledger_json

    ledgers = scheduler.ledger()
    missing = [mode for mode, ledger in ledgers.items() if not _balances(ledger)]
    per_s = collected.trajectories / collected.seconds if collected.seconds else 0.0
    score = collected.metrics.get("episode/score/mean")
    rows = [
        ("batches", f"{collected.batches}{f'; {collected.ended}' if collected.ended else ''}"),
        ("trajectories", f"{collected.trajectories} in {collected.groups} groups, {per_s:.3g} per second"),
        ("sampled tokens", f"{collected.tokens:,}"),
        ("score", "–" if score is None else f"mean {score:.3f} in the last batch"),
        *((f"score, {name}", f"mean {mean:.3f}") for name, mean in _means(collected, "episode/score_by_tag/")),
        *((f"part of the score, {name}", f"mean {mean:.3f}") for name, mean in _means(collected, "reward/part/")),
        *(
            (f"ledger, {mode}", _account(ledger.attempts))
            for mode, ledger in ledgers.items()
            if ledger.attempts.admitted
        ),
    ]
    out.table([Column("figure", "left"), Column("value", "left")], rows)
    for mode in missing:
        out.warn(f"the ledger of {mode} does not balance: {ledgers[mode]}")
    out.result(
        {
            "batches": collected.batches,
            "trajectories": collected.trajectories,
            "groups": collected.groups,
            "seconds": collected.seconds,
            "tokens": collected.tokens,
            "metrics": collected.metrics,
            "ledger": ledger_json(ledgers),
        }
    )
    failed = sum(ledger.attempts.dropped.get("failed", 0) for ledger in ledgers.values())
    if not collected.trajectories and failed:
        out.warn(f"nothing was collected, because {failed} attempts failed")
        return 1
    return 1 if missing else 0


def _means(collected: Collected, prefix: str) -> list[tuple[str, float]]:
    """The means of all metrics that begin like this, by the rest of their names."""
    return [
        (name.removeprefix(prefix).removesuffix("/mean"), value)
        for name, value in collected.metrics.items()
        if name.startswith(prefix) and name.endswith("/mean")
    ]


def _balances(ledger: "Ledger") -> bool:
    """Everything is accounted for, and nothing lives on after the end."""
    accounts = (ledger.attempts, ledger.groups)
    return all(account.balance == 0 and account.alive == 0 for account in accounts)


def _account(account: "Account") -> str:
    dropped = ", ".join(f"{count} {why}" for why, count in account.dropped.items()) or "none"
    return f"{account.admitted} attempts: {account.trained + account.delivered} handed out, dropped: {dropped}"
