"""What generation and training cost where nothing was measured: a few formulas over the number of weights.

Promises: every figure names its formula. With P weights of b bytes, on a device with F operations and B bytes per
second, where a forward costs t seconds besides:

    a token of a request that is alone    t + P·b ÷ B          the weights are read once
    what each other request adds          r + 2·P ÷ F          they share the reading
    a token that is only read             2·P ÷ F
    training on a token                   6·P ÷ F              forward and backward; 2·P for each look without learning
    new weights, or a device that changes hands    P·b ÷ L     over a link of L bytes per second

They are rough (a tiny model was trained in a tenth of what they say): enough to tell a layout that is hopeless from
one that is not; where it matters, measure (`windrow plan CONFIG --from RUN`).
"""

from windrow.plan.question import Costs, Figure, Memory, Pace, Work
from windrow.types import Value


class Hardware(Value, frozen=True, kw_only=True):
    """What a device usually reaches, not what its maker says."""

    name: str
    operations_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float
    forward_s: float
    row_s: float
    """What a request adds to a forward, whatever the model: drawing, streaming."""


CORE = Hardware(
    name="a core of a CPU",
    operations_per_s=2e10,
    bytes_per_s=1e10,
    link_bytes_per_s=1e9,
    forward_s=2e-3,
    row_s=2e-5,
)
GPU = Hardware(
    name="a GPU for data centres",
    operations_per_s=1.2e14,
    bytes_per_s=1.5e12,
    link_bytes_per_s=1e10,
    forward_s=8e-3,
    row_s=1e-5,
)
OPTIMIZER_STEP_S = 0.02
"""What a step of the optimizer costs besides."""


class Model(Value, frozen=True, kw_only=True):
    """What there is to compute with."""

    parameters: float
    trained: float
    """Of these, those that learn."""
    bytes_each: int
    """In an engine."""
    cache_bytes_per_token: float


class Learning(Value, frozen=True, kw_only=True):
    """What training does with a token."""

    epochs: int = 1
    optimizer_steps: int = 1
    has_reference: bool = False
    has_critic: bool = False
    looks_back: bool = False
    """The trainer computes log-probabilities of its own before it learns."""


def estimate(
    model: Model, hardware: Hardware, work: Work, learning: Learning, capacity: int
) -> tuple[Costs, tuple[Figure, ...]]:
    """The costs of the work, and how they were come by."""
    size = model.parameters * model.bytes_each
    alone_s = hardware.forward_s + size / hardware.bytes_per_s
    token_s = 2.0 * model.parameters / hardware.operations_per_s
    neighbour_s = min(alone_s, hardware.row_s + token_s)
    looks = 2 * (learning.has_reference + learning.has_critic + learning.looks_back)
    per_token = 6 * learning.epochs * (1 + learning.has_critic) + looks
    of_critic = (6 * learning.epochs + 2) * learning.has_critic
    learn_s = work.trained_tokens * per_token * model.parameters / hardware.operations_per_s
    learn_s += OPTIMIZER_STEP_S * learning.optimizer_steps
    link_s = size / hardware.link_bytes_per_s
    costs = Costs(
        pace=Pace(
            base_tokens_per_s=1.0 / alone_s, peak_tokens_per_s=1.0 / neighbour_s, read_tokens_per_s=1.0 / token_s
        ),
        capacity=capacity,
        learn_s=learn_s,
        update_s=link_s,
        hand_over_s=link_s,
        reference_share=2 * learning.has_reference / per_token,
        critic_share=of_critic / per_token,
    )
    told = (
        ("weights", model.parameters, "", "from the model's form"),
        ("tokens of a batch", work.trained_tokens, "tokens", "batch × (prompt + turns × (response + observation))"),
        ("speed alone", 1.0 / alone_s, "tokens/s", f"1 ÷ (t + P·b ÷ B) of {hardware.name}"),
        ("speed of many", 1.0 / neighbour_s, "tokens/s", "1 ÷ (r + 2·P ÷ F)"),
        ("training of a batch", learn_s, "s", f"{per_token}·P ÷ F for each token, on one device"),
        ("new weights", link_s, "s", "P·b ÷ L"),
        ("hand-over", link_s, "s", "P·b ÷ L"),
    )
    return costs, tuple(Figure(name, value, unit, "estimated", how) for name, value, unit, how in told)


def memory_needed(model: Model, learning: Learning, cached_tokens: float, device: float | None) -> Memory:
    """Bytes of an engine and of training; activations are not counted."""
    learnt = model.trained * (4 + 4 + 8)  # weights, gradients and two averages, in float32
    still = 4 * (model.parameters - model.trained)
    return Memory(
        device=device,
        engine=model.parameters * model.bytes_each + cached_tokens * model.cache_bytes_per_token,
        trainer=learnt + still,
        reference=4 * model.parameters * learning.has_reference,
        critic=16 * model.parameters * learning.has_critic,
    )
