"""Who waits for a batch, and what was handed over and not yet acknowledged."""

from windrow.types import AttemptId, Mode, Record

ALL = -1
"""Wanted: everything until the source ends."""


class Want(Record):
    """One waiting consumer."""

    consumer: str
    n: int
    step: int
    since: float


class Batch(Record):
    """One batch that may be asked for again."""

    id: int
    consumer: str
    mode: Mode
    step: int
    wanted: int
    version: int
    groups: tuple[int, ...]
    attempts: tuple[AttemptId, ...]
    lags: tuple[int, ...]
    last: bool
    short: bool
