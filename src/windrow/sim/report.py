"""What a run has shown, in numbers and in one sentence.

Promises: rates and shares are taken from the beginning to the moment the last timed step was trained; length
bias over the tasks of those steps, however long they took. The bottleneck is concluded from numbers that
stand beside it.
"""

from typing import Literal

import numpy as np

from windrow.sim.config import SimConfig
from windrow.sim.ledger import LengthSums, Sums
from windrow.types import Cause, Reason, Value

BUSY = 0.9
"""A resource that is busy for this share of the time is what the run waits for."""


Bottleneck = Literal["slots", "engines", "trainer", "stragglers", "source"]


class Report(Value, frozen=True, kw_only=True):
    """One run; shares are between 0 and 1, times are virtual seconds."""

    outcome: str
    """"done", or why it ended early."""
    seconds: float
    events: int
    steps: int
    trajectories: int
    steps_per_s: float
    trajectories_per_s: float
    slots_busy: float
    engines_busy: float
    """Share of the engines' capacity in use; 0 if engines need no time."""
    engines_active: float
    """Share of the engines' time in which they generated for anybody; 0 if engines need no time."""
    envs_busy: float
    """Share of slot-seconds in which an environment worked."""
    trainer_busy: float
    batch_wait_mean_s: float
    batch_wait_p90_s: float
    batch_wait_max_s: float
    staleness_mean: float
    staleness_max: int
    staleness: dict[int, int]
    """Delivered groups by lag."""
    groups_delivered: int
    groups_dropped: int
    dropped: dict[Reason, int]
    waste: dict[Cause, float]
    """Share of slot-seconds by cause."""
    length_bias: float
    """Mean length delivered ÷ mean length drawn − 1."""
    groups_settled: int
    """Groups that the length bias is taken over."""
    bottleneck: Bottleneck
    because: str
    """The numbers that say so."""


class Verdict(Value, frozen=True):
    """What a run waits for, and how one can tell."""

    bottleneck: Bottleneck
    because: str


def make_report(config: SimConfig, sums: Sums, lengths: LengthSums, outcome: str) -> Report:
    """Turn sums into a report."""
    seconds = sums.until
    slot_s = config.slots * seconds
    delivered = sum(sums.lags.values())
    waits = np.array(sums.waits_s or [0.0])
    verdict = _bottleneck(config, sums, outcome)
    return Report(
        outcome=outcome,
        seconds=seconds,
        events=sums.events,
        steps=sums.steps,
        trajectories=sums.trajectories,
        steps_per_s=_ratio(sums.steps, seconds),
        trajectories_per_s=_ratio(sums.trajectories, seconds),
        slots_busy=_ratio(sums.busy_s, slot_s),
        engines_busy=sums.engines_busy,
        engines_active=sums.engines_active,
        envs_busy=_ratio(sums.env_s, slot_s),
        trainer_busy=1.0 - _ratio(sums.wanted_s, seconds),
        batch_wait_mean_s=float(waits.mean()),
        batch_wait_p90_s=float(np.quantile(waits, 0.9)),
        batch_wait_max_s=float(waits.max()),
        staleness_mean=_ratio(sum(lag * groups for lag, groups in sums.lags.items()), delivered),
        staleness_max=max(sums.lags, default=0),
        staleness=dict(sorted(sums.lags.items())),
        groups_delivered=delivered,
        groups_dropped=sum(sums.dropped.values()),
        dropped=sums.dropped,
        waste={cause: _ratio(wasted_s, slot_s) for cause, wasted_s in sorted(sums.waste_s.items())},
        length_bias=length_bias(lengths),
        groups_settled=lengths.settled,
        bottleneck=verdict.bottleneck,
        because=verdict.because,
    )


def length_bias(lengths: LengthSums) -> float:
    """How much longer delivered episodes are than drawn ones; 0 if none were delivered."""
    if not lengths.delivered or not lengths.drawn_length:
        return 0.0
    mean_delivered = lengths.delivered_length / lengths.delivered
    return mean_delivered / (lengths.drawn_length / lengths.drawn) - 1.0


def _bottleneck(config: SimConfig, sums: Sums, outcome: str) -> Verdict:
    """The resource that is busy all the time; if none is, what the slots were idle for."""
    slot_s = config.slots * sums.until
    slots_busy = _ratio(sums.busy_s, slot_s)
    idle_wanted = _ratio(sums.idle_wanted_s, slot_s)
    idle_training = 1.0 - slots_busy - idle_wanted
    trainer_busy = 1.0 - _ratio(sums.wanted_s, sums.until)
    bound = f"for a staleness of {config.policy.staleness:g} lets no more groups begin"
    if outcome == "source ended":
        return Verdict("source", f"it ended after {sums.steps} of {config.steps} steps")
    if sums.engines_busy >= BUSY:
        return Verdict("engines", f"{sums.engines_busy:.0%} of their capacity was in use")
    if slots_busy >= BUSY:
        envs = f"; environments worked in {_ratio(sums.env_s, slot_s):.0%}, engines were {sums.engines_busy:.0%} busy"
        return Verdict("slots", f"{slots_busy:.0%} of slot-seconds were occupied{envs if config.engines.count else ''}")
    if trainer_busy >= BUSY:
        return Verdict("trainer", f"it worked {trainer_busy:.0%} of the time")
    if idle_training > idle_wanted:
        return Verdict("trainer", f"{idle_training:.0%} of slot-seconds were idle while it worked, {bound}")
    return Verdict(
        "stragglers",
        f"{idle_wanted:.0%} of slot-seconds were idle while a batch was awaited, {bound}",
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
