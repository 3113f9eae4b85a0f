"""Where a rival's tasks come from: all tags in turn, whatever their weights."""

from windrow.core.commands import AnyCommand, FetchTask


class Sources:
    """What was asked for, and what has ended."""

    def __init__(self, tags: list[str]) -> None:
        self.asked = dict.fromkeys(
            tags, 0
        )  # tasks that were asked for and did not come, of all tags that have not ended
        self.turns = 0

    @property
    def num_asked(self) -> int:
        return sum(self.asked.values())

    @property
    def is_dry(self) -> bool:
        """No task will come any more."""
        return not self.asked

    def fetch(self, count: int) -> list[AnyCommand]:
        """Ask for so many more tasks."""
        tags = list(self.asked)
        if len(tags) == 1:
            self.asked[tags[0]] += count
            return [FetchTask("train", tags[0], count)] if count > 0 else []
        orders: list[AnyCommand] = []
        for _ in range(count if tags else 0):
            tag = tags[self.turns % len(tags)]
            self.turns += 1
            self.asked[tag] += 1
            orders.append(FetchTask("train", tag, 1))
        return orders

    def arrived(self, tag: str) -> None:
        if tag in self.asked:
            self.asked[tag] -= 1

    def ended(self, tag: str) -> None:
        self.asked.pop(tag, None)
