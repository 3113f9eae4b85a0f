"""Whether instructions were followed.

Promises: the score is the share of the instructions that the response keeps, or with `strict` 1 for all of them and 0
for less; each one's part is kept under its kind. A response without a word is worth 0, whatever it does not do wrong.
Instructions that cannot be read are a `RewardError`.
"""

from windrow.envs.instructions.rules import AnyRule, read_rules, words_of
from windrow.errors import RewardError
from windrow.rewards.protocol import Score
from windrow.trajectory import Trajectory

LONGEST = 20_000
"""Characters; a longer response is no attempt to follow instructions."""


class InstructionReward:
    """The share of the instructions in `info["rules"]` that were followed."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict

    def score(self, trajectory: Trajectory) -> Score:
        rules = _rules(trajectory)
        text = trajectory.answer.strip()
        speaks = len(text) <= LONGEST and bool(words_of(text))
        kept = [speaks and rule.holds(text) for rule in rules]
        value = float(all(kept)) if self._strict else sum(kept) / len(kept)
        broken = [rule.words() for rule, good in zip(rules, kept, strict=True) if not good]
        return Score(value, _parts(rules, kept), f"not followed: {' '.join(broken)}" if broken else "")


def _rules(trajectory: Trajectory) -> list[AnyRule]:
    try:
        rules = read_rules(trajectory.info.get("rules"))
    except ValueError as error:
        raise RewardError(
            f"{trajectory.attempt} of {trajectory.task.tag!r} has no rules in its info: {error}"
        ) from error
    if not rules:
        raise RewardError(f"{trajectory.attempt} of {trajectory.task.tag!r} has an empty list of rules in its info")
    return rules


def _parts(rules: list[AnyRule], kept: list[bool]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for rule, good in zip(rules, kept, strict=True):
        kind = str(type(rule).__struct_config__.tag)
        same = sum(name.partition(" ")[0] == kind for name in parts)
        parts[f"{kind} {same + 1}" if same else kind] = float(good)
    return parts
