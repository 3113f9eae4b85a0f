"""One layout, played by the real scheduler on the virtual clock.

Promises: every layout of a question meets the same episodes. Seconds per step are taken after the first steps, in which
a run that works ahead has nothing to work ahead on.
"""

from windrow.cluster.mapping import Layout, Member
from windrow.core.events import AnyEvent, BatchTrained
from windrow.core.machine import Machine
from windrow.core.settings import Settings
from windrow.plan.question import SCALING, Question
from windrow.sim.config import Engines, Reward, SimConfig, Trainer, TurnEpisodes
from windrow.sim.distributions import Constant
from windrow.sim.report import Report
from windrow.sim.world import World
from windrow.types import Value, but

STEPS = 12
"""Steps that are played, if they are not too large."""
FEWEST_STEPS = 5
WARM_UP = 2
"""Steps at the beginning that are played and not counted."""
MOST_TURNS = 60_000
"""Turns that one layout may cost, unless its steps are larger; about half a second of real time for ten thousand."""


class Trial(Value, frozen=True, kw_only=True):
    """What a layout is worth."""

    step_s: float
    utilisation: float
    """Share of the time of all devices in which they generated or trained."""
    lag: float
    """Mean age of a group that is trained on, in versions."""
    waits_for: str
    trouble: str = ""
    """Why it did not come to its end; empty if it did."""


def try_out(question: Question, layout: Layout) -> Trial:
    """Play a few steps with a layout."""
    config = simulation(question, layout)
    trained_at: list[float] = []

    def note(now: float, event: AnyEvent) -> None:
        if isinstance(event, BatchTrained):
            trained_at.append(now)

    report = World(config, Machine(config.machine), record=note).run()
    trained_at = trained_at[: config.steps]
    counted = len(trained_at) - WARM_UP
    return Trial(
        step_s=(trained_at[-1] - trained_at[WARM_UP - 1]) / counted if counted > 0 else 0.0,
        utilisation=_utilisation(question, layout, report),
        lag=report.staleness_mean,
        waits_for=report.bottleneck,
        trouble="" if report.outcome == "done" and counted > 0 else report.outcome,
    )


def learn_s(question: Question, layout: Layout) -> float:
    """How long training takes there: as long as its longest lane."""
    costs, away = question.costs, layout.elsewhere
    home = (len(layout.train) if question.splits else 1) or question.trainers
    devices = {name: len(own) for own, names in away.items() for name in names}
    shares: dict[Member, float] = {"reference": costs.reference_share, "critic": costs.critic_share}
    shares["actor"] = 1.0 - sum(shares.values())
    took = {name: costs.learn_s * share / float(devices.get(name, home) ** SCALING) for name, share in shares.items()}
    return max(sum(took[name] for name in lane) for lane in layout.lanes)


def simulation(question: Question, layout: Layout) -> SimConfig:
    """The workload of a question on a layout."""
    work, costs = question.work, question.costs
    pace = costs.pace.times(layout.infer_each**SCALING)
    at = {device: place for place, device in enumerate(layout.infer)}
    external = work.policy.filter != "none"
    return SimConfig(
        slots=work.slots,
        steps=_steps(question),
        episode=TurnEpisodes(
            turns=work.turns,
            max_turns=work.max_turns,
            tokens_per_turn=work.tokens_per_turn,
            prompt_tokens=Constant(value=work.prompt_tokens),
            observation_tokens=Constant(value=work.observation_tokens),
            step_s=Constant(value=work.env_s),
        ),
        engines=Engines(
            count=len(layout.engines),
            capacity=costs.capacity,
            devices=layout.infer_each,
            base_tokens_per_s=pace.base_tokens_per_s,
            peak_tokens_per_s=pace.peak_tokens_per_s,
            prefill_tokens_per_s=pace.read_tokens_per_s,
            update_s=costs.update_s,
            hand_over_s=costs.hand_over_s,
        ),
        reward=Reward(time_s=work.reward, accepted_share=work.accepted_share),
        trainer=Trainer(
            time_s=Constant(value=learn_s(question, layout)), borrows=tuple(at[device] for device in layout.shared)
        ),
        machine=Settings(
            train=but(work.policy, filter="external" if external else "none", tags={}), lease_s=work.lease_s
        ),
    )


def _steps(question: Question) -> int:
    turns = question.work.policy.batch_size * question.work.mean_turns
    return int(max(FEWEST_STEPS, min(STEPS, MOST_TURNS // turns)))


def _utilisation(question: Question, layout: Layout, report: Report) -> float:
    busy = report.engines_active * len(layout.infer) + report.trainer_busy * len(layout.learning)
    return min(1.0, busy / question.devices)
