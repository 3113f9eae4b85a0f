"""ROLL's rollout scheduler: fixed queues, each with environments of its own.

Promises: there is a queue for every `group_size` slots. An environment plays for its own queue alone, and takes
the next free seat of its oldest group that has one. At every step a queue gets its share of new groups, at the
first one `1 + ratio` shares; groups older than the ratio are deleted, and their environments play on unaware.
A batch is built in rounds: each takes the oldest group of every queue and waits for it; what a round still
waits for is taken before the next one begins. A step advances when the next batch is wanted, and a group's age
counts from the step in which it was made.
"""

from collections import deque

from windrow.core.events import BatchWanted
from windrow.core.settings import Settings
from windrow.errors import ConfigError
from windrow.sim.rivals.groups import Group
from windrow.sim.rivals.rival import Rival
from windrow.types import Reason


class FixedQueues(Rival):
    """Queues of groups that no environment of another queue touches."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, batches=1)
        self.ratio = int(settings.train.staleness)
        self.current = -1  # the step of the last wanted batch
        self.share = 0  # groups that a queue gets, and gives, per step
        self.queues: list[dict[int, Group]] = []  # oldest group first
        self.owed: deque[int] = deque()  # the queues that the next tasks go to
        self.awaited: dict[int, None] = {}  # queues that the round has not taken a group of
        self.taken: list[Group] = []  # what the rounds have given for the wanted batch

    def home_of(self, slot: int) -> int:
        """The queue of an environment; what is left over belongs to a queue that never has groups."""
        return slot // self.group_size

    def want(self, event: BatchWanted) -> None:
        """The trainer waits for a batch; if it is that of the next step, the step advances."""
        self.wanted = None  # nothing is taken of groups that are about to be deleted
        if not self.queues:
            self._open_queues()
        if event.step > self.current:
            self._advance(event.step)
        super().want(event)
        for number in list(self.awaited):
            self._take(number)
        self._go_round()

    def room(self) -> int:
        """What its queues are owed; there is no other window."""
        return len(self.owed)

    def place(self, group: Group) -> None:
        """A task becomes a group of the queue whose turn it is, as old as the step."""
        group.home = self.owed.popleft()
        group.version = self.current
        self.queues[group.home][group.number] = group
        self.offer(group)

    def give_up(self, group: Group, why: Reason) -> None:
        """A deleted group is not replaced; one that failed is, by a new one at the end of its queue."""
        self.queues[group.home].pop(group.number, None)
        if why != "stale":
            self.owed.append(group.home)
        super().give_up(group, why)

    def closed(self, group: Group) -> None:
        """The round may have waited for this group."""
        self._take(group.home)
        self._go_round()

    def lag(self, group: Group) -> int:
        """Counted in steps, from the one in which the group was made."""
        return self.current - group.version

    def batch(self) -> list[Group] | None:
        """What the rounds have given, if it is enough."""
        if self.sources.is_dry:
            self._pass_over_empty_queues()
        if self._is_short and not (self.sources.is_dry and not any(self.queues)):
            return None
        taken, self.taken = self.taken, []
        return taken

    def _open_queues(self) -> None:
        """A queue for each `group_size` slots that there are when the first batch is wanted."""
        num_queues = self.slots.count // self.group_size
        if not num_queues or self.batch_groups % num_queues:
            raise ConfigError(
                f"fixed queues need a number of groups per batch ({self.batch_groups}) that is a multiple of the "
                f"queues ({self.slots.count} slots ÷ group_size {self.group_size} = {num_queues})"
            )
        self.share = self.batch_groups // num_queues
        self.queues = [{} for _ in range(num_queues)]

    def _advance(self, step: int) -> None:
        """Old groups are deleted, new ones are made."""
        shares = 1 if self.current >= 0 else 1 + self.ratio
        self.current = step
        for group in [group for group in self.groups.values() if step - group.version > self.ratio]:
            self.give_up(group, "stale")
        self.taken = [group for group in self.taken if group.given_up is None]
        self.owed.extend(list(range(len(self.queues))) * (self.share * shares))

    @property
    def _is_short(self) -> bool:
        return len(self.taken) < self.batch_groups

    def _go_round(self) -> None:
        """Begin a round whenever the last one is over and the batch is short."""
        while self.wanted is not None and self._is_short and not self.awaited and any(self.queues):
            dry = self.sources.is_dry
            self.awaited = {number: None for number, queue in enumerate(self.queues) if queue or not dry}
            for number in list(self.awaited):
                self._take(number)

    def _take(self, number: int) -> None:
        """Take the oldest group of a queue, if the round waits for it and it is complete."""
        queue = self.queues[number]
        oldest = next(iter(queue), None)
        if self.wanted is not None and self._is_short and number in self.awaited and oldest in self.ready:
            del self.awaited[number]
            self.taken.append(queue.pop(oldest))

    def _pass_over_empty_queues(self) -> None:
        """No task will come any more, so nothing can be awaited of a queue that has none."""
        self.awaited = {number: None for number in self.awaited if self.queues[number]}
        self._go_round()
