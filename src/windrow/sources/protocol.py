"""What a task source promises: tasks in order, each with a place from which it can be found again.

A source is asked for what there is room for, never more. Its position is a few numbers; a source at the same position
gives the same tasks again, in another process too. A position counts what `next` has answered with and nothing else:
a call that is broken off has taken nothing.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from windrow.trajectory import Task


class TaskSource(Protocol):
    """Where problems come from."""

    @property
    def is_endless(self) -> bool:
        """It never runs out."""
        ...

    async def next(self, tag: str, count: int) -> list[Task]:
        """The next tasks of a tag; fewer than asked for when there are no more."""
        ...

    def rewind(self) -> None:
        """Begin again at the first task: the next validation."""
        ...

    def position(self) -> dict[str, int]:
        """How far it is: for each tag by its name, and whatever else it needs to go on."""
        ...

    def restore(self, position: dict[str, int]) -> None:
        """Go on from a position."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A source that chooses tasks by how the earlier ones went."""

    def note(self, task: Task, scores: Sequence[float]) -> None:
        """The attempts at one of its tasks are over; these are their scores."""
        ...


@runtime_checkable
class Tagged(Protocol):
    """A source that says which tags it has."""

    @property
    def tags(self) -> Sequence[str]:
        """All and only its tags; none while they are not known yet."""
        ...


@runtime_checkable
class Retriever(Protocol):
    """A source from which a task can be had again."""

    async def fetch(self, ordinal: int) -> Task:
        """The task with an ordinal; nothing moves on."""
        ...
