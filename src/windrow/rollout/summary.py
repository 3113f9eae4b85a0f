"""What a batch and a queue look like in numbers."""

from collections.abc import Mapping

from windrow.core.ledger import Account, Ledger
from windrow.core.status import Status
from windrow.observe.metrics import Meter
from windrow.rollout.dispatch import Delivery
from windrow.types import Mode

ROUNDING = 1e-6
"""A score that is made of parts may fall short of what they add up to by so much."""


def note_batch(meter: Meter, delivery: Delivery, success_at: Mapping[str, float]) -> None:
    """Measure what was handed out; `success_at` has for each tag the score that counts as a success."""
    trajectories = delivery.trajectories
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    meter.count("batch/trajectories_total", len(trajectories))
    meter.count("batch/groups_total", len(delivery.order.groups))
    meter.count("batch/policy_tokens_total", sum(trajectory.policy_tokens for trajectory in trajectories))
    meter.observe("batch/lag_versions", delivery.order.lags)
    meter.observe("episode/score", (trajectory.score for trajectory in trajectories))
    meter.observe("episode/turns", (len(trajectory.turns) for trajectory in trajectories))
    meter.observe("episode/policy_tokens", (trajectory.policy_tokens for trajectory in trajectories))
    meter.observe("episode/seconds", (trajectory.ended_at - trajectory.began_at for trajectory in trajectories))
    meter.observe("episode/generate_s", (turn.generate_s for turn in turns))
    meter.observe("episode/env_s", (turn.env_s for turn in turns))
    meter.observe("episode/requests", (turn.requests for turn in turns))
    for trajectory in trajectories:
        meter.count("episode/ended_total", part=trajectory.ending)
        tag = trajectory.task.tag
        succeeded = trajectory.score >= success_at[tag] - ROUNDING
        meter.judge("episode/success", [succeeded])
        if tag:
            meter.observe("episode/score_by_tag", [trajectory.score], tag)
            meter.judge("episode/success_by_tag", [succeeded], tag)
        for name, value in trajectory.scores.items():
            meter.observe("reward/part", [value], name)
        if trajectory.reward_ended_at:
            meter.observe("reward/seconds", [trajectory.reward_ended_at - trajectory.reward_began_at])
            meter.observe("reward/waiting_s", [trajectory.reward_began_at - trajectory.ended_at])


def note_state(meter: Meter, status: Status) -> None:
    """Measure where everything stands."""
    meter.set("attempt/playing", sum(lane.attempts_playing for lane in status.lanes.values()))
    meter.set("reward/unscored", status.attempts_scoring)
    meter.set("group/ready", sum(lane.groups_ready for lane in status.lanes.values()))
    meter.set("engine/serving", sum(engine.state == "serving" for engine in status.engines))
    meter.set("engine/version", status.version)


def ledger_json(ledgers: dict[Mode, Ledger]) -> dict[str, object]:
    """The ledgers for programs."""
    return {
        mode: {"attempts": _account(ledger.attempts), "groups": _account(ledger.groups)}
        for mode, ledger in ledgers.items()
    }


def _account(account: Account) -> dict[str, object]:
    return {
        "admitted": account.admitted,
        "trained": account.trained,
        "delivered": account.delivered,
        "dropped": dict(account.dropped),
        "alive": account.alive,
    }


class LedgerReader:
    """Turns sums that only grow into what came since the last look."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], int] = {}

    def note(self, meter: Meter, mode: Mode, ledger: Ledger) -> None:
        """Measure what was thrown away since the last time."""
        for why, count in ledger.attempts.dropped.items():
            self._add(meter, "attempt/dropped_total", mode, why, count)
        for why, count in ledger.groups.dropped.items():
            self._add(meter, "group/dropped_total", mode, why, count)
        for cause, waste in ledger.waste.items():
            self._add(meter, "attempt/wasted_tokens_total", mode, cause, waste.tokens)

    def _add(self, meter: Meter, name: str, mode: Mode, part: str, total: int) -> None:
        key = (name, mode, part)
        new = total - self._seen.get(key, 0)
        if new:
            meter.count(name, new, part)
            self._seen[key] = total
