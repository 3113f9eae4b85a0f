"""A comparison's figures beside the limits that nobody can pass."""

from collections.abc import Iterator, Sequence
from statistics import median

from windrow.sim.compare import Comparison
from windrow.sim.limits import BOUNDS, Limits
from windrow.types import Value


class AgainstLimit(Value, frozen=True):
    """One limit and the policy that it is the limit of."""

    what: str
    limit_s: float
    policy: str
    ours_s: float | None
    """Median seconds per step over the seeds; None if that policy did not play."""
    ratio: float | None
    """The median over the seeds of ours ÷ limit, seed by seed."""


def against_limits(comparison: Comparison) -> Iterator[AgainstLimit]:
    """Every limit beside the policy that comes nearest to it."""
    if not comparison.limits:
        return
    yield _line(comparison, "work ÷ slots", "keep_1", [bound.work_s_per_step for bound in comparison.limits])
    oracle = [bound.sync_oracle_s for bound in comparison.limits]
    yield _line(comparison, "synchronous: lengths known, longest first", "sync", oracle)
    for lag in BOUNDS:
        hard = [bound.hard[lag] for bound in comparison.limits]
        name = f"wait_{lag}"
        yield _line(comparison, f"hard bound {lag}: longest episode", name, [limit.bound_s for limit in hard])
        known = [limit.clairvoyant_s for limit in hard]
        yield _line(comparison, f"hard bound {lag}: clairvoyant, tasks in order", name, known)
        putting_off = [limit.gathering_s for limit in hard]
        yield _line(comparison, f"hard bound {lag}: clairvoyant that puts long tasks off", name, putting_off)


def limits_as_json(comparison: Comparison) -> dict[str, object]:
    """Medians over the seeds, by name."""
    limits = comparison.limits
    if not limits:
        return {}
    return {
        "work_s_per_step": median(bound.work_s_per_step for bound in limits),
        "training_s": median(bound.training_s for bound in limits),
        "steps_per_s": median(bound.steps_per_s for bound in limits),
        "sync_oracle_s": median(bound.sync_oracle_s for bound in limits),
        "sync_oracle_steps_per_s": median(bound.sync_oracle_steps_per_s for bound in limits),
        "hard": {str(lag): _hard_as_json(limits, lag) for lag in BOUNDS},
        "against": list(against_limits(comparison)),
    }


def _hard_as_json(limits: Sequence[Limits], lag: int) -> dict[str, float]:
    hard = [bound.hard[lag] for bound in limits]
    return {
        "bound_s": median(limit.bound_s for limit in hard),
        "bound_steps_per_s": median(limit.bound_steps_per_s for limit in hard),
        "clairvoyant_s": median(limit.clairvoyant_s for limit in hard),
        "clairvoyant_steps_per_s": median(limit.clairvoyant_steps_per_s for limit in hard),
        "gathering_s": median(limit.gathering_s for limit in hard),
        "gathering_steps_per_s": median(limit.gathering_steps_per_s for limit in hard),
    }


def _line(comparison: Comparison, what: str, policy: str, limits_s: Sequence[float]) -> AgainstLimit:
    by_seed = {run.seed: run.report.steps_per_s for run in comparison.runs if run.policy == policy}
    ratios = [
        1 / (by_seed[bound.seed] * limit_s)
        for bound, limit_s in zip(comparison.limits, limits_s, strict=True)
        if by_seed.get(bound.seed)
    ]
    summary = comparison.policies.get(policy)
    ours_s = None if summary is None else summary.step_s
    return AgainstLimit(what, median(limits_s), policy, ours_s, median(ratios) if ratios else None)
