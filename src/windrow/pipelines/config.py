"""The files that `windrow train` reads: one model per pipeline, told apart by `pipeline`.

Promises: what cannot work together is refused when it is read. Validation plays the training's environments on held-out
tasks, unless it is given some of its own.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from windrow.cluster.mapping import Layout
from windrow.cluster.ray.session import RayConfig
from windrow.config import Loaded, load, top_value
from windrow.core.settings import Count, Natural, Share, nearest_sizes
from windrow.engines.torch.settings import TorchSettings
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.observe.trackers import TrackerConfig
from windrow.pipelines.placing import Needs, Roles, check
from windrow.pipelines.rewarding import placed, reward_models
from windrow.pipelines.serving import Servers, check_servers
from windrow.rollout.config import EnvManagerConfig, RolloutConfig, machine_settings
from windrow.rollout.env_config import TagConfig
from windrow.rollout.locating import located, located_env
from windrow.train.config import DemonstrationConfig, ModelConfig, TrainConfig
from windrow.types import Meta, Value, but

LIKE_TRAINING = RolloutConfig().val_env_manager
"""Environments of validation that nobody has chosen."""


SHARDED = "trainers share one model by sharded data parallelism (FSDP2) alone: set train.processes"
REFUSED = {"train.tensor_parallel": SHARDED, "train.pipeline_parallel": SHARDED}
"""Settings of other trainers, and what there is instead."""


class WarmStart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """Learning from demonstrations, before anything is played."""

    episodes: Annotated[Count, Meta(description="demonstrations that the environments' own solvers play")] = 1000
    env_args: Annotated[
        dict[str, Any], Meta(description="arguments of the environment in place of training's: easier tasks, say")
    ] = {}
    tags: Annotated[dict[str, dict[str, Any]], Meta(description="the same for each of several kinds")] = {}
    noise: Annotated[Share, Meta(description="share of actions that are drawn at random instead of solved")] = 0.0
    learn_noise: Annotated[bool, Meta(description="learn what was drawn at random as well")] = False
    recording: Annotated[str, Meta(description="file of recorded trajectories to learn from instead")] = ""
    min_score: Annotated[float, Meta(description="recorded trajectories that scored less are left out")] = 1.0
    supervised: Annotated[DemonstrationConfig, Meta(description="how it is learnt")] = DemonstrationConfig()


class Validation(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Success on held-out tasks, always under one version of the weights."""

    tasks: Annotated[Count, Meta(description="held-out tasks")] = 512
    every: Annotated[Natural, Meta(description="steps between validations on the way; 0: none")] = 10
    greedy: Annotated[
        bool, Meta(description="also with the likeliest token each time; on the way only if stop_at is set")
    ] = True
    how: Annotated[
        Literal["between", "aside"],
        Meta(description="between: it ends before the next update; aside: engines set aside keep their version for it"),
    ] = "between"
    engines: Annotated[Count, Meta(description="aside: how many engines")] = 1
    at_once: Annotated[Count, Meta(description="episodes at the same time")] = 128
    stop_at: Annotated[
        Share | None,
        Meta(description="training ends when success, greedy too if that is played, is so high; none: after steps"),
    ] = None

    def __post_init__(self) -> None:
        if self.stop_at is not None and self.every == 0:
            raise ConfigError("stop_at needs validations on the way, but every is 0; set one of them otherwise")


class Saving(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a run."""

    every: Annotated[Natural, Meta(description="steps between checkpoints; 0: only at the end")] = 20
    keep: Annotated[Count, Meta(description="newest checkpoints that are kept; the best one is kept beside them")] = 2
    trajectories: Annotated[Natural, Meta(description="trajectories of each step that are written down")] = 8


class Common(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """What every pipeline with a model needs."""

    name: Annotated[str, Meta(description="of the run and its folder")] = "run"
    runs: Annotated[str, Meta(description="folder that holds the folders of runs")] = "runs"
    seed: Annotated[int, Meta(description="of everything that is drawn")] = 0
    model: Annotated[ModelConfig, Meta(description="what is trained")] = ModelConfig()
    engine: Annotated[TorchSettings, Meta(description="how the embedded engines work")] = TorchSettings()
    devices: Annotated[Count, Meta(description="logical devices; one engine on each")] = 1
    runtime: Annotated[
        Literal["local", "ray"], Meta(description="local: everything in this process; ray: in hosts of a Ray cluster")
    ] = "local"
    ray: Annotated[RayConfig, Meta(description="which Ray cluster")] = RayConfig()
    validate: Annotated[Validation, Meta(description="on held-out tasks")] = Validation()
    save: Annotated[Saving, Meta(description="checkpoints and samples")] = Saving()
    trackers: Annotated[list[TrackerConfig], Meta(description="services that are told the metrics")] = []


class Reinforced(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """What the pipelines that learn by reinforcement have in common."""

    steps: Annotated[Count, Meta(description="updates of the policy")] = 100
    train: Annotated[TrainConfig, Meta(description="from batches to new weights")] = TrainConfig()
    warm_start: Annotated[WarmStart | None, Meta(description="demonstrations first; none: begin with the model")] = None
    roles: Annotated[Roles, Meta(description="which devices each of them has")] = Roles()
    servers: Annotated[
        Servers | None, Meta(description="servers that generate, such as vLLM; none: embedded engines do")
    ] = None

    def __post_init__(self) -> None:
        train, validate = self.train, self.validate
        needs = Needs(
            devices=self.devices,
            processes=train.processes,
            aside=validate.engines if validate.how == "aside" else 0,
            has_reference="reference" in train.members,
            has_critic="critic" in train.members,
            reward_models=reward_models(self.collecting),
        )
        check(self.roles, needs)
        if self.servers is not None:
            check_servers(self.servers, self.runtime, None if self.roles.is_open else self.layout)

    @property
    def collecting(self) -> RolloutConfig:
        """What is collected, with everything that the rest of the file says about it."""
        raise NotImplementedError

    @property
    def layout(self) -> Layout:
        """Where generation and training sit; refused while that is left to a plan."""
        return self.roles.layout(self.devices)


class Agentic(
    Reinforced, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="pipeline", tag="agentic"
):
    """Episodes of many turns."""

    rollout: Annotated[RolloutConfig, Meta(description="what is collected, and how")] = RolloutConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_collecting(self.collecting)
        _check_learning(self.collecting.train_env_manager, self.train)

    @property
    def collecting(self) -> RolloutConfig:
        return _settled(self, self.rollout)


class Rlvr(
    Reinforced, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="pipeline", tag="rlvr"
):
    """Questions with answers that can be verified, of several domains."""

    domains: Annotated[dict[str, TagConfig], Meta(description="kinds of questions, each with a weight and a reward")]
    rollout: Annotated[
        RolloutConfig, Meta(description="how answers are collected; the environments stand in domains")
    ] = RolloutConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.domains:
            raise ConfigError("domains is empty; name at least one, with its environment")
        if self.rollout.train_env_manager.tags:
            raise ConfigError("rollout.train_env_manager.tags stands beside domains; put its environments into domains")
        _check_collecting(self.collecting)
        _check_learning(self.collecting.train_env_manager, self.train)

    @property
    def collecting(self) -> RolloutConfig:
        env = but(self.rollout.train_env_manager, tags=dict(self.domains), max_turns=1)
        return _settled(self, but(self.rollout, train_env_manager=env))


class Cloning(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="pipeline", tag="sft"):
    """Supervised fine-tuning on demonstrations."""

    demonstrations: Annotated[WarmStart, Meta(description="what is learnt, and how")] = WarmStart()
    rollout: Annotated[RolloutConfig, Meta(description="the environments that demonstrate and validate")] = (
        RolloutConfig()
    )
    validate: Annotated[Validation, Meta(description="on held-out tasks")] = Validation(every=0)
    save: Annotated[Saving, Meta(description="checkpoints")] = Saving(trajectories=0)

    def __post_init__(self) -> None:
        if self.validate.how == "aside":
            raise ConfigError("validate.how aside needs engines that go on meanwhile, which sft has not; use between")
        if self.validate.engines != 1:
            raise ConfigError(f"validate.engines {self.validate.engines} is for validate.how aside; leave it out")
        if self.save.trajectories:
            raise ConfigError(f"save.trajectories {self.save.trajectories} cannot be kept, sft plays none; set it to 0")
        _check_collecting(self.collecting)

    @property
    def collecting(self) -> RolloutConfig:
        return _settled(self, self.rollout)


TrainFile = Agentic | Rlvr | Cloning
PIPELINES: dict[str, type[Agentic] | type[Rlvr] | type[Cloning]] = {"agentic": Agentic, "rlvr": Rlvr, "sft": Cloning}


def read(path: str | Path, overrides: list[str]) -> Loaded[Agentic | Rlvr | Cloning]:
    """A file for `windrow train`, whichever pipeline it is for."""
    named = top_value(path, overrides, "pipeline")
    if named not in PIPELINES:
        known = ", ".join(PIPELINES)
        if named is None:
            raise ConfigError(f"{path}: pipeline is missing; it says what to do: {known}")
        raise ConfigError(
            f"{path}: pipeline must be one of {known}, got {named!r}{did_you_mean(str(named), PIPELINES)}"
        )
    loaded = load(path, overrides, PIPELINES[str(named)], REFUSED)
    return Loaded(_located(loaded.value, Path(path).parent), loaded.origins)


def _located(file: "Agentic | Rlvr | Cloning", beside: Path) -> "Agentic | Rlvr | Cloning":
    """The same with environments of somebody's own that can be found from anywhere."""
    if isinstance(file, Rlvr):
        file = but(file, domains={tag: located_env(env, beside) for tag, env in file.domains.items()})
    return but(file, rollout=located(file.rollout, beside))


def _settled(file: "Agentic | Rlvr | Cloning", rollout: RolloutConfig) -> RolloutConfig:
    """Collection with the seed of the run, and with validation like training if nothing else was said."""
    val = rollout.val_env_manager
    if val == LIKE_TRAINING:
        val = _held_out(rollout.train_env_manager, file)
    elif val.tasks is None and val.task_source is None and val.max_tasks is None:
        val = but(val, max_tasks=file.validate.tasks)  # a validation plays all tasks that there are
    made = but(rollout, seed=file.seed, val_env_manager=val, val_batch_size=file.validate.tasks, pin_validation=True)
    rewards = file.roles.given("reward") if isinstance(file, Reinforced) else None
    if rewards is None:
        return made
    on_gpus = any(device.startswith("cuda") for device in (file.engine.device, file.model.device))
    return placed(made, rewards, "cuda" if on_gpus else "cpu", file.runtime)


def _held_out(env: EnvManagerConfig, file: Common) -> EnvManagerConfig:
    """On Ray by as many players as training has; in one process more of them would not be faster."""
    validate = file.validate
    return but(
        env,
        group_size=1,
        group_size_redundancy=0,
        filter="none",
        task_source=None,
        tasks=None,
        max_tasks=validate.tasks,
        num_env_groups=min(validate.at_once, validate.tasks),
        num_workers=env.num_workers if file.runtime == "ray" else 1,
    )


def _check_collecting(rollout: RolloutConfig) -> None:
    """Refuse what the schedulers would refuse when they are made, which may be after a warm start."""
    env, size = rollout.train_env_manager, rollout.rollout_batch_size
    if size % env.group_size:
        raise ConfigError(
            f"rollout.rollout_batch_size must be a multiple of group_size ({env.group_size}), got {size}; "
            f"nearest: {nearest_sizes(size, env.group_size)}"
        )
    machine_settings(rollout, rollout, {"train": env, "val": rollout.val_env_manager})


def _check_learning(env: EnvManagerConfig, train: TrainConfig) -> None:
    """Refuse episodes that nothing can be learnt from."""
    if env.sampling.temperature == 0:
        raise ConfigError(
            "rollout.train_env_manager.sampling.temperature must be above 0 in training, got 0; what always takes the "
            "likeliest token has no probabilities to learn from (validate.greedy looks at it)"
        )
    if train.estimator.compares_groups and env.group_size == 1:
        raise ConfigError(
            f"rollout.train_env_manager.group_size 1 leaves {train.estimator.kind} nothing to compare an attempt with; "
            f"set 2 or more, or train.estimator.kind: reinforce, reinforce_pp or gae"
        )
