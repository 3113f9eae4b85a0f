"""What becomes of `meta_info` when batches become one.

Promises: nothing is chosen silently. When batches are joined, `metrics` are aggregated by kind: numbers become their
mean weighted by rows (so a count becomes a mean count), lists are joined, dicts are aggregated entry by entry, a metric
that only some parts have is aggregated over those; anything else, and every other entry, must be equal wherever it is
there. When columns are united nothing is aggregated: equal names need equal values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windrow.errors import DataError
from windrow.protocol.columns import same

METRICS = "metrics"

Meta = Mapping[str, Any]  # what users put there is theirs


def joined_meta(metas: Sequence[Meta], rows: Sequence[int]) -> dict[str, Any]:
    """The meta information of batches one after the other."""
    made: dict[str, Any] = {}
    for name in _names(metas):
        there = [(meta[name], weight) for meta, weight in zip(metas, rows, strict=True) if name in meta]
        aggregate = _aggregated if name == METRICS else _agreed
        made[name] = aggregate(name, [value for value, _ in there], [weight for _, weight in there])
    return made


def united(one: Mapping[str, Any], other: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Everything that either has; what both have must be equal."""
    made = dict(one)
    for name, value in other.items():
        if name in made and not same(made[name], value):
            raise DataError(f"{what} {name} differs on the two sides of a union; rename it or drop it on one side")
        made.setdefault(name, value)
    return made


def united_meta(one: Meta, other: Meta) -> dict[str, Any]:
    """As `united`; metrics metric by metric."""
    made = united(_without_metrics(one), _without_metrics(other), "meta_info")
    there = [meta[METRICS] for meta in (one, other) if METRICS in meta]
    if len(there) == 2 and all(isinstance(metrics, dict) for metrics in there):
        there = [united(there[0], there[1], "metric")]
    if there:
        made[METRICS] = _agreed(METRICS, there, [])
    return made


def _without_metrics(meta: Meta) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name != METRICS}


def _names(metas: Sequence[Meta]) -> list[str]:
    """Each name once, in order of first appearance."""
    return list(dict.fromkeys(name for meta in metas for name in meta))


def _agreed(name: str, values: Sequence[Any], _: Sequence[int]) -> Any:  # noqa: ANN401  # the user's own value
    for value in values[1:]:
        if not same(values[0], value):
            raise DataError(f"meta_info {name} is {values[0]!r} in one part and {value!r} in another; make them agree")
    return values[0]


def _aggregated(name: str, values: Sequence[Any], rows: Sequence[int]) -> Any:  # noqa: ANN401  # the user's own value
    if all(isinstance(value, dict) for value in values):
        return {
            key: _aggregated(
                f"{name}.{key}",
                [value[key] for value in values if key in value],
                [weight for value, weight in zip(values, rows, strict=True) if key in value],
            )
            for key in _names(values)
        }
    if all(isinstance(value, list) for value in values):
        return [entry for value in values for entry in value]
    if all(_is_number(value) for value in values) and not all(same(values[0], value) for value in values):
        return float(np.average(values, weights=rows if sum(rows) else None))
    return _agreed(name, values, rows)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
