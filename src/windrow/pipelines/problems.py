"""Whether what is validated on was ever trained on.

Promises: problems are compared by what they are, not by where they came from: what an environment calls `problem` in
its `info`, or the task's payload. Where there is neither, nothing is claimed. Only hashes are kept, and not more than
`MOST` of them.
"""

from collections.abc import Iterable
from hashlib import blake2b

from windrow.trajectory import Trajectory
from windrow.types import to_json

MOST = 1_000_000


class Problems:
    """The problems of a run, by what they were used for."""

    def __init__(self) -> None:
        self._trained: set[bytes] = set()
        self._held_out: set[bytes] = set()

    def train_on(self, trajectories: Iterable[Trajectory]) -> None:
        """These are learnt from."""
        if len(self._trained) < MOST:
            self._trained.update(filter(None, map(_hash, trajectories)))

    def validate_on(self, trajectories: Iterable[Trajectory]) -> None:
        """These are not."""
        self._held_out.update(filter(None, map(_hash, trajectories)))

    @property
    def overlap(self) -> int | None:
        """How many are both; None if environments do not say what their problems are."""
        if not self._trained or not self._held_out:
            return None
        return len(self._trained & self._held_out)


def _hash(trajectory: Trajectory) -> bytes | None:
    problem = trajectory.info.get("problem", trajectory.task.payload)
    if problem is None:
        return None
    try:
        text = problem if isinstance(problem, str) else to_json(problem).decode()
    except TypeError:  # something that only its environment understands
        return None
    return blake2b(f"{trajectory.task.tag}\n{text}".encode(), digest_size=8).digest()
