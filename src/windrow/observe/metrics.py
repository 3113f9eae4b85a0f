"""The one table of metrics: each is declared once, with its kind and a line that says what it is.

Promises: a name that is not in the table is an error; a counter of something bad carries why. Metrics are for reading:
no code decides by them.
"""

from collections.abc import Iterable
from typing import Literal

from windrow.errors import InternalError
from windrow.nearest import did_you_mean
from windrow.types import Value

Kind = Literal["counter", "gauge", "spread", "share"]
"""A sum since the last look; the last value; mean and maximum of what was observed since the last look; the share of
those observed since then of which something is true."""


class Metric(Value, frozen=True):
    """One line of the table."""

    name: str
    kind: Kind
    what: str
    label: str = ""
    """What distinguishes its parts, if it has any."""


def counter(name: str, what: str, label: str = "") -> Metric:
    return Metric(name, "counter", what, label)


def gauge(name: str, what: str, label: str = "") -> Metric:
    return Metric(name, "gauge", what, label)


def spread(name: str, what: str, label: str = "") -> Metric:
    return Metric(name, "spread", what, label)


def share(name: str, what: str, label: str = "") -> Metric:
    return Metric(name, "share", what, label)


METRICS = {
    metric.name: metric
    for metric in (
        counter("batch/trajectories_total", "trajectories handed out"),
        counter("batch/groups_total", "groups handed out"),
        counter("batch/policy_tokens_total", "sampled tokens handed out"),
        spread("batch/wait_s", "time that get_batch waited"),
        spread("batch/making_s", "time to pad a batch"),
        spread("batch/lag_versions", "age of each group when it was handed out"),
        spread("episode/score", "score of each trajectory"),
        spread("episode/score_by_tag", "the same, if there are several tags", "tag"),
        share("episode/success", "trajectories that scored success_at or more"),
        share("episode/success_by_tag", "the same, if there are several tags", "tag"),
        spread("episode/turns", "turns of each trajectory"),
        spread("episode/policy_tokens", "sampled tokens of each trajectory"),
        spread("episode/seconds", "time from the lease to the end"),
        spread("episode/generate_s", "time that a turn waited for its response"),
        spread("episode/env_s", "time that a step of the environment took"),
        spread("episode/requests", "requests that a turn took; more than one if it was interrupted"),
        spread("reward/seconds", "time that a reward took, its retries included"),
        spread("reward/waiting_s", "time from the end of an episode until its reward began"),
        spread("reward/part", "what the scores are made of", "name"),
        gauge("reward/unscored", "played episodes without a score"),
        counter("episode/ended_total", "trajectories handed out, by how they ended", "ending"),
        counter("attempt/dropped_total", "attempts that never reached the trainer", "why"),
        counter("attempt/wasted_tokens_total", "sampled tokens that never reached the trainer", "cause"),
        counter("attempt/failed_total", "attempts that failed, by whose fault", "blame"),
        counter("group/dropped_total", "groups that never reached the trainer", "why"),
        gauge("attempt/playing", "attempts in play"),
        gauge("group/ready", "complete groups that no batch has taken"),
        gauge("engine/serving", "engines that serve"),
        gauge("engine/version", "version of the weights"),
        counter("engine/lost_total", "engines that died"),
        counter("engine/moved_total", "attempts that went on with another engine"),
        spread("engine/suspend_s", "time until all engines were quiet"),
        spread("engine/load_s", "time until all engines had new weights"),
    )
}


class Meter:
    """What was measured since the last look."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._spreads: dict[str, tuple[int, float, float]] = {}
        self._shares: dict[str, tuple[int, int]] = {}

    def count(self, name: str, value: float = 1, part: str = "") -> None:
        """Add to a counter."""
        key = self._key(name, "counter", part)
        self._sums[key] = self._sums.get(key, 0) + value

    def set(self, name: str, value: float) -> None:
        """A gauge stands here now."""
        self._sums[self._key(name, "gauge", "")] = value

    def observe(self, name: str, values: Iterable[float], part: str = "") -> None:
        """Add to a spread."""
        key = self._key(name, "spread", part)
        for value in values:
            number, total, most = self._spreads.get(key, (0, 0.0, value))
            self._spreads[key] = (number + 1, total + value, max(most, value))

    def judge(self, name: str, verdicts: Iterable[bool], part: str = "") -> None:
        """Add to a share."""
        key = self._key(name, "share", part)
        for verdict in verdicts:
            number, so = self._shares.get(key, (0, 0))
            self._shares[key] = (number + 1, so + bool(verdict))

    def look(self) -> dict[str, float]:
        """Everything since the last look, as plain numbers; begins anew."""
        found = dict(self._sums)
        found |= {key: so / number for key, (number, so) in self._shares.items()}
        for key, (number, total, most) in self._spreads.items():
            found[f"{key}/mean"] = total / number
            found[f"{key}/max"] = most
        self._sums, self._spreads, self._shares = {}, {}, {}
        return dict(sorted(found.items()))

    def _key(self, name: str, kind: Kind, part: str) -> str:
        metric = METRICS.get(name)
        if metric is None:
            raise InternalError(f"metric {name!r} is not in the table{did_you_mean(name, METRICS)}")
        if metric.kind != kind or bool(part) != bool(metric.label):
            raise InternalError(f"metric {name!r} is a {metric.kind} by {metric.label or 'nothing'}, used otherwise")
        return f"{name}/{part}" if part else name
