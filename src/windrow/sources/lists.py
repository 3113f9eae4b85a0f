"""Tasks from a list, and tasks that are nothing but a seed."""

from collections.abc import Iterable, Mapping, Sequence

from windrow.errors import ConfigError
from windrow.sources.places import PlacedSource, check_passes, check_tag, check_tags
from windrow.trajectory import Split, Task
from windrow.types import but


class ListSource(PlacedSource):
    """A list of tasks, played from its beginning to its end as often as `passes` says; for ever if that is None.

    Ordinals go on from pass to pass. A task that comes again keeps its name, so what was learnt about it is used.
    """

    def __init__(self, tasks: Iterable[Task], *, passes: int | None = 1) -> None:
        super().__init__("the list")
        self._tasks = [but(task, ordinal=at, name=task.name or f"task {at}") for at, task in enumerate(tasks)]
        if not self._tasks:
            raise ConfigError("a list of tasks must not be empty")
        check_passes(passes, "a list of tasks")
        self._by_tag: dict[str, list[Task]] = {}
        for task in self._tasks:
            self._by_tag.setdefault(check_tag(task.tag), []).append(task)
        self._passes = passes

    @property
    def tags(self) -> list[str]:
        return [*self._by_tag]

    @property
    def is_endless(self) -> bool:
        return self._passes is None

    def length(self, tag: str) -> int | None:
        return None if self._passes is None else self._passes * len(self._by_tag[tag])

    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        tasks = self._by_tag[tag]
        laps = [divmod(place, len(tasks)) for place in places]
        return [self._in_lap(tasks[index], lap) for lap, index in laps]

    async def fetch(self, ordinal: int) -> Task:
        lap, index = divmod(ordinal, len(self._tasks))
        if ordinal < 0 or (self._passes is not None and lap >= self._passes):
            raise ConfigError(f"the list has no task with ordinal {ordinal}; there are {len(self._tasks)} in a pass")
        return self._in_lap(self._tasks[index], lap)

    def _in_lap(self, task: Task, lap: int) -> Task:
        return but(task, ordinal=task.ordinal + lap * len(self._tasks)) if lap else task


class SeedSource(PlacedSource):
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
        super().__init__("the seeds")
        self._tags = check_tags(tags)
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"max_tasks must be 1 or more, got {max_tasks}")
        self._seed = seed
        self._payload = payload
        self._split = split
        self._limits = _shared_out(max_tasks, self._tags)

    @property
    def tags(self) -> list[str]:
        return self._tags

    @property
    def is_endless(self) -> bool:
        return not self._limits

    def length(self, tag: str) -> int | None:
        return self._limits.get(tag)

    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        return [self._make(tag, place) for place in places]

    def _make(self, tag: str, place: int) -> Task:
        ordinal = self.ordinal(tag, place)
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
