"""Everything about the machine that a user may choose.

Promises: settings never change while a machine lives; whatever follows from other settings is derived in
`staleness.py` or beside its use, not set here. A wrong setting is refused when it is read.
"""

from typing import Annotated, Literal

from windrow.errors import ConfigError
from windrow.types import Meta, Mode, Value, from_bytes, to_bytes

OnStale = Literal["wait", "keep", "drop"]
Filter = Literal["none", "varied", "external"]
Order = Literal["learnt", "arrival"]

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(gt=0.0)]
Seconds = Annotated[float, Meta(gt=0.0)]


class ModeSettings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one mode (training or validation) is scheduled."""

    group_size: Annotated[Count, Meta(description="finished attempts that make a group")] = 8
    batch_size: Annotated[Count, Meta(description="trajectories a batch usually has; raised to the largest wanted")] = (
        256
    )
    spares: Annotated[
        Natural,
        Meta(description="extra attempts per group, cancelled when it is full; favours short episodes"),
    ] = 0
    staleness: Annotated[
        float,
        Meta(ge=0.0, description="bound on the lag of a group, in versions; 0 = synchronous, may be a fraction"),
    ] = 0.0
    on_stale: Annotated[
        OnStale | None,
        Meta(
            description="an episode that outlives the bound: wait for it, keep it, or drop it; "
            "default keep, or wait if the bound is 0"
        ),
    ] = None
    order: Annotated[
        Order, Meta(description="which attempt is played next: by learnt length, or in order of arrival")
    ] = "learnt"
    tail: Annotated[
        Share,
        Meta(description="synchronous only: share of groups begun beyond a batch; the long ones come together later"),
    ] = 0.0
    filter: Annotated[
        Filter,
        Meta(description="which finished groups are used: all, those with varied scores, or those JudgeGroup accepts"),
    ] = "none"
    max_filter_rounds: Annotated[
        Count, Meta(description="batches' worth of groups that the filter may reject for one batch")
    ] = 10
    on_filter_exhausted: Annotated[
        Literal["deliver", "error"],
        Meta(description="after that: deliver what there is, or refuse the batch"),
    ] = "deliver"
    ahead: Annotated[bool, Meta(description="collect before a batch is asked for, once the first one was")] = True
    weight: Annotated[Weight, Meta(description="share of the slots when another mode wants them too")] = 1.0
    tags: Annotated[
        dict[str, Weight],
        Meta(description="weight of each tag, honoured over a window of groups; none = one tag"),
    ] = {}

    def __post_init__(self) -> None:
        if self.batch_size % self.group_size:
            raise ConfigError(
                f"batch_size must be a multiple of group_size ({self.group_size}), got {self.batch_size}; "
                f"nearest: {nearest_sizes(self.batch_size, self.group_size)}"
            )
        if self.tail and (self.staleness or self.spares):
            raise ConfigError("tail needs staleness 0 and no spares; set tail: 0 to use a bound or spares")
        if self.filter == "varied" and self.group_size == 1:
            raise ConfigError("filter varied needs a group_size of 2 or more, got 1; use filter: none")
        if self.staleness < 1.0 and self.on_stale == "drop":
            raise ConfigError(f"on_stale drop needs staleness of 1 or more, got {self.staleness:g}; use on_stale: wait")

    @property
    def stale_policy(self) -> OnStale:
        """What happens to an episode that outlives the bound."""
        if self.on_stale is not None:
            return self.on_stale
        return "keep" if self.staleness > 0 else "wait"

    @property
    def shares(self) -> dict[str, float]:
        """Weight of each tag; a single nameless one if none are named."""
        return self.tags or {"": 1.0}

    @property
    def batch_groups(self) -> int:
        """Groups in a batch of the usual size."""
        return self.batch_size // self.group_size


VALIDATION = ModeSettings(group_size=1, batch_size=64, on_stale="keep", ahead=False)
"""Validation starts when it is asked for, and its groups are never too old: its engines hold one version."""


class Settings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one machine."""

    train: Annotated[ModeSettings, Meta(description="training groups")] = ModeSettings()
    val: Annotated[ModeSettings, Meta(description="validation groups")] = VALIDATION
    kinds: Annotated[
        dict[str, Count],
        Meta(description="environments of a kind that may run at once; unnamed kinds have no limit"),
    ] = {}
    lease_s: Annotated[Seconds, Meta(description="longest time one attempt may take")] = 3600.0
    beat_s: Annotated[
        float,
        Meta(
            ge=0.0,
            description="a worker that is silent for so long is lost; 0 = its owner reports losses itself",
        ),
    ] = 0.0
    env_retries: Annotated[
        Natural,
        Meta(description="failures of its environment that a group survives; then its task is quarantined"),
    ] = 2
    reward_retries: Annotated[Natural, Meta(description="the same for its reward")] = 2
    engine_retries: Annotated[
        Natural, Meta(description="failed requests that a group survives; then it is dropped")
    ] = 8
    worker_retries: Annotated[Natural, Meta(description="lost workers that a group survives; then it is dropped")] = 8
    backoff_s: Annotated[float, Meta(ge=0.0, description="wait before the first retry; doubles with each")] = 1.0
    breaker_window: Annotated[Count, Meta(description="ended attempts over which the error rate is taken")] = 64
    breaker_share: Annotated[
        Share, Meta(description="share of failures in that window that stops the run; 1 never does")
    ] = 0.5

    def of(self, mode: Mode) -> ModeSettings:
        """The settings of one mode."""
        return self.train if mode == "train" else self.val


def checked(settings: Settings) -> Settings:
    """The same settings, with every value within its limits and of its type; those made in Python were not checked."""
    try:
        return from_bytes(to_bytes(settings), Settings)
    except ValueError as error:
        raise ConfigError(f"settings: {error}") from error


def nearest_sizes(n: int, group_size: int) -> str:
    """The valid batch sizes on either side of `n`, for an error message."""
    below = n // group_size * group_size
    above = below + group_size
    return f"{above}" if below == 0 else f"{below} or {above}"
