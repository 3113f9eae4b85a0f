"""Failures: budgets, quarantine and the breaker.

Promises: a failure is never a score. Each kind of blame has its own budget per group; a task that uses up the budget of
its environment or reward, or is itself at fault, is quarantined and never played again until it is pardoned. When a
share of the last attempts has failed that no single task explains, the breaker opens with the first cause; a task that
comes again and is turned away counts as one of them, so that a source with nothing else to give ends in words.
"""

from windrow.core.groups import Group
from windrow.core.settings import Settings
from windrow.types import Blame, Reason, Record

POISONOUS: frozenset[Blame] = frozenset({"env", "reward", "task"})
"""Blames that say something about the task, not about the machinery."""
LONGEST_REST_S = 300.0
"""However often it failed, a group is tried again after so long."""
MOST_DOUBLINGS = 30
"""Enough to pass the longest rest from a millionth of a second."""


class DeadLetter(Record):
    """A task that is not played any more."""

    task: str
    tag: str
    ordinal: int
    why: str
    at: float
    failures: int
    refused: int = 0
    """How often it came again and was turned away."""


class FaultBook:
    """What failed lately and what may not be tried again."""

    def __init__(self, settings: Settings) -> None:
        self.budgets: dict[Blame, int] = {
            "env": settings.env_retries,
            "reward": settings.reward_retries,
            "engine": settings.engine_retries,
            "worker": settings.worker_retries,
            "task": 0,
        }
        self.backoff_s = settings.backoff_s
        self.window = settings.breaker_window
        self.share = settings.breaker_share
        self.recent: list[str] = []  # the last ended attempts, oldest first from `cursor`: why it failed, or ""
        self.cursor = 0
        self.failed = 0  # how many of them failed
        self.halted = ""  # the first cause, while the breaker is open
        self.dead: dict[str, DeadLetter] = {}  # all and only the quarantined tasks

    def note(self, why: str) -> bool:
        """Count one ended attempt, with why it failed or ""; true if the breaker opens now."""
        if len(self.recent) < self.window:
            self.recent.append(why)
        else:
            self.failed -= bool(self.recent[self.cursor])
            self.recent[self.cursor] = why
            self.cursor = (self.cursor + 1) % self.window
        self.failed += bool(why)
        if not why or self.halted or self.share >= 1.0 or len(self.recent) < self.window:
            return False
        if self.failed < self.share * self.window:
            return False
        ordered = self.recent[self.cursor :] + self.recent[: self.cursor]
        first = next(cause for cause in ordered if cause)
        self.halted = f"{self.failed} of the last {self.window} attempts failed; the first: {first}"
        return True

    def reset(self) -> None:
        """Close the breaker and forget what opened it."""
        self.recent.clear()
        self.cursor = self.failed = 0
        self.halted = ""

    def verdict(self, group: Group, blame: Blame) -> Reason | None:
        """Whether a group's failure was one too many: why to drop it, or None to try again."""
        if group.failures.get(blame, 0) <= self.budgets[blame]:
            return None
        return "poisoned" if blame in POISONOUS else "failed"

    def rest_s(self, group: Group) -> float:
        """How long to wait before the group's next retry."""
        doublings = min(sum(group.failures.values()) - 1, MOST_DOUBLINGS)
        return min(LONGEST_REST_S, self.backoff_s * 2.0**doublings)

    def bury(self, group: Group, why: str, now: float) -> None:
        """Quarantine a group's task, if it has a name by which it could come again, or an ordinal if not."""
        name = dead_name(group)
        self.dead[name] = DeadLetter(
            task=name,
            tag=group.tag,
            ordinal=group.ordinal,
            why=why,
            at=now,
            failures=sum(group.failures.values()),
        )


def dead_name(group: Group) -> str:
    """The name under which a group's task is quarantined."""
    return group.task or f"{group.mode}:{group.tag}#{group.ordinal}"
