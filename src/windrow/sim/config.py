"""Everything about a simulation that a user may choose, one model per section.

Promises: unknown keys are refused; what cannot work together is refused when it is read, with the key first.
Two configs that differ in `machine` alone describe the same workload.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from windrow.core.settings import Count, ModeSettings, Natural, Settings, Share, Weight
from windrow.errors import ConfigError
from windrow.sim.distributions import ONE, ZERO, Constant, Distribution, Lognormal, Nonnegative, Positive
from windrow.types import Meta, Value

SLOTS_PER_WORKER = 64
"""Environments that one worker process usually hosts."""


class Section(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all sections."""


class Engines(Section, frozen=True, kw_only=True):
    """Modelled engines: n requests at once each take 1/base + (n − 1)/peak seconds per token."""

    count: Annotated[Natural, Meta(description="engines; 0 = one that needs no time at all")] = 0
    capacity: Annotated[Count, Meta(description="requests that one engine serves well at once")] = 16
    devices: Annotated[Natural, Meta(description="devices of one engine")] = 0
    base_tokens_per_s: Annotated[Positive, Meta(description="speed of a request that is alone")] = 60.0
    peak_tokens_per_s: Annotated[Positive, Meta(description="speed of all requests together, if they are many")] = (
        2000.0
    )
    prefill_tokens_per_s: Annotated[Positive, Meta(description="speed of reading, for a request that is alone")] = (
        20000.0
    )
    prefix_reuse: Annotated[Share, Meta(description="share of what an engine knows that it need not read again")] = 1.0
    update_s: Annotated[Nonnegative, Meta(description="time that a weight update stops the engines for")] = 0.0
    hand_over_s: Annotated[
        Nonnegative, Meta(description="time until devices that training borrows have changed hands, each way")
    ] = 0.0
    mean_time_to_restart_s: Annotated[
        Positive | None, Meta(description="mean time until an engine dies; never if left out")
    ] = None
    restart_s: Annotated[Nonnegative, Meta(description="time until a dead engine is back, with its first weights")] = (
        60.0
    )

    def __post_init__(self) -> None:
        if self.peak_tokens_per_s < self.base_tokens_per_s:
            raise ConfigError(
                f"peak_tokens_per_s must be at least base_tokens_per_s ({self.base_tokens_per_s:g}), "
                f"got {self.peak_tokens_per_s:g}"
            )


class DurationEpisodes(Section, frozen=True, kw_only=True, tag_field="kind", tag="duration"):
    """An episode is one stretch of time, drawn whole: its task's factor times its own; no engine matters."""

    task: Annotated[Distribution, Meta(description="seconds, the same for all attempts at a task")]
    own: Annotated[Distribution, Meta(description="factor of each attempt")] = ONE
    cap_s: Annotated[Positive | None, Meta(description="longest episode; none if left out")] = None


class Surroundings(Section, frozen=True, kw_only=True):
    """What an episode of turns meets besides its engine."""

    prompt_tokens: Annotated[
        Distribution, Meta(description="tokens of the first observation, the same for all attempts at a task")
    ] = Constant(value=512.0)
    observation_tokens: Annotated[Distribution, Meta(description="tokens of each later observation")] = ZERO
    start_s: Annotated[Distribution, Meta(description="time to start an environment")] = ZERO
    step_s: Annotated[Distribution, Meta(description="time of one environment step")] = ZERO


class TurnEpisodes(Surroundings, frozen=True, kw_only=True, tag_field="kind", tag="turns"):
    """An episode is a number of turns: read, generate, step."""

    turns: Annotated[Distribution, Meta(description="turns of an episode, rounded, at least 1")]
    max_turns: Annotated[Count, Meta(description="no episode has more")] = 64
    task_share: Annotated[Share, Meta(description="how far the task decides the turns; 1 = siblings are equal")] = 0.5
    tokens_per_turn: Annotated[Distribution, Meta(description="tokens of one response")] = Lognormal(
        median=200.0, sigma=0.7, cap=4096.0
    )


class TraceEpisodes(Surroundings, frozen=True, kw_only=True, tag_field="kind", tag="trace"):
    """Episodes as they were recorded: of known length (`seconds`), or of known turns and tokens."""

    path: Annotated[str, Meta(description="CSV or JSONL with task and seconds, or task, turns and tokens")]


Episodes = DurationEpisodes | TurnEpisodes | TraceEpisodes


class Reward(Section, frozen=True, kw_only=True):
    """Scoring an episode, and judging a group if the filter is external."""

    time_s: Annotated[Distribution, Meta(description="time to score an episode")] = ZERO
    accepted_share: Annotated[Share, Meta(description="share of groups that the filter accepts")] = 1.0


class Faults(Section, frozen=True, kw_only=True):
    """What goes wrong."""

    crash_share: Annotated[Share, Meta(description="share of attempts whose environment crashes on the way")] = 0.0
    hang_share: Annotated[Share, Meta(description="share of attempts whose environment hangs on the way")] = 0.0
    hang_s: Annotated[
        Positive | None,
        Meta(description="time after which its worker gives a hung one up; none: the lease ends it"),
    ] = None
    poisonous_share: Annotated[Share, Meta(description="share of tasks at which every attempt crashes")] = 0.0
    worker_losses_per_hour: Annotated[Nonnegative, Meta(description="losses of each worker per hour")] = 0.0
    rejoin_s: Annotated[Nonnegative, Meta(description="time until a lost worker is back")] = 60.0

    def __post_init__(self) -> None:
        if self.crash_share + self.hang_share > 1.0:
            raise ConfigError(
                f"crash_share and hang_share must not exceed 1 together, "
                f"got {self.crash_share:g} and {self.hang_share:g}"
            )


class Trainer(Section, frozen=True, kw_only=True):
    """How long a training step takes; no time if nothing is set."""

    time_s: Annotated[Distribution | None, Meta(description="time of a training step")] = None
    share_of_work: Annotated[
        Nonnegative | None, Meta(description="or: its ratio to (expected work per batch ÷ slots)")
    ] = None
    borrows: Annotated[
        tuple[Natural, ...],
        Meta(description="devices of engines that it takes meanwhile; all of them: generation pauses; none: its own"),
    ] = ()

    def __post_init__(self) -> None:
        if self.time_s is not None and self.share_of_work is not None:
            raise ConfigError(f"share_of_work cannot be used with time_s, got {self.share_of_work:g}; set one of them")


class Validation(Section, frozen=True, kw_only=True):
    """Validation beside training."""

    every: Annotated[Count, Meta(description="training steps between two validations")]
    tasks: Annotated[Count, Meta(description="tasks of one validation, each time the same")]


class Source(Section, frozen=True, kw_only=True):
    """Where training tasks come from."""

    tasks: Annotated[Count | None, Meta(description="tasks in all; endless if left out")] = None
    epoch_tasks: Annotated[Count | None, Meta(description="after so many tasks the first comes again")] = None
    kinds: Annotated[dict[str, Weight], Meta(description="share of each kind of environment; none = one kind")] = {}


class SimConfig(Section, frozen=True, kw_only=True):
    """One simulated run: the workload, the hardware and the policy."""

    slots: Annotated[Count, Meta(description="environments that can be played at once")]
    steps: Annotated[Count, Meta(description="training steps")]
    episode: Annotated[Episodes, Meta(description="what an episode is")]
    seed: Annotated[Natural, Meta(description="seed of all chance")] = 0
    seeds: Annotated[Count, Meta(description="consecutive seeds that a comparison plays")] = 1
    workers: Annotated[
        Count | None, Meta(description="workers that the slots are spread over; default: 64 slots each")
    ] = None
    engines: Annotated[Engines, Meta(description="inference engines")] = Engines()
    reward: Annotated[Reward, Meta(description="scoring")] = Reward()
    faults: Annotated[Faults, Meta(description="what goes wrong")] = Faults()
    trainer: Annotated[Trainer, Meta(description="training")] = Trainer()
    validation: Annotated[Validation | None, Meta(description="validation beside training; none if left out")] = None
    source: Annotated[Source, Meta(description="tasks")] = Source()
    machine: Annotated[Settings, Meta(description="the scheduler")] = Settings()

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers > self.slots:
            raise ConfigError(f"workers must not exceed slots ({self.slots}), got {self.workers}")
        _check_borrowed(self.trainer.borrows, self.engines)

    @property
    def policy(self) -> ModeSettings:
        """How training is scheduled."""
        return self.machine.train

    @property
    def worker_slots(self) -> list[int]:
        """Slots of each worker."""
        workers = self.workers or -(-self.slots // SLOTS_PER_WORKER)
        each, more = divmod(self.slots, workers)
        return [each + (number < more) for number in range(workers)]

    def located(self, folder: Path) -> "SimConfig":
        """The same, with the path of a trace taken from the folder of the config file."""
        if not isinstance(self.episode, TraceEpisodes):
            return self
        episode = msgspec.structs.replace(self.episode, path=str(folder / self.episode.path))
        return msgspec.structs.replace(self, episode=episode)


def _check_borrowed(borrows: tuple[int, ...], engines: Engines) -> None:
    """Training can borrow whole engines that never die."""
    if not borrows:
        return
    if engines.mean_time_to_restart_s is not None:
        raise ConfigError("trainer.borrows cannot be used with engines.mean_time_to_restart_s; leave one out")
    each = engines.devices
    unknown = sorted(device for device in borrows if device >= each * engines.count)
    if unknown:
        raise ConfigError(
            f"trainer.borrows names devices {unknown}, and there are {each * engines.count}: engines.count "
            f"{engines.count} with engines.devices {each} for each"
        )
    for first in {device // each * each for device in borrows}:
        missing = sorted(set(range(first, first + each)) - set(borrows))
        if missing:
            raise ConfigError(f"trainer.borrows takes a part of an engine; add devices {missing} or take none of it")
