"""What a former run has measured, in place of what would be estimated.

Promises: the median over its steps counts, the first one left out if there are others, because engines and caches are
cold in it. What a run did not write down stays an estimate. The run may have had other devices: times are turned into
what one device needs.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import median

from windrow.plan.question import SCALING, Costs, Figure, Work
from windrow.sim.distributions import Constant, Distribution, Lognormal
from windrow.types import Value, but

WIDEST = 2.0
"""Largest spread that a long tail is given; beyond it a few episodes decide everything."""

Numbers = Mapping[str, float]


class Setting(Value, frozen=True, kw_only=True):
    """How the run was set up."""

    engines: int
    engine_devices: int
    """Of one engine."""
    train_devices: int
    """Devices or processes that trained."""
    is_synchronous: bool


class Measured(Value, frozen=True, kw_only=True, gc=True):
    """A question's work and costs, with what is known in place of what was thought."""

    work: Work
    costs: Costs
    figures: tuple[Figure, ...]


def typical(steps: Sequence[Numbers]) -> dict[str, float]:
    """The median of each number that a run told, warm steps only."""
    warm = steps[1:] if len(steps) > 1 else steps
    names = dict.fromkeys(name for step in warm for name in step)
    found = {name: [step[name] for step in warm if name in step and step[name] == step[name]] for name in names}
    return {name: median(values) for name, values in found.items() if values}


def measured(numbers: Numbers, setting: Setting, work: Work, costs: Costs) -> Measured:
    """Replace what a run has measured; `numbers` are typical ones, `run/step_s` among them."""
    told: list[Figure] = []
    work = _work(numbers, work, told)
    pace = costs.pace
    costs = _pace(numbers, setting, work, costs, told)
    if costs.pace != pace:
        work = but(work, prompt_tokens=0.0, observation_tokens=0.0)  # what is read is in what was measured
    learn_s = numbers.get("run/learn_s", numbers.get("train/seconds"))
    if learn_s:
        costs = but(costs, learn_s=learn_s * setting.train_devices**SCALING)
        told.append(_figure("training of a batch", costs.learn_s, "s", "run/learn_s, on one device"))
    if "engine/load_s/mean" in numbers:
        costs = but(costs, update_s=numbers["engine/load_s/mean"])
        told.append(_figure("new weights", costs.update_s, "s", "engine/load_s"))
    if "shrink_duration_ms" in numbers and "expand_duration_ms" in numbers:
        both_s = (numbers["shrink_duration_ms"] + numbers["expand_duration_ms"]) / 1000
        costs = but(costs, hand_over_s=both_s / 2)
        told.append(_figure("hand-over", costs.hand_over_s, "s", "half of shrink_duration_ms + expand_duration_ms"))
    return Measured(work=work, costs=costs, figures=tuple(told))


def long_tail(mean: float, most: float, number: float) -> Distribution:
    """The shape of sizes of which so many have this mean and this largest one."""
    if mean <= 0.0 or most <= mean * 1.01 or number < 2:
        return Constant(value=max(mean, 0.0))
    reach = sqrt(2.0 * log(number))  # how far out the largest of so many normal numbers lies, roughly
    low, high = 0.0, min(WIDEST, reach)
    for _ in range(40):  # most ÷ mean = exp(σ·reach − σ²/2), which grows with σ below `reach`
        middle = (low + high) / 2
        low, high = (middle, high) if exp(middle * reach - middle**2 / 2) < most / mean else (low, middle)
    return Lognormal(median=mean * exp(-(low**2) / 2), sigma=low, cap=most)


def _work(numbers: Numbers, work: Work, told: list[Figure]) -> Work:
    episodes = numbers.get("batch/trajectories_total", float(work.policy.batch_size))
    turns = numbers.get("episode/turns/mean")
    if turns:
        most = numbers.get("episode/turns/max", turns)
        work = but(work, turns=long_tail(turns, most, episodes), max_turns=max(1, round(most)))
        told.append(_figure("turns of an episode", turns, "", f"episode/turns, at most {most:.0f}"))
        tokens = numbers.get("episode/policy_tokens/mean", 0.0) / turns
        if tokens:
            work = but(work, tokens_per_turn=Constant(value=tokens))
            told.append(_figure("tokens of a turn", tokens, "tokens", "episode/policy_tokens ÷ episode/turns"))
    if "episode/env_s/mean" in numbers:
        work = but(work, env_s=numbers["episode/env_s/mean"])
        told.append(_figure("step of an environment", work.env_s, "s", "episode/env_s"))
    reward_s = numbers.get("reward/seconds/mean", 0.0) + numbers.get("reward/waiting_s/mean", 0.0)
    if reward_s:
        work = but(work, reward=Constant(value=reward_s))
        told.append(_figure("reward of an episode", reward_s, "s", "reward/waiting_s + reward/seconds"))
    kept, dropped = numbers.get("batch/groups_total"), numbers.get("group/dropped_total/filtered", 0.0)
    if kept and work.policy.filter != "none":
        work = but(work, accepted_share=kept / (kept + dropped))
        told.append(_figure("groups that the filter accepts", work.accepted_share, "", "group/dropped_total"))
    return work


def _pace(numbers: Numbers, setting: Setting, work: Work, costs: Costs, told: list[Figure]) -> Costs:
    """An engine's speed at the crowd that it had; how it changes with the crowd stays an estimate."""
    waited_s, step_s = numbers.get("episode/generate_s/mean"), numbers.get("run/step_s")
    if not waited_s or not step_s or not work.mean_tokens:
        return costs
    generating_s = step_s - (numbers.get("run/learn_s", 0.0) if setting.is_synchronous else 0.0)
    turns = numbers.get("batch/trajectories_total", work.policy.batch_size) * work.mean_turns
    # Little's law: requests at once = how many come in a second × how long each stays
    at_once = min(work.slots, turns * waited_s / max(generating_s, 1e-9))
    crowd = max(1.0, at_once / setting.engines)
    token_s = waited_s / work.mean_tokens
    factor = costs.pace.token_s(crowd) / token_s / setting.engine_devices**SCALING
    told.append(_figure("requests of an engine at once", crowd, "", "Little's law from episode/generate_s"))
    told.append(_figure("speed of each of these", 1.0 / token_s, "tokens/s", "episode/generate_s, reading included"))
    return but(costs, pace=costs.pace.times(factor))


def _figure(name: str, value: float, unit: str, how: str) -> Figure:
    return Figure(name, value, unit, "measured", how)
