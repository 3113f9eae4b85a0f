"""What a reward said, looked at before it is believed, and put into the trajectory.

Promises: a score is a finite number that a batch can hold, and so is every part of it; parts have names. Whatever else
a reward says is its fault.
"""

from collections.abc import Mapping, Sequence
from numbers import Real

from windrow.errors import RewardError
from windrow.rewards.protocol import Score
from windrow.rollout.episodes import LARGEST
from windrow.trajectory import Trajectory
from windrow.types import but


def read_score(said: object, who: str) -> Score:
    """What was said of one episode."""
    if isinstance(said, Score):
        return _checked(said, who)
    if not isinstance(said, Real) or not _is_number(said):
        raise RewardError(f"reward of {who} is {said!r:.60}; return a finite number or a Score")
    return Score(float(said))


def read_scores(said: object, who: str, count: int) -> list[Score]:
    """What was said of a group."""
    if not isinstance(said, Sequence) or len(said) != count:
        raise RewardError(f"reward of {who} gave {said!r:.60} for {count} episodes; give one score each")
    return [read_score(each, who) for each in said]


def scored(trajectory: Trajectory, score: Score, began: float, ended: float) -> Trajectory:
    """A trajectory with its score; what the environment has not given itself is credited to the last turn."""
    value = float(score.value)
    last = trajectory.turns[-1]
    rest = value - sum(turn.reward for turn in trajectory.turns)
    return but(
        trajectory,
        turns=(*trajectory.turns[:-1], but(last, reward=last.reward + rest)),
        score=value,
        scores={**trajectory.scores, **{name: float(part) for name, part in score.parts.items()}},
        info={**trajectory.info, "reward_note": score.note} if score.note else trajectory.info,
        reward_began_at=began,
        reward_ended_at=ended,
    )


def _checked(score: Score, who: str) -> Score:
    parts: object = score.parts
    if not _is_number(score.value):
        raise RewardError(f"reward of {who} is {score.value!r:.60}; a score is a finite number")
    if not isinstance(parts, Mapping):
        raise RewardError(f"reward of {who} has parts {parts!r:.60}; give a name to each")
    for name, number in parts.items():
        if not isinstance(name, str) or not name:
            raise RewardError(f"reward of {who} has a part named {name!r:.60}; a name is text")
        if not _is_number(number):
            raise RewardError(f"reward of {who}: part {name} is {number!r:.60}; it must be a finite number")
    return score


def _is_number(said: object) -> bool:
    return isinstance(said, Real) and bool(-LARGEST <= said <= LARGEST)  # type: ignore[operator]  # it is a number
