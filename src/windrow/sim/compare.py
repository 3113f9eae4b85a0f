"""Several schedulers on the same workload, side by side.

Promises: every scheduler plays the same tasks with the same lengths, for the workload depends on the seed alone;
figures are medians over the seeds, with their range; runs are independent, so they may be spread over processes and
stopped at any moment, and whatever is finished by then is compared.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.pool import Pool
from os import sched_getaffinity
from statistics import median
from time import process_time

from windrow.core.machine import Machine
from windrow.core.settings import Settings
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.sim.config import SimConfig
from windrow.sim.limits import Limits, limits
from windrow.sim.report import Report
from windrow.sim.rivals import Barrier, FixedQueues, GroupUnit
from windrow.sim.scheduler import Scheduler
from windrow.sim.world import World
from windrow.types import Value, but

TAIL = 0.25
"""Groups that tail batching begins beyond a batch: a quarter, so that four fresh rounds gather one tail round."""

LIMITS = "limits"


class Policy(Value, frozen=True):
    """One scheduler that can be compared."""

    name: str
    what: str
    make: Callable[[Settings], Scheduler]
    train: dict[str, object]
    """Settings of the training lane that it replaces."""


class Piece(Value, frozen=True):
    """One part of a comparison: a run, or the limits if it names no policy."""

    config: SimConfig
    policy: Policy | None
    seed: int


class Run(Value, frozen=True):
    """One scheduler on one seed."""

    policy: str
    seed: int
    report: Report
    cpu_s: float


class Skipped(Value, frozen=True):
    """A part of a comparison that does not fit the workload."""

    what: str
    why: str


class Summary(Value, frozen=True, kw_only=True):
    """One scheduler over all seeds: medians, and the range of what is most asked for."""

    seeds: int
    steps_per_s: float
    steps_per_s_range: tuple[float, float]
    step_s: float
    slots_busy: float
    staleness_mean: float
    staleness_max: int
    groups_dropped: int
    length_bias: float
    waste: dict[str, float]
    batch_wait_mean_s: float
    bottleneck: str


class Comparison(Value, frozen=True, kw_only=True):
    """What a comparison has shown."""

    runs: list[Run]
    policies: dict[str, Summary]
    limits: list[Limits]
    skipped: dict[str, str]
    """What does not fit the workload, and why."""
    pieces: int
    """Of which it was made; fewer than asked for if it was stopped."""
    events_per_s: float
    """Events per CPU second of the runs of the real machine, world included."""


def machine(settings: Settings) -> Scheduler:
    """The real one."""
    return Machine(settings)


def _ours(name: str, what: str, staleness: float, on_stale: str, tail: float = 0.0) -> Policy:
    train: dict[str, object] = {"staleness": staleness, "on_stale": on_stale, "tail": tail, "order": "learnt"}
    return Policy(name, what, machine, train)


_SYNC: dict[str, object] = {"staleness": 0.0, "on_stale": "wait", "tail": 0.0}
_BOUND_1: dict[str, object] = {"staleness": 1.0, "on_stale": "keep", "tail": 0.0}

POLICIES: tuple[Policy, ...] = (
    Policy("barrier", "batch barrier: the slots filled in order of arrival, batch by batch", Barrier, _SYNC),
    Policy("group_unit", "group by group: a group holds its slots until its last sibling ends", GroupUnit, _SYNC),
    Policy("group_unit_1", "the same, one batch ahead", GroupUnit, _BOUND_1),
    Policy("fixed_queues", "a queue per group of slots, oldest group first, one batch ahead", FixedQueues, _BOUND_1),
    _ours("sync", "ours, synchronous", 0.0, "wait"),
    _ours("sync_tail", "ours, synchronous, long groups set aside and played together", 0.0, "wait", TAIL),
    _ours("keep_1", "ours, bound 1, long episodes go on under newer weights", 1.0, "keep"),
    _ours("wait_1", "ours, hard bound 1", 1.0, "wait"),
    _ours("wait_2", "ours, hard bound 2", 2.0, "wait"),
    _ours("wait_4", "ours, hard bound 4", 4.0, "wait"),
    _ours("drop_1", "ours, hard bound 1, what is too old is dropped", 1.0, "drop"),
)


def find(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies of these names, each once."""
    known = {policy.name: policy for policy in POLICIES}
    for name in names:
        if name not in known:
            raise ConfigError(f"command line: --policies: unknown policy {name!r}{did_you_mean(name, known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def ignored_by_rivals(config: SimConfig) -> list[str]:
    """What of a workload the other schedulers leave out, so that they have less to do."""
    train = config.machine.train
    ignored = {
        "validation": config.validation is not None,
        "filters": train.filter != "none",
        "spares": train.spares > 0,
        "limits of kinds": bool(config.machine.kinds),
        "weights of tags": len(train.shares) > 1,
        "devices that training borrows": bool(config.trainer.borrows),
    }
    return [what for what, is_used in ignored.items() if is_used]


def play(config: SimConfig, policy: Policy, seed: int) -> Run:
    """One scheduler on one seed."""
    settings = but(config.machine, train=but(config.machine.train, **policy.train))
    config = but(config, machine=settings)
    began = process_time()
    report = World(config, policy.make(settings), seed=seed).run()
    return Run(policy.name, seed, report, process_time() - began)


def compare(config: SimConfig, policies: Sequence[Policy], on_run: Callable[[int, str], None]) -> Comparison:
    """Play every policy on every seed; `on_run` hears how many pieces are done and which was the last."""
    seeds = range(config.seed, config.seed + config.seeds)
    found: list[Run | Limits | Skipped] = []
    try:
        for piece in _pieces(config, policies, seeds):
            found.append(piece)
            on_run(len(found), f"{piece.policy}, seed {piece.seed}" if isinstance(piece, Run) else LIMITS)
    except KeyboardInterrupt:
        if not found:
            raise
    return _conclude(policies, found)


def pieces(config: SimConfig, policies: Sequence[Policy]) -> int:
    """Into how many pieces a comparison falls."""
    return config.seeds * (len(policies) + 1)


def _pieces(config: SimConfig, policies: Sequence[Policy], seeds: Iterable[int]) -> Iterator[Run | Limits | Skipped]:
    """All runs and limits, in the order in which they finish; leaving early ends what still runs."""
    waiting = [Piece(config, policy, seed) for seed in seeds for policy in (None, *policies)]
    with _deaf_pool() as pool:
        yield from pool.imap_unordered(_do, waiting)


def _deaf_pool() -> Pool:
    """Processes that leave Ctrl-C to the one that talks to the user, from their first moment on.

    They inherit that the signal is blocked; one that comes while they start is remembered and heard afterwards.
    """
    pressed: list[int] = []
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = get_context("spawn").Pool(len(sched_getaffinity(0)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if pressed:
        pool.terminate()
        raise KeyboardInterrupt
    return pool


def _do(piece: Piece) -> Run | Limits | Skipped:
    try:
        if piece.policy is None:
            return limits(piece.config, piece.seed)
        return play(piece.config, piece.policy, piece.seed)
    except ConfigError as error:
        return Skipped(piece.policy.name if piece.policy else LIMITS, str(error))


def _conclude(policies: Sequence[Policy], found: list[Run | Limits | Skipped]) -> Comparison:
    runs = sorted((piece for piece in found if isinstance(piece, Run)), key=lambda run: (run.policy, run.seed))
    bounds = sorted((piece for piece in found if isinstance(piece, Limits)), key=lambda bound: bound.seed)
    ours = [run for run in runs if _is_ours(policies, run.policy)]
    cpu_s = sum(run.cpu_s for run in ours)
    return Comparison(
        runs=runs,
        policies={
            policy.name: summarise([run.report for run in runs if run.policy == policy.name])
            for policy in policies
            if any(run.policy == policy.name for run in runs)
        },
        limits=bounds,
        pieces=len(found),
        skipped={piece.what: piece.why for piece in found if isinstance(piece, Skipped)},
        events_per_s=sum(run.report.events for run in ours) / cpu_s if cpu_s else 0.0,
    )


def _is_ours(policies: Sequence[Policy], name: str) -> bool:
    return any(policy.name == name and policy.make is machine for policy in policies)


def summarise(reports: Sequence[Report]) -> Summary:
    """Medians over seeds; maxima of what must never be exceeded."""
    rates = [report.steps_per_s for report in reports]
    causes = sorted({cause for report in reports for cause in report.waste})
    return Summary(
        seeds=len(reports),
        steps_per_s=median(rates),
        steps_per_s_range=(min(rates), max(rates)),
        step_s=median(1 / rate if rate else float("inf") for rate in rates),
        slots_busy=median(report.slots_busy for report in reports),
        staleness_mean=median(report.staleness_mean for report in reports),
        staleness_max=max(report.staleness_max for report in reports),
        groups_dropped=max(report.groups_dropped for report in reports),
        length_bias=median(report.length_bias for report in reports),
        waste={cause: median(report.waste.get(cause, 0.0) for report in reports) for cause in causes},
        batch_wait_mean_s=median(report.batch_wait_mean_s for report in reports),
        bottleneck=max(
            (report.bottleneck for report in reports), key=lambda b: sum(r.bottleneck == b for r in reports)
        ),
    )
