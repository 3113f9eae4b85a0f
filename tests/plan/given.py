"""A question small enough for a test."""

from typing import Any

from windrow.core.settings import ModeSettings
from windrow.plan.question import Costs, Memory, Pace, Question, Work
from windrow.sim.distributions import Constant, Lognormal
from windrow.types import but

PACE = Pace(base_tokens_per_s=50.0, peak_tokens_per_s=400.0, read_tokens_per_s=1e6)
WORK = Work(
    policy=ModeSettings(group_size=4, batch_size=32),
    slots=64,
    lease_s=3600.0,
    turns=Lognormal(median=4.0, sigma=0.6, cap=16.0),
    max_turns=16,
    tokens_per_turn=Constant(value=50.0),
)
COSTS = Costs(pace=PACE, capacity=16, learn_s=60.0, update_s=0.5, hand_over_s=1.0)


def question(devices: int = 4, *, staleness: float = 0.0, learn_s: float = 60.0, **changes: Any) -> Question:
    """Thirty-two episodes of a few turns, and a minute of training on one device."""
    made = Question(
        devices=devices,
        work=but(WORK, policy=but(WORK.policy, staleness=staleness)),
        costs=but(COSTS, learn_s=learn_s),
        memory=Memory(device=None, engine=1e9, trainer=8e9),
    )
    return but(made, **changes)
