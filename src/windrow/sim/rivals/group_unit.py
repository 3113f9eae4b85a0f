"""Scheduling by group: a group takes as many slots as it has members, and keeps them until its slowest is done.

Promises: slots that a group keeps without playing are idle, whoever waits. With `bound` 0 a batch is begun when
the one before it is trained on; with `bound` 1 one more batch of groups may be ahead, and the first complete
groups are delivered, however old. Without a `bound` the staleness of the settings is taken.
"""

from windrow.core.events import BatchWanted
from windrow.core.settings import Settings
from windrow.errors import ConfigError
from windrow.sim.rivals.groups import Group
from windrow.sim.rivals.rival import POOL, Rival
from windrow.sim.rivals.slots import Slot


class GroupUnit(Rival):
    """Groups in the order of arrival, each with slots of its own while it is played."""

    def __init__(self, settings: Settings, bound: int | None = None) -> None:
        super().__init__(settings, batches=1 + (int(settings.train.staleness) if bound is None else bound))
        self.reserved: dict[int, list[Slot]] = {}  # by group, all and only the slots that are not in the pool

    def want(self, event: BatchWanted) -> None:
        """By now all slots are known."""
        if self.slots.count < self.group_size:
            raise ConfigError(
                f"group-unit scheduling needs a slot for each member of a group ({self.group_size}), "
                f"got {self.slots.count} slots"
            )
        super().want(event)

    def fill(self, home: int) -> None:
        """Play what has slots of its own; from the pool, give groups theirs."""
        if home != POOL:
            super().fill(home)
            return
        while self.slots.num_free(POOL) >= self.group_size:
            group = self.first(POOL)
            if group is None:
                return
            self.reserved[group.number] = self.slots.reserve(POOL, self.group_size, group.number)
            group.home = group.number
            self.offer(group)

    def closed(self, group: Group) -> None:
        """The slots of a group return to the pool together."""
        slots = self.reserved.pop(group.number, [])
        self.slots.release(group.number, slots, POOL)
        self.lines.pop(group.number, None)
        self.stirred[POOL] = None
