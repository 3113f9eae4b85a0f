"""What a task source promises: tasks in order, each with a place from which it can be found again.

A source is asked for what there is room for, never more. Its position is a number; a source at the same position gives
the same tasks again, in another process too.
"""

from typing import Protocol

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
        """How far each tag is."""
        ...

    def restore(self, position: dict[str, int]) -> None:
        """Go on from a position."""
        ...
