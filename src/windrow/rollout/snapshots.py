"""A rollout path on paper: what its queue knew and had, and how far each mode had come with asking.

Promises: what is read back goes on exactly like what was written down: no task comes twice, none is left out, a batch
that was handed out and not trained on comes again under its number, and what was played and waits for its score, its
group or its batch is not played again. Tokens, log-probabilities and scores are kept bit by bit, as recordings keep
them. What was half played is played again from the same seeds. Bytes that are something else are refused.
"""

from collections.abc import Iterator

from windrow.core.events import AnyEvent, EngineLost, ResumeWanted, WantWithdrawn, WorkerLost
from windrow.core.status import Status
from windrow.errors import ConfigError
from windrow.rollout.passes import Progress
from windrow.rollout.shelf import Folder, Shelf
from windrow.sources.recordings import packed_value, unpacked_value
from windrow.trajectory import Task, Trajectory
from windrow.types import Mode, Value

FORMAT = 1
"""Raised whenever an older snapshot could no longer be understood."""
WHAT = "the snapshot of the rollouts"
WHY = "the queue was restored"


class QueueSnapshot(Value, frozen=True, kw_only=True, gc=True):
    """A queue at one moment: what the machine knew, what lay on the shelf, how far the sources were."""

    machine: bytes
    shelf: Shelf
    unscored: dict[str, tuple[Trajectory, ...]]
    """Episodes that waited for their score, by kind."""
    positions: dict[Mode, dict[str, int]]
    steps_are_versions: bool


class GroupState(Value, frozen=True, kw_only=True, gc=True):
    """One group on the shelf."""

    group: int
    task: Task
    mode: Mode
    trajectories: tuple[Trajectory, ...]


class Format(Value, frozen=True, kw_only=True):
    """What every snapshot has, whatever its format."""

    format: int


class State(Format, frozen=True, kw_only=True, gc=True):
    """Everything that is written down."""

    machine: bytes
    groups: tuple[GroupState, ...]
    batches: dict[int, tuple[int, ...]]
    unscored: dict[str, tuple[Trajectory, ...]]
    positions: dict[Mode, dict[str, int]]
    steps_are_versions: bool
    progress: dict[Mode, Progress]


class Snapshot(Value, frozen=True, kw_only=True, gc=True):
    """A queue and those who ask it, at one moment."""

    queue: QueueSnapshot
    progress: dict[Mode, Progress]


def bygone(status: Status) -> Iterator[AnyEvent]:
    """What has happened to those who worked, waited and held something when a machine was saved."""
    for engine in status.engines:
        for holder in engine.holders:
            yield ResumeWanted(holder)
        yield EngineLost(engine.engine, WHY)
    for worker in status.workers:
        yield WorkerLost(worker, WHY)
    for lane in status.lanes.values():
        for want in lane.waiting:
            yield WantWithdrawn(want.consumer)


def save(snapshot: Snapshot) -> bytes:
    """A snapshot as bytes."""
    queue = snapshot.queue
    groups = [
        GroupState(group=group, task=folder.task, mode=folder.mode, trajectories=tuple(folder.trajectories.values()))
        for group, folder in queue.shelf.folders.items()
    ]
    state = State(
        format=FORMAT,
        machine=queue.machine,
        groups=tuple(groups),
        batches=queue.shelf.batches,
        unscored=queue.unscored,
        positions=queue.positions,
        steps_are_versions=queue.steps_are_versions,
        progress=snapshot.progress,
    )
    return packed_value(state, WHAT)


def load(data: bytes) -> Snapshot:
    """What `save` wrote."""
    found = unpacked_value(data, Format, WHAT).format
    if found != FORMAT:
        raise ConfigError(f"{WHAT} has format {found}; this version reads format {FORMAT}")
    state = unpacked_value(data, State, WHAT)
    shelf = Shelf()
    shelf.batches = state.batches
    for kept in state.groups:
        trajectories = {trajectory.attempt: trajectory for trajectory in kept.trajectories}
        shelf.folders[kept.group] = Folder(kept.task, kept.mode, trajectories)
    queue = QueueSnapshot(
        machine=state.machine,
        shelf=shelf,
        unscored=state.unscored,
        positions=state.positions,
        steps_are_versions=state.steps_are_versions,
    )
    return Snapshot(queue=queue, progress=state.progress)
