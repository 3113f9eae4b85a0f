"""What became of everything, per mode: the conservation ledger and the waste.

Promises: admitted = trained + delivered and not yet trained + dropped, by reason + alive, at any moment, for attempts
and for groups. Work that no batch will use is booked once, under one cause, in attempts, tokens and seconds.
"""

from windrow.types import CAUSE_OF, Cause, Reason, Record


class Account(Record):
    """Counts of one sort of thing."""

    admitted: int = 0
    trained: int = 0
    delivered: int = 0
    """Handed to a consumer and not yet acknowledged."""
    alive: int = 0
    dropped: dict[Reason, int] = {}

    def admit(self) -> None:
        self.admitted += 1
        self.alive += 1

    def drop(self, why: Reason) -> None:
        self.alive -= 1
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def deliver(self, count: int) -> None:
        self.alive -= count
        self.delivered += count

    def train(self, count: int) -> None:
        self.delivered -= count
        self.trained += count

    @property
    def balance(self) -> int:
        """What is missing from the books; always 0."""
        return self.admitted - self.trained - self.delivered - sum(self.dropped.values()) - self.alive


class Waste(Record):
    """Work that no batch will use."""

    attempts: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Ledger(Record):
    """Both accounts of a mode, its waste, and how old its delivered groups were."""

    attempts: Account
    groups: Account
    waste: dict[Cause, Waste] = {}
    lag_sum: int = 0
    """Of all delivered groups, in versions."""
    lag_max: int = 0
    lags: int = 0
    """How many groups that sum is over."""

    def throw_away(self, why: Reason, tokens: int, seconds: float) -> None:
        """Book one attempt that will not be used."""
        self.attempts.drop(why)
        cause = CAUSE_OF[why]
        waste = self.waste.get(cause)
        if waste is None:
            waste = self.waste[cause] = Waste()
        waste.attempts += 1
        waste.tokens += tokens
        waste.seconds += seconds

    def deliver_group(self, attempts: int, lag: int) -> None:
        """Book one group that a consumer gets."""
        self.groups.deliver(1)
        self.attempts.deliver(attempts)
        self.lags += 1
        self.lag_sum += lag
        self.lag_max = max(self.lag_max, lag)

    def take_back_group(self, attempts: int, lag: int) -> None:
        """Undo `deliver_group`; the largest lag ever seen stays."""
        self.groups.deliver(-1)
        self.attempts.deliver(-attempts)
        self.lags -= 1
        self.lag_sum -= lag


def empty_ledger() -> Ledger:
    """A ledger before anything happened."""
    return Ledger(attempts=Account(), groups=Account())
