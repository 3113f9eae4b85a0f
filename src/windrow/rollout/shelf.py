"""Where tasks and finished trajectories lie while the machine decides about their groups.

Promises: a trajectory lies here from the moment it is reported until its group is dropped or its batch is trained on,
and not longer; a batch that is asked for again is found unchanged.
"""

from collections.abc import Iterable

from windrow.errors import InternalError
from windrow.trajectory import Task, Trajectory
from windrow.types import AttemptId, Mode, Record


class Folder(Record, gc=True):
    """One group; what stands in it is never changed, only added or thrown away."""

    task: Task
    mode: Mode
    trajectories: dict[AttemptId, Trajectory] = {}


class Shelf:
    """All and only the groups that live or wait to be trained on."""

    def __init__(self) -> None:
        self.folders: dict[int, Folder] = {}  # by group; to be changed by nobody else
        self.batches: dict[int, tuple[int, ...]] = {}  # the groups of those that were handed out and not trained on

    def copy(self) -> "Shelf":
        """The same trajectories on another shelf."""
        other = Shelf()
        other.folders = {group: Folder(f.task, f.mode, dict(f.trajectories)) for group, f in self.folders.items()}
        other.batches = dict(self.batches)
        return other

    def __len__(self) -> int:
        return len(self.folders)

    def open(self, group: int, task: Task, mode: Mode) -> None:
        """A group of this task may begin."""
        self.folders[group] = Folder(task, mode)

    def mode(self, group: int) -> Mode | None:
        """What a group is for; None if it is over."""
        folder = self.folders.get(group)
        return None if folder is None else folder.mode

    def task(self, group: int) -> Task:
        return self._folder(group).task

    def put(self, attempt: AttemptId, trajectory: Trajectory) -> bool:
        """Keep a trajectory, if its group still lives and has none of this attempt; says whether it was kept."""
        folder = self.folders.get(attempt.group)
        if folder is None or attempt in folder.trajectories:
            return False
        folder.trajectories[attempt] = trajectory
        return True

    def members(self, group: int) -> list[Trajectory]:
        """What lies here of a group, in the order in which it came."""
        folder = self.folders.get(group)
        return [] if folder is None else [*folder.trajectories.values()]

    def discard(self, attempt: AttemptId) -> None:
        """Nobody wants this one."""
        folder = self.folders.get(attempt.group)
        if folder is not None:
            folder.trajectories.pop(attempt, None)

    def take(self, batch: int, groups: tuple[int, ...], attempts: Iterable[AttemptId]) -> list[Trajectory]:
        """The trajectories of a batch, in order; they stay until it is retired."""
        self.batches[batch] = groups
        return self.read(attempts)

    def read(self, attempts: Iterable[AttemptId]) -> list[Trajectory]:
        return [self._folder(attempt.group).trajectories[attempt] for attempt in attempts]

    def retire(self, batch: int) -> None:
        """A batch was trained on."""
        for group in self.batches.pop(batch, ()):
            del self.folders[group]

    def drop(self, group: int) -> None:
        """A group is over."""
        self.folders.pop(group, None)

    def empty(self, group: int) -> None:
        """A group begins again."""
        self._folder(group).trajectories.clear()

    def _folder(self, group: int) -> Folder:
        folder = self.folders.get(group)
        if folder is None:
            raise InternalError(f"group g{group} is not on the shelf")
        return folder
