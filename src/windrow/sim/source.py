"""Where simulated tasks come from.

Promises: the n-th task of a tag is the same whatever was fetched before it. Tags take ordinals in turn, so an
ordinal belongs to one tag. A source that has ended says so whenever it is asked.
"""

from windrow.core.events import SourceEnded, TaskArrived
from windrow.sim.scheduler import Tell
from windrow.sim.workload import Workload
from windrow.types import Mode


class TaskSource:
    """The tasks of one mode."""

    def __init__(
        self,
        mode: Mode,
        tags: list[str],
        tasks: int | None,
        workload: Workload,
        tell: Tell,
    ) -> None:
        self.mode: Mode = mode
        self.tasks = tasks
        self.stride = len(tags)
        self.next = {tag: place for place, tag in enumerate(tags)}  # the next ordinal of each tag
        self.workload = workload
        self.tell = tell

    def fetch(self, tag: str, count: int) -> None:
        """Answer with tasks, as long as there are any."""
        for _ in range(count):
            ordinal = self.next[tag]
            if self.tasks is not None and ordinal >= self.tasks:
                self.tell(SourceEnded(self.mode, tag))
                return
            self.next[tag] = ordinal + self.stride
            name, kind = self.workload.task_name(ordinal), self.workload.kind(ordinal)
            self.tell(TaskArrived(self.mode, ordinal, tag, kind, name))
