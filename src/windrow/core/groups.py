"""Groups and their attempts: what is wanted, what plays, what has finished.

Promises: an index is never used twice in a group, nor a group's number in a run; a group never holds more than its
size and its spares; its `version` is the oldest that any of its tokens can have.
"""

from typing import Literal

from windrow.types import AttemptId, Blame, Mode, Record

GroupState = Literal["open", "judging", "ready", "aside", "delivered"]
Rank = tuple[int, int, float, int, int]
"""Place in the order of play, smallest first; the last part is the group's number, so no two are equal."""


class Attempt(Record):
    """One try, from its lease until its group leaves."""

    id: AttemptId
    seat: int
    """Which member of its group it is; a retry takes the seat of the attempt it replaces."""
    worker: str
    engine: str
    """Empty while there is none for it."""
    granted_at: float
    deadline: float
    """When its lease runs out."""
    version: int
    """The oldest that its tokens can have; exact once it has reported."""
    work: float
    """Tokens it was expected to cost, booked with its engine."""
    tokens: int = 0
    seconds: float = 0.0
    """How long it was played, once that is over."""
    score: float = 0.0
    scoring: bool = False
    """Played to its end, waiting for its score; no slot and no engine are with it."""
    finished: bool = False
    moves: int = 0


class Group(Record):
    """All attempts at one task."""

    id: int
    mode: Mode
    ordinal: int
    tag: str
    kind: str
    task: str
    size: int
    spares: int
    arrived_at: float
    state: GroupState = "open"
    attempts: dict[int, Attempt] = {}
    """All and only those that play or have finished, by index."""
    next_index: int = 0
    seated: int = 0
    """Seats given out so far; the next new one has this number."""
    vacated: list[int] = []
    """A heap: seats whose attempt was thrown away, to be taken again."""
    running: int = 0
    """Attempts that play or wait for their score."""
    finished: int = 0
    resting: list[int] = []
    """Indexes of failed attempts whose retry waits for its back-off to pass."""
    version: int = -1
    """The oldest of its attempts; -1 while it has none."""
    seconds: float = 0.0
    """Sum over its finished attempts, from which the length of the others is foretold."""
    tokens: int = 0
    failures: dict[Blame, int] = {}
    engine: str = ""
    """Where its last attempt was placed: its prompt is cached there."""
    rank: Rank | None = None
    """Its place in the order of play; None if it wants no slot."""
    last_failure: str = ""

    @property
    def wants(self) -> int:
        """Attempts that could be started now."""
        if self.state != "open":
            return 0
        return self.size + self.spares - self.finished - self.running - len(self.resting)

    def oldest_version(self) -> int:
        """The oldest version of its attempts, counted anew; -1 if it has none."""
        return min((attempt.version for attempt in self.attempts.values()), default=-1)

    def finished_ids(self) -> list[AttemptId]:
        """Its finished attempts, in order of their index."""
        return [attempt.id for _, attempt in sorted(self.attempts.items()) if attempt.finished]
