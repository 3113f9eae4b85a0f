"""Where played episodes wait for their score.

Promises: an episode lies here from its end until its score is reported or nobody wants it any more; each is given out
once; those of a reward that scores groups are given out together, when a group has enough of them. Cancelling one that
was given out tells whoever scores it.
"""

import asyncio

from windrow.trajectory import Trajectory
from windrow.types import AttemptId, Record, Value


class Job(Value, frozen=True, gc=True):
    """Episodes to be scored: one, or all of a group together."""

    trajectories: tuple[Trajectory, ...]


class Forget(Value, frozen=True):
    """Nobody waits for this score any more."""

    attempt: AttemptId


class Tray(Record, gc=True):
    """What waits for one reward."""

    wake: asyncio.Event
    together: int = 1
    """Episodes of a group that are scored at once."""
    unscored: dict[AttemptId, Trajectory] = {}
    """All and only the episodes without a score, given out or not."""
    waiting: dict[int, list[AttemptId]] = {}
    """By group: all and only those that were not given out."""
    given: dict[AttemptId, Job] = {}
    """All and only those that were."""
    forgotten: list[Forget] = []
    """About those that were."""
    is_closed: bool = False


class Trays:
    """One tray per kind of environment that has a reward."""

    def __init__(self) -> None:
        self._trays: dict[str, Tray] = {}
        self._kinds: dict[AttemptId, str] = {}  # all and only the unscored
        self._closed = False

    def open(self, kind: str, together: int) -> None:
        """A reward of this kind is there, which scores so many episodes of a group at once."""
        tray = self._tray(kind)
        tray.together = together
        tray.is_closed = False

    def close(self, kind: str) -> list[AttemptId]:
        """Its reward is gone; says which scores will never come."""
        tray = self._tray(kind)
        tray.is_closed = True
        tray.wake.set()
        return [*tray.unscored]

    def close_all(self) -> None:
        """Nothing more will come, and nobody waits for what is there."""
        self._closed = True
        for tray in self._trays.values():
            tray.wake.set()

    def put(self, kind: str, trajectory: Trajectory) -> None:
        """An episode was played."""
        tray = self._tray(kind)
        attempt = trajectory.attempt
        tray.unscored[attempt] = trajectory
        self._kinds[attempt] = kind
        tray.waiting.setdefault(attempt.group, []).append(attempt)
        tray.wake.set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._kinds

    def unscored(self) -> dict[str, tuple[Trajectory, ...]]:
        """By kind, whatever waits for its score."""
        return {kind: tuple(tray.unscored.values()) for kind, tray in self._trays.items() if tray.unscored}

    def settle(self, attempt: AttemptId) -> bool:
        """The score has come, or never will; false if nobody waits for it."""
        kind = self._kinds.pop(attempt, None)
        if kind is None:
            return False
        tray = self._trays[kind]
        del tray.unscored[attempt]
        tray.given.pop(attempt, None)
        self._take_back(tray, attempt)
        return True

    def cancel(self, attempt: AttemptId) -> None:
        """Nobody wants this score."""
        tray = self._trays[self._kinds.pop(attempt)]
        del tray.unscored[attempt]
        job = tray.given.pop(attempt, None)
        if job is None:
            self._take_back(tray, attempt)
            return
        tray.forgotten.append(Forget(attempt))
        for other in job.trajectories:  # those of its group wait for another one to be scored with
            if tray.given.pop(other.attempt, None) is not None:
                tray.waiting.setdefault(other.attempt.group, []).append(other.attempt)
        tray.wake.set()

    async def fetch(self, kind: str) -> list[Job | Forget]:
        """Everything there is to do; waits for something; nothing means that all is over."""
        tray = self._tray(kind)
        while True:
            if self._closed or tray.is_closed:
                return []
            orders: list[Job | Forget] = [*tray.forgotten, *self._jobs(tray)]
            tray.forgotten.clear()
            if orders:
                return orders
            tray.wake.clear()
            await tray.wake.wait()

    def _jobs(self, tray: Tray) -> list[Job]:
        jobs = []
        for group, attempts in [*tray.waiting.items()]:
            while len(attempts) >= tray.together:
                given = [attempts.pop(0) for _ in range(tray.together)]
                job = Job(tuple(tray.unscored[attempt] for attempt in given))
                tray.given.update(dict.fromkeys(given, job))
                jobs.append(job)
            if not attempts:
                del tray.waiting[group]
        return jobs

    def _take_back(self, tray: Tray, attempt: AttemptId) -> None:
        """Take one out, if it was not given out."""
        attempts = tray.waiting.get(attempt.group, [])
        if attempt in attempts:
            attempts.remove(attempt)
            if not attempts:
                del tray.waiting[attempt.group]

    def _tray(self, kind: str) -> Tray:
        if kind not in self._trays:
            self._trays[kind] = Tray(asyncio.Event())
        return self._trays[kind]
