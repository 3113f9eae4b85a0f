"""What passes between the queue and those who play: leases and orders one way, news the other way, always in bulk."""

from windrow.trajectory import Task, Trajectory
from windrow.types import AttemptId, Failed, Finished, Mode, Reason, Value


class Lease(Value, frozen=True, kw_only=True, gc=True):
    """The right to play one attempt on one worker with one engine until a deadline."""

    attempt: AttemptId
    seat: int
    task: Task
    mode: Mode
    engine: str
    version: int
    deadline: float
    """On the queue's clock."""


class Cancel(Value, frozen=True):
    """Stop playing; nobody waits for it any more."""

    attempt: AttemptId
    why: Reason


class Move(Value, frozen=True):
    """Go on with another engine from the last token; `engine` is empty while there is none."""

    attempt: AttemptId
    engine: str


Order = Lease | Cancel | Move


class Progressed(Value, frozen=True):
    """An episode finished a turn."""

    attempt: AttemptId
    tokens: int
    oldest_version: int


class Played(Value, frozen=True, gc=True):
    """An episode came to its end and was scored."""

    attempt: AttemptId
    outcome: Finished
    trajectory: Trajectory


class PlayedOut(Value, frozen=True, gc=True):
    """An episode came to its end; its score comes from a reward."""

    kind: str
    trajectory: Trajectory


class Scored(Value, frozen=True, gc=True):
    """A reward scored the episodes of a job."""

    job: int
    trajectories: tuple[Trajectory, ...]


class Unscorable(Value, frozen=True):
    """A reward could not score the episodes of a job."""

    job: int
    why: str
    trace: str = ""


class Broken(Value, frozen=True):
    """An episode did not come to its end."""

    attempt: AttemptId
    outcome: Failed


class EngineGone(Value, frozen=True):
    """A worker found an engine dead."""

    engine: str
    why: str


News = Progressed | Played | PlayedOut | Scored | Unscorable | Broken | EngineGone


def played(trajectory: Trajectory) -> Played:
    """News of a trajectory with its score."""
    outcome = Finished(
        score=trajectory.score,
        tokens=trajectory.policy_tokens,
        oldest_version=trajectory.oldest_version,
        truncated=trajectory.is_truncated,
    )
    return Played(trajectory.attempt, outcome, trajectory)
