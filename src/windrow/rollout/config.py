"""The settings of the rollout path, and how the machine's settings follow from them."""

from collections.abc import Iterator
from typing import Annotated, Literal

from windrow.core.settings import VALIDATION, Count, ModeSettings, Natural, OnStale, Seconds, Settings, Share
from windrow.errors import ConfigError
from windrow.requests import Sampling
from windrow.rollout.env_config import Anything, EnvConfig, EnvKind, TagConfig
from windrow.sources.config import SeedTasks, SourceConfig
from windrow.sources.lists import SeedSource
from windrow.sources.protocol import TaskSource
from windrow.trajectory import Split
from windrow.types import How, Meta, Mode, Value, but


class EnvManagerConfig(EnvConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """The environments of one mode, and how episodes are played in them."""

    tags: Annotated[
        dict[str, TagConfig],
        Meta(description="several kinds of environments, each with settings of its own in place of those beside"),
    ] = {}
    task_source: Annotated[
        SourceConfig | None, Meta(description="where tasks come from; none: seeds, as many as max_tasks says")
    ] = None
    tasks: Annotated[Anything, Meta(description="a task source, in Python; then task_source is not used")] = None
    max_tasks: Annotated[Count | None, Meta(description="tasks made from seeds; none: without end")] = None
    num_env_groups: Annotated[Count, Meta(description="groups that are played at once")] = 8
    group_size: Annotated[Count, Meta(description="finished attempts that make a group")] = 8
    group_size_redundancy: Annotated[
        Natural, Meta(description="extra attempts per group, cancelled when it is full; favours short episodes")
    ] = 0
    num_workers: Annotated[Count, Meta(description="workers that share the episodes")] = 1
    max_turns: Annotated[Count | None, Meta(description="longest episode, in turns")] = None
    sampling: Annotated[Sampling, Meta(description="how responses are sampled")] = Sampling()
    filter: Annotated[
        Anything,
        Meta(description="which finished groups are used: none = all, varied = scores differ; in Python a function"),
    ] = "none"
    max_filter_rounds: Annotated[
        Count, Meta(description="batches' worth of groups that the filter may reject for one batch")
    ] = 10

    def __post_init__(self) -> None:
        if not callable(self.filter) and self.filter not in ("none", "varied"):
            raise ConfigError(f"filter must be none, varied or a function, got {self.filter!r}")
        super().__post_init__()
        usual = EnvConfig()
        for name in EnvConfig.__struct_fields__ if self.tags else ():
            if getattr(self, name) != getattr(usual, name):
                raise ConfigError(f"{name} stands beside tags, where it says nothing; set it for each tag")

    def by_tag(self) -> dict[str, EnvConfig]:
        """The settings of each tag."""
        return {**self.tags} or {"": self}

    @property
    def slots(self) -> int:
        """Episodes at once."""
        return self.num_env_groups * (self.group_size + self.group_size_redundancy)

    def kinds(self, mode: Mode) -> dict[str, EnvKind]:
        """What the workers need to play each tag."""
        return {tag: env.kind(kind_name(mode, tag)) for tag, env in self.by_tag().items()}

    def source(self, seed: int, mode: Mode) -> TaskSource:
        """Where its tasks come from; validation is on held-out ones."""
        split: Split = "train" if mode == "train" else "held_out"
        own: TaskSource | None = self.tasks
        if own is None and self.task_source is None:
            return SeedSource(self.by_tag(), seed=seed, max_tasks=self.max_tasks, split=split)
        if self.max_tasks is not None:
            raise ConfigError("max_tasks goes with tasks made from seeds; limit the task source itself")
        if self.task_source is None:
            assert own is not None
            return own
        if own is not None:
            raise ConfigError("tasks and task_source both say where tasks come from; give one")
        section = self.task_source
        if isinstance(section, SeedTasks) and not section.tags:
            section = but(section, tags=[*self.by_tag()])
        return section.open(seed, split)


class RolloutConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """How trajectories are collected and put into batches."""

    rollout_batch_size: Annotated[
        Count, Meta(description="trajectories a batch usually has; raised to the largest wanted")
    ] = 64
    val_batch_size: Annotated[Count, Meta(description="the same for validation")] = 64
    train_env_manager: Annotated[EnvManagerConfig, Meta(description="training")] = EnvManagerConfig()
    val_env_manager: Annotated[EnvManagerConfig, Meta(description="validation")] = EnvManagerConfig(group_size=1)
    sequence_length: Annotated[
        Count | None,
        Meta(description="longest trajectory, in tokens, and the width of a batch; none: as long as it is"),
    ] = None
    pad_to_multiple: Annotated[Count, Meta(description="the width of a batch is a multiple of this")] = 1
    pad_token_id: Annotated[Natural, Meta(description="what stands where there is no token")] = 0
    rows: Annotated[
        Literal["trajectory", "turn"], Meta(description="one row per trajectory, or one per turn (step mode)")
    ] = "trajectory"
    order_rows: Annotated[
        Literal["delivered", "task"],
        Meta(description="rows as they were delivered, or by place of the task in its source and then by seat"),
    ] = "delivered"
    staleness: Annotated[
        float, Meta(ge=0.0, description="bound on the lag of a group, in versions; 0 = synchronous, may be a fraction")
    ] = 0.0
    on_stale: Annotated[
        OnStale | None,
        Meta(description="an episode that outlives the bound: wait, keep or drop; default keep, or wait if it is 0"),
    ] = None
    tail: Annotated[Share, Meta(description="synchronous only: share of groups begun beyond a batch")] = 0.0
    suspend_mode: Annotated[How, Meta(description="what happens to half a response: interrupt, drain or freeze")] = (
        "interrupt"
    )
    suspend_timeout_s: Annotated[Seconds, Meta(description="longest time an engine may take to be quiet")] = 30.0
    load_timeout_s: Annotated[Seconds, Meta(description="longest time an engine may take for new weights")] = 600.0
    episode_timeout_s: Annotated[Seconds, Meta(description="longest time one attempt may take")] = 3600.0
    pin_validation: Annotated[
        bool,
        Meta(description="a validation is of one version: new weights are refused while it is waited for"),
    ] = False
    stall_after_s: Annotated[
        Seconds, Meta(description="a wait for a batch that takes longer says what it waits for")
    ] = 300.0
    office_timeout_s: Annotated[
        Seconds, Meta(description="on Ray: the queue's process is lost when it is deaf for longer")
    ] = 60.0
    env_retries: Annotated[Natural, Meta(description="failures of its environment that a group survives")] = 2
    reward_retries: Annotated[Natural, Meta(description="the same for its reward; each plays an episode again")] = 2
    engine_retries: Annotated[Natural, Meta(description="failed requests that a group survives")] = 8
    retry_after_s: Annotated[float, Meta(ge=0.0, description="wait before the first retry; doubles with each")] = 1.0
    breaker_share: Annotated[Share, Meta(description="share of failures that stops the run; 1 never does")] = 0.5
    seed: Annotated[int, Meta(description="of everything that is drawn")] = 0

    def __post_init__(self) -> None:
        if self.sequence_length is not None and self.sequence_length % self.pad_to_multiple:
            up = -(-self.sequence_length // self.pad_to_multiple) * self.pad_to_multiple
            raise ConfigError(
                f"sequence_length {self.sequence_length} is no multiple of pad_to_multiple {self.pad_to_multiple}; "
                f"use {up}"
            )

    def env_manager(self, mode: Mode) -> EnvManagerConfig:
        return self.train_env_manager if mode == "train" else self.val_env_manager


SHARED = (
    "suspend_timeout_s", "load_timeout_s", "episode_timeout_s", "stall_after_s", "env_retries", "reward_retries",
    "engine_retries", "retry_after_s", "breaker_share",
)  # fmt: skip
"""Settings that the schedulers of one cluster have in common."""


def check_shared(one: RolloutConfig, other: RolloutConfig) -> None:
    """Refuse two configurations for one cluster that contradict each other."""
    for name in SHARED:
        values = getattr(one, name), getattr(other, name)
        if values[0] != values[1]:
            raise ConfigError(
                f"{name} holds for all schedulers of a cluster, got {values[0]} and {values[1]}; give both the same"
            )


def check_same(then: Settings, now: Settings) -> None:
    """Refuse to go on with other settings than those that a run began with."""
    for what, old, new in ("train ", then.train, now.train), ("val ", then.val, now.val), ("", then, now):
        for name in old.__struct_fields__:
            before, after = getattr(old, name), getattr(new, name)
            if before != after:
                raise ConfigError(
                    f"the run was saved with {what}{name} {before} and is to go on with {after}; give it what it had"
                )


def machine_settings(config: RolloutConfig, val_config: RolloutConfig, envs: dict[Mode, EnvManagerConfig]) -> Settings:
    """What the machine is told; what is common to both modes is the same in both configurations."""
    return Settings(
        train=_training(config, envs["train"]),
        val=_validation(val_config, envs["val"]),
        kinds={name: most for mode, env in envs.items() for name, most in _limits(mode, env)},
        lease_s=config.episode_timeout_s,
        env_retries=config.env_retries,
        reward_retries=config.reward_retries,
        engine_retries=config.engine_retries,
        backoff_s=config.retry_after_s,
        breaker_share=config.breaker_share,
    )


def kind_name(mode: Mode, tag: str) -> str:
    """What the machine calls the environments of a tag."""
    return f"{mode}/{tag}"


def _limits(mode: Mode, env: EnvManagerConfig) -> Iterator[tuple[str, int]]:
    for tag, config in env.by_tag().items():
        if config.max_at_once is not None:
            yield kind_name(mode, tag), config.max_at_once


def _training(config: RolloutConfig, env: EnvManagerConfig) -> ModeSettings:
    return ModeSettings(
        group_size=env.group_size,
        batch_size=config.rollout_batch_size,
        spares=env.group_size_redundancy,
        staleness=config.staleness,
        on_stale=config.on_stale,
        tail=config.tail,
        filter="external" if callable(env.filter) else env.filter,
        max_filter_rounds=env.max_filter_rounds,
        tags={tag: share.weight for tag, share in env.tags.items()},
    )


def _validation(config: RolloutConfig, env: EnvManagerConfig) -> ModeSettings:
    size = env.group_size
    return but(
        VALIDATION,
        group_size=size,
        batch_size=-(-config.val_batch_size // size) * size,
        spares=env.group_size_redundancy,
        filter="external" if callable(env.filter) else env.filter,
        max_filter_rounds=env.max_filter_rounds,
        tags={tag: share.weight for tag, share in env.tags.items()},
    )
