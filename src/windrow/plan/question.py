"""What a plan is made for: the work of a step, what it costs on one device, and what may sit where."""

from typing import Literal

from windrow.cluster.mapping import Layout
from windrow.core.settings import ModeSettings
from windrow.sim.distributions import ZERO, Constant, Distribution
from windrow.types import Value

Origin = Literal["measured", "estimated", "given"]

SCALING = 0.9
"""k devices work k to this power times as fast as one: two 1.9 times, eight 6.5 times."""


class Figure(Value, frozen=True):
    """One number that went into a plan, and where it came from."""

    name: str
    value: float
    unit: str
    origin: Origin
    how: str
    """Which metric or which formula."""


class Work(Value, frozen=True, kw_only=True, gc=True):
    """What one step of training asks of generation."""

    policy: ModeSettings
    """Groups, batches and the bound on staleness."""
    slots: int
    """Episodes at once."""
    lease_s: float
    turns: Distribution
    max_turns: int
    tokens_per_turn: Distribution
    prompt_tokens: float = 0.0
    observation_tokens: float = 0.0
    env_s: float = 0.0
    """One step of the environment."""
    reward: Distribution = ZERO
    accepted_share: float = 1.0
    """Of groups, by the filter."""

    @property
    def mean_turns(self) -> float:
        return _typical(self.turns)

    @property
    def mean_tokens(self) -> float:
        """Sampled in one turn."""
        return _typical(self.tokens_per_turn)

    @property
    def trained_tokens(self) -> float:
        """Of a batch, what was only read included."""
        each = self.prompt_tokens + self.mean_turns * (self.mean_tokens + self.observation_tokens)
        return self.policy.batch_size * each


class Pace(Value, frozen=True, kw_only=True):
    """How fast one engine on one device is."""

    base_tokens_per_s: float
    """A request that is alone."""
    peak_tokens_per_s: float
    """All requests together, if they are many."""
    read_tokens_per_s: float

    def token_s(self, crowd: float) -> float:
        """Seconds per token of each of so many requests."""
        return 1.0 / self.base_tokens_per_s + max(0.0, crowd - 1.0) / self.peak_tokens_per_s

    def times(self, factor: float) -> "Pace":
        """The same, faster by a factor."""
        return Pace(
            base_tokens_per_s=factor * self.base_tokens_per_s,
            peak_tokens_per_s=factor * self.peak_tokens_per_s,
            read_tokens_per_s=factor * self.read_tokens_per_s,
        )


class Costs(Value, frozen=True, kw_only=True):
    """What the work costs."""

    pace: Pace
    capacity: int
    """Requests that one engine serves at once."""
    learn_s: float
    """From a batch to new weights, on one device."""
    update_s: float
    """New weights into the engines."""
    hand_over_s: float
    """Until a device has changed hands between generation and training."""
    reference_share: float = 0.0
    """What the reference takes of `learn_s`."""
    critic_share: float = 0.0


class Memory(Value, frozen=True, kw_only=True):
    """What must fit."""

    device: float | None
    """Bytes of one device; None if that is not known."""
    engine: float
    """Bytes of one engine."""
    trainer: float
    """Bytes of the actor, all devices together."""
    reference: float = 0.0
    """The same of the reference."""
    critic: float = 0.0


class Question(Value, frozen=True, kw_only=True, gc=True):
    """Everything that decides a plan."""

    devices: int
    work: Work
    costs: Costs
    memory: Memory
    infer_each: int = 1
    train_each: int = 1
    splits: bool = True
    """Training has processes, so that it can use several devices; else it is a thread on one."""
    trainers: int = 1
    """Processes of a training that sits apart."""
    infer: tuple[int, ...] | None = None
    """Devices that are said; None: the plan decides."""
    train: tuple[int, ...] | None = None
    """The same; empty: training sits apart."""
    reference: tuple[int, ...] = ()
    """Devices that are said; empty: with training."""
    critic: tuple[int, ...] = ()
    """The same."""
    rewards: tuple[int, ...] = ()
    """Devices of reward models, which nobody else has."""
    left: tuple[str, ...] = ()
    """Roles beside generation and training that are left to the plan."""
    given: Layout | None = None
    """The layout that the file says; the others are looked at beside it."""
    figures: tuple[Figure, ...] = ()


def _typical(shape: Distribution) -> float:
    """The mean of a shape, as the simulator will draw it."""
    import numpy as np

    if isinstance(shape, Constant):
        return shape.value
    normals = np.random.default_rng(0).standard_normal(1 << 14)
    return float(shape.shape(normals).mean())
