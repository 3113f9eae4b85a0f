"""Tasks from a list, and tasks that are nothing but a seed."""

from collections.abc import Iterable, Mapping

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.trajectory import Split, Task
from windrow.types import but


class ListSource:
    """A list of tasks, played from its beginning to its end as often as `passes` says; for ever if that is None.

    Ordinals go on from pass to pass. A task that comes again keeps its name, so what was learnt about it is used.
    """

    def __init__(self, tasks: Iterable[Task], *, passes: int | None = 1) -> None:
        self._by_tag: dict[str, list[Task]] = {}
        for place, task in enumerate(tasks):
            self._by_tag.setdefault(task.tag, []).append(but(task, ordinal=place, name=task.name or f"task {place}"))
        self._length = sum(map(len, self._by_tag.values()))
        if not self._length:
            raise ConfigError("a list of tasks must not be empty")
        if passes is not None and passes < 1:
            raise ConfigError(f"passes over a list of tasks must be 1 or more, got {passes}")
        self._passes = passes
        self._given = dict.fromkeys(self._by_tag, 0)

    @property
    def is_endless(self) -> bool:
        return self._passes is None

    async def next(self, tag: str, count: int) -> list[Task]:
        tasks = self._by_tag.get(tag)
        if tasks is None:
            raise ConfigError(f"no task in the list has tag {tag!r}{did_you_mean(tag, self._by_tag)}")
        begin = self._given[tag]
        end = begin + count if self._passes is None else min(begin + count, self._passes * len(tasks))
        self._given[tag] = end
        return [self._at(tasks, place) for place in range(begin, end)]

    def rewind(self) -> None:
        self._given = dict.fromkeys(self._by_tag, 0)

    def position(self) -> dict[str, int]:
        return dict(self._given)

    def restore(self, position: dict[str, int]) -> None:
        self._given = dict.fromkeys(self._by_tag, 0) | position

    def _at(self, tasks: list[Task], place: int) -> Task:
        lap, index = divmod(place, len(tasks))
        task = tasks[index]
        return but(task, ordinal=task.ordinal + lap * self._length) if lap else task


class SeedSource:
    """Tasks that an environment makes up from a seed: `max_tasks` of them, or without end."""

    def __init__(
        self,
        tags: Iterable[str] = ("",),
        *,
        seed: int = 0,
        max_tasks: int | None = None,
        payload: object = None,
        split: Split = "train",
    ) -> None:
        self._tags = [*tags]
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"max_tasks must be 1 or more, got {max_tasks}")
        self._seed = seed
        self._payload = payload
        self._split = split
        self._limits = _shared_out(max_tasks, self._tags)
        self._given = dict.fromkeys(self._tags, 0)

    @property
    def is_endless(self) -> bool:
        return not self._limits

    async def next(self, tag: str, count: int) -> list[Task]:
        if tag not in self._given:
            raise ConfigError(f"tasks have no tag {tag!r}{did_you_mean(tag, self._given)}")
        begin = self._given[tag]
        limit = self._limits.get(tag, begin + count)
        end = min(begin + count, limit)
        self._given[tag] = end
        return [self._make(tag, place) for place in range(begin, end)]

    def rewind(self) -> None:
        self._given = dict.fromkeys(self._tags, 0)

    def position(self) -> dict[str, int]:
        return dict(self._given)

    def restore(self, position: dict[str, int]) -> None:
        self._given = dict.fromkeys(self._tags, 0) | position

    def _make(self, tag: str, place: int) -> Task:
        ordinal = place * len(self._tags) + self._tags.index(tag)
        return Task(
            ordinal=ordinal,
            seed=self._seed + ordinal,
            tag=tag,
            payload=self._payload,
            name=f"seed {ordinal}",
            split=self._split,
        )


def _shared_out(total: int | None, tags: list[str]) -> Mapping[str, int]:
    """So many tasks, as evenly as they go; nothing if there is no limit."""
    if total is None:
        return {}
    shares = dict.fromkeys(tags, total // len(tags))
    for _, tag in zip(range(total % len(tags)), tags, strict=False):
        shares[tag] += 1
    return shares
