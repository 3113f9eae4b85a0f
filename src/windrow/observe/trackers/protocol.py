"""What a tracker does, and what it is told about the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from windrow.types import Value

Setting = str | int | float | bool | None
"""The value of one; lists are text."""


class Tracker(Protocol):
    """Something that takes numbers; it may raise, hang and be slow, and is called from one thread alone."""

    def describe(self, settings: Mapping[str, Setting]) -> None:
        """What the run is about, by dotted names; called once, before anything is logged."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """These were measured in a step; a step may be told in several pieces."""

    def close(self) -> None:
        """Nothing more comes."""


class Occasion(Value, frozen=True, kw_only=True):
    """The run that is tracked."""

    name: str
    folder: Path
    resumed_after: int | None = None
    """The step after which it goes on; None if it begins."""
