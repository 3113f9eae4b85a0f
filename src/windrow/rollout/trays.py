"""Where played episodes wait for their score.

Promises: an episode lies here from its end until its score is reported or nobody wants it any more; each is given out
once; those of a reward that scores groups are given out together, when a group has enough of them. What is given out is
a job with a number of its own: when one of its episodes is cancelled the job is called back, the others of it wait
again, and whatever is said of that job afterwards does not count.
"""

import asyncio
from itertools import count

from windrow.trajectory import Trajectory
from windrow.types import AttemptId, Record, Value


class Job(Value, frozen=True, gc=True):
    """Episodes to be scored: one, or all of a group together."""

    number: int
    trajectories: tuple[Trajectory, ...]


class Forget(Value, frozen=True):
    """Nobody waits for what this job gives."""

    job: int


class Tray(Record, gc=True):
    """What waits for one reward."""

    wake: asyncio.Event
    together: int = 1
    """Episodes of a group that are scored at once."""
    unscored: dict[AttemptId, Trajectory] = {}
    """All and only the episodes without a score, given out or not."""
    waiting: dict[int, list[AttemptId]] = {}
    """By group: all and only those that were not given out."""
    ripe: dict[int, None] = {}
    """All and only the groups of which enough wait."""
    given: dict[AttemptId, Job] = {}
    """All and only those that were given out."""
    forgotten: list[Forget] = []
    is_closed: bool = False


class Trays:
    """One tray per kind of environment that has a reward."""

    def __init__(self) -> None:
        self._trays: dict[str, Tray] = {}
        self._kinds: dict[AttemptId, str] = {}  # all and only the unscored
        self._jobs: dict[int, Job] = {}  # all and only those that are given out and not called back
        self._numbers = count()
        self._closed = False

    def open(self, kind: str, together: int) -> None:
        """A reward of this kind is there, which scores so many episodes of a group at once."""
        tray = self._tray(kind)
        tray.together = together
        tray.is_closed = False
        for group in tray.waiting:
            _look_at(tray, group)

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

    def put(self, kind: str, trajectory: Trajectory) -> bool:
        """An episode was played; false if it lies here already."""
        attempt = trajectory.attempt
        if attempt in self._kinds:
            return False
        tray = self._tray(kind)
        tray.unscored[attempt] = trajectory
        self._kinds[attempt] = kind
        self._wait(tray, attempt)
        return True

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._kinds

    def unscored(self) -> dict[str, tuple[Trajectory, ...]]:
        """By kind, whatever waits for its score."""
        return {kind: tuple(tray.unscored.values()) for kind, tray in self._trays.items() if tray.unscored}

    def not_given_out(self, prefix: str) -> list[Trajectory]:
        """Of the kinds that begin like this, whatever nobody scores yet."""
        trays = [tray for kind, tray in self._trays.items() if kind.startswith(prefix)]
        return [tray.unscored[attempt] for tray in trays for group in tray.waiting.values() for attempt in group]

    def done(self, number: int) -> bool:
        """A job was done, and its episodes are not unscored any more; false if it was called back."""
        job = self._jobs.get(number)
        for trajectory in job.trajectories if job is not None else ():
            self.remove(trajectory.attempt)
        return job is not None

    def failed(self, number: int) -> Trajectory | None:
        """A job cannot be done: one episode is given up, the others wait for another; None if it was called back."""
        job = self._jobs.get(number)
        if job is None:
            return None
        first = job.trajectories[0]
        self.remove(first.attempt)
        return first

    def remove(self, attempt: AttemptId) -> bool:
        """Nobody waits for this score any more; what it was given out with waits again. False if it is not here."""
        kind = self._kinds.pop(attempt, None)
        if kind is None:
            return False
        tray = self._trays[kind]
        del tray.unscored[attempt]
        job = tray.given.pop(attempt, None)
        if job is None:
            _take_back(tray, attempt)
        else:
            self._call_back(tray, job)
        return True

    def cancel(self, attempt: AttemptId) -> None:
        """Nobody wants this score: whoever works on it is told."""
        tray = self._trays[self._kinds[attempt]]
        job = tray.given.get(attempt)
        self.remove(attempt)
        if job is not None:
            tray.forgotten.append(Forget(job.number))
            tray.wake.set()

    async def fetch(self, kind: str) -> list[Job | Forget]:
        """Everything there is to do; waits for something; nothing means that all is over."""
        tray = self._tray(kind)
        while True:
            if self._closed or tray.is_closed:
                return []
            orders: list[Job | Forget] = [*tray.forgotten, *self._given_out(tray)]
            tray.forgotten.clear()
            if orders:
                return orders
            tray.wake.clear()
            await tray.wake.wait()

    def _given_out(self, tray: Tray) -> list[Job]:
        jobs = []
        for group in [*tray.ripe]:
            attempts = tray.waiting[group]
            while len(attempts) >= tray.together:
                given, attempts[: tray.together] = attempts[: tray.together], []
                job = Job(next(self._numbers), tuple(tray.unscored[attempt] for attempt in given))
                self._jobs[job.number] = job
                tray.given.update(dict.fromkeys(given, job))
                jobs.append(job)
            _look_at(tray, group)
        return jobs

    def _call_back(self, tray: Tray, job: Job) -> None:
        """What is still wanted of a job waits again."""
        self._jobs.pop(job.number, None)
        for other in job.trajectories:
            if tray.given.pop(other.attempt, None) is not None:
                self._wait(tray, other.attempt)

    def _wait(self, tray: Tray, attempt: AttemptId) -> None:
        tray.waiting.setdefault(attempt.group, []).append(attempt)
        _look_at(tray, attempt.group)
        tray.wake.set()

    def _tray(self, kind: str) -> Tray:
        if kind not in self._trays:
            self._trays[kind] = Tray(asyncio.Event())
        return self._trays[kind]


def _take_back(tray: Tray, attempt: AttemptId) -> None:
    """Take one out that was not given out."""
    tray.waiting[attempt.group].remove(attempt)
    _look_at(tray, attempt.group)


def _look_at(tray: Tray, group: int) -> None:
    """Put a group where it belongs by the number of those that wait."""
    waiting = len(tray.waiting[group])
    if waiting >= tray.together:
        tray.ripe[group] = None
    else:
        tray.ripe.pop(group, None)
    if not waiting:
        del tray.waiting[group]
