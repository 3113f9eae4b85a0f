"""What a rival knows of the groups it has admitted and of the attempts it plays."""

from windrow.sim.rivals.slots import Slot
from windrow.types import AttemptId, Reason, Record


class Group(Record):
    """One task that was admitted."""

    number: int
    ordinal: int
    tag: str
    home: int
    """Whose slots may play it."""
    indexes: list[int]
    """Attempts that are still to be played, the next one last; a seat's tries are `group_size` apart."""
    version: int = -1
    """What its lag is counted from; -1 until it begins."""
    num_playing: int = 0
    finished: list[AttemptId] = []
    failures: int = 0
    given_up: Reason | None = None
    """Why its results are ignored."""


class Play(Record):
    """One attempt that is being played."""

    group: Group
    slot: Slot
    engine: str
