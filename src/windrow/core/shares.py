"""Which tag the next task is asked from.

Promises: over a window of groups each tag gets its weight's share of those that are not dropped; a tag that has its
share of the living groups leaves the rest to the others; a share that no other tag can use is lent. A tag that could
not be served is not repaid without end: its claim is limited to the window.
"""

from math import ceil

from windrow.types import Record

WINDOW_CAPS = 4
"""The window, in multiples of the groups that may live at once."""


class TagShare(Record):
    """What one tag has had."""

    weight: float
    served: float = 0.0
    """Groups asked for and not dropped, divided by the weight; the smallest is served next."""
    asked: int = 0
    """Asked for and not arrived."""
    alive: int = 0
    """Admitted, and neither trained nor dropped."""
    ended: bool = False


class TagBook:
    """The tags of one mode."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.table = {tag: TagShare(weight=weight) for tag, weight in weights.items()}

    @property
    def asked(self) -> int:
        return sum(share.asked for share in self.table.values())

    @property
    def ended(self) -> bool:
        """No tag will ever bring another task."""
        return all(share.ended for share in self.table.values())

    def ask(self, room: int, cap: int) -> list[tuple[str, int]]:
        """Divide `room` more groups between the tags, when `cap` may live."""
        open_tags = [tag for tag, share in self.table.items() if not share.ended]
        if not open_tags:
            return []
        if len(open_tags) == 1:
            self._charge(open_tags[0], room)
            return [(open_tags[0], room)]
        counts = dict.fromkeys(open_tags, 0)
        for _ in range(room):
            tag = self._next(open_tags, cap)
            self._charge(tag, 1)
            counts[tag] += 1
        return [(tag, count) for tag, count in counts.items() if count]

    def arrive(self, tag: str) -> None:
        share = self.table[tag]
        share.asked -= 1
        share.alive += 1

    def end(self, tag: str) -> None:
        """The source of this tag is dry; what was asked for will not come."""
        share = self.table[tag]
        share.served -= share.asked / share.weight
        share.asked = 0
        share.ended = True

    def settle(self, tag: str, *, used: bool) -> None:
        """A group of this tag was trained, or dropped and does not count as served."""
        share = self.table[tag]
        share.alive -= 1
        if not used:
            share.served -= 1 / share.weight

    def _charge(self, tag: str, count: int) -> None:
        share = self.table[tag]
        share.asked += count
        share.served += count / share.weight

    def _next(self, open_tags: list[str], cap: int) -> str:
        shares = self.table
        total = sum(shares[tag].weight for tag in open_tags)
        ceiling = max(shares[tag].served for tag in open_tags)
        for tag in open_tags:
            shares[tag].served = max(shares[tag].served, ceiling - WINDOW_CAPS * cap / total)
        below = [
            tag for tag in open_tags if shares[tag].asked + shares[tag].alive < ceil(cap * shares[tag].weight / total)
        ]
        return min(below or open_tags, key=lambda tag: (shares[tag].served, tag))
