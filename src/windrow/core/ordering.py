"""Which group plays next.

Promises: the order is total and depends on the groups alone, so a queue rebuilt from a snapshot serves in the same
order. Spares come last. In arrival order groups come by their number. In learnt order a group's length is foretold from
its finished attempts, else from the last time its task was played, else it is unknown, and unknown counts as long,
for a short one would have finished. Synchronous: one attempt of each group first, for it tells the group's length,
then the longest. With a bound: groups that have begun before new ones, so that they leave before they are old.
"""

from heapq import heapify, heappop, heappush

from windrow.core.groups import Group, Rank
from windrow.core.settings import ModeSettings
from windrow.types import Record

REMEMBERED_TASKS = 100_000
"""Tasks whose lengths are remembered; the one played longest ago is forgotten first."""

UNKNOWN = float("-inf")
SLACK = 64
"""Outdated entries that a heap may hold beyond its living ones before it is rebuilt."""


class Lengths(Record):
    """How long episodes take, by task and by tag."""

    seconds: dict[str, float] = {}
    """Mean length of the last group of each task that finished."""
    tag_tokens: dict[str, float] = {}
    """Moving mean of tokens per attempt."""

    def learn(self, group: Group) -> None:
        """Remember a complete group."""
        if not group.task:
            return
        self.seconds.pop(group.task, None)
        self.seconds[group.task] = group.seconds / group.finished
        if len(self.seconds) > REMEMBERED_TASKS:
            del self.seconds[next(iter(self.seconds))]

    def foretell_tokens(self, group: Group) -> float:
        """Tokens that one more attempt of this group will probably cost; at least one, so that all are spread."""
        if group.finished:
            return max(1.0, group.tokens / group.finished)
        return max(1.0, self.tag_tokens.get(group.tag, 1.0))


def rank(group: Group, settings: ModeSettings, lengths: Lengths) -> Rank:
    """The group's place in the order of play."""
    spare = 1 if group.finished + group.running + len(group.resting) >= group.size else 0
    if settings.order == "arrival":
        return (spare, 0, 0.0, 0, group.id)
    begun = group.version >= 0
    if settings.staleness > 0.0:
        phase, started = int(not begun), 0
    else:
        phase, started = int(begun), group.running  # of those that are equally unknown each gets one more in turn
    if group.finished:
        return (spare, phase, -group.seconds / group.finished, 0, group.id)
    known = lengths.seconds.get(group.task)
    return (spare, phase, UNKNOWN if known is None else -known, started, group.id)


class RankedQueue:
    """Groups of one kind that want a slot, best first."""

    def __init__(self) -> None:
        self.heap: list[Rank] = []  # holds at least the rank of every queued group; outdated ones are skipped
        self.size = 0  # groups that are queued

    def put(self, group: Group, rank: Rank) -> None:
        """Queue a group, or give it a new place."""
        if group.rank is None:
            self.size += 1
        elif group.rank == rank:
            return
        group.rank = rank
        heappush(self.heap, rank)

    def remove(self, group: Group) -> None:
        """Take a group out."""
        if group.rank is not None:
            group.rank = None
            self.size -= 1

    def best(self, groups: dict[int, Group]) -> Rank:
        """The rank of the first of at least one queued groups; its last part is the group's number."""
        heap = self.heap
        if len(heap) > 2 * self.size + SLACK:
            self._rebuild(groups)
        while True:
            top = heap[0]
            group = groups.get(top[4])
            if group is not None and group.rank == top:
                return top
            heappop(heap)

    def _rebuild(self, groups: dict[int, Group]) -> None:
        living = {top for top in self.heap if (group := groups.get(top[4])) is not None and group.rank == top}
        self.heap[:] = living
        heapify(self.heap)
