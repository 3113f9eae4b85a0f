"""Tasks whose difficulty follows the results.

Promises: which level a task has stands in its ordinal, so a task that was given can be had again whatever has been
learnt since. What has been learnt is part of the position: from the same position and the same results in the same
order come the same tasks. Results of episodes that run at once come in no order that could be promised; two runs may
therefore climb at different moments, and a restored run goes on from what the first had learnt when its position was
taken.
"""

from collections.abc import Sequence
from typing import Protocol

from windrow.errors import ConfigError
from windrow.sources.places import MARK, PlacedSource, check_position, only_tag
from windrow.trajectory import Task
from windrow.types import but

CHOOSER = "chooser:"
"""With this begins in a position what the chooser says."""


class Chooser(Protocol):
    """Decides which level is played next; levels count from 0."""

    def choose(self, given: int) -> int:
        """The level of the next task, `given` having been given; asking twice changes nothing."""
        ...

    def learn(self, level: int, scores: Sequence[float]) -> None:
        """The attempts at a task of a level are over."""
        ...

    def position(self) -> dict[str, int]:
        """Everything that it has learnt."""
        ...

    def restore(self, position: dict[str, int]) -> None:
        """Go on from a position; from an empty one, begin."""
        ...


class Ladder:
    """One level up when `up` of the attempts at `window` tasks in a row succeeded, one down when less than `down` did.

    Only tasks of the level of the moment count, and none twice: after each window counting begins again. With `review`
    that share of the tasks is from the level below.
    """

    def __init__(
        self,
        levels: int,
        *,
        window: int = 32,
        up: float = 0.8,
        down: float = 0.0,
        success: float = 1.0,
        review: float = 0.0,
    ) -> None:
        for name, share in {"up": up, "down": down, "review": review}.items():
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"{name} must be a share from 0 to 1, got {share}")
        if levels < 1 or window < 1:
            raise ConfigError(f"levels and window must be 1 or more, got {levels} and {window}")
        if down >= up:
            raise ConfigError(f"down must be below up, got {down} and {up}")
        self._levels, self._window = levels, window
        self._up, self._down = up, down
        self._success, self._review = success, review
        self.level = 0
        self._tasks = self._attempts = self._solved = 0  # of the level of the moment, in this window

    def choose(self, given: int) -> int:
        is_review = int((given + 1) * self._review) > int(given * self._review)
        return self.level - 1 if is_review and self.level else self.level

    def learn(self, level: int, scores: Sequence[float]) -> None:
        if level != self.level or not scores:
            return  # it was given before the last step
        self._tasks += 1
        self._attempts += len(scores)
        self._solved += sum(score >= self._success for score in scores)
        if self._tasks >= self._window:
            self._climb(self._solved / self._attempts)

    def position(self) -> dict[str, int]:
        return {"level": self.level, "tasks": self._tasks, "attempts": self._attempts, "solved": self._solved}

    def restore(self, position: dict[str, int]) -> None:
        level = position.get("level", 0)
        if not 0 <= level < self._levels:
            raise ConfigError(f"position is at level {level}, the ladder has {self._levels}; use as many as then")
        self.level = level
        self._tasks, self._attempts = position.get("tasks", 0), position.get("attempts", 0)
        self._solved = position.get("solved", 0)

    def _climb(self, solved: float) -> None:
        self._tasks = self._attempts = self._solved = 0
        if solved >= self._up:
            self.level = min(self.level + 1, self._levels - 1)
        elif solved < self._down:
            self.level = max(self.level - 1, 0)


class CurriculumSource:
    """A source for each level, from easy to hard, of which the chooser takes the next task.

    It hears of results through `note`. A level that has ended is replaced by the nearest that has not, the harder one
    of two; when all have ended, so has the source.
    """

    def __init__(self, levels: Sequence[PlacedSource], chooser: Chooser | None = None, *, tag: str = "") -> None:
        if not levels:
            raise ConfigError("a curriculum needs at least one level")
        self._levels = [*levels]
        self._chooser = chooser or Ladder(len(levels))
        self._tag = tag
        self._given = [0] * len(levels)  # tasks of each level

    @property
    def tags(self) -> list[str]:
        return [self._tag]

    @property
    def is_endless(self) -> bool:
        return any(level.is_endless for level in self._levels)

    async def next(self, tag: str, count: int) -> list[Task]:
        if tag != self._tag:
            raise ConfigError(f"no task of the curriculum has tag {tag!r}; its tag is {self._tag!r}")
        await self._open()
        while True:
            given = [*self._given]
            chosen = self._choose(given, count)
            tasks = await self._all_at(chosen)
            if self._given == given:  # nobody else was faster, nor was it rewound
                for level, _ in chosen:
                    self._given[level] += 1
                return tasks

    async def fetch(self, ordinal: int) -> Task:
        """A task again, by its ordinal; nothing moves on."""
        await self._open()
        place, level = divmod(ordinal, len(self._levels))
        length = self._length(level)
        if ordinal < 0 or (length is not None and place >= length):
            raise ConfigError(f"the curriculum has no task with ordinal {ordinal}; level {level} has {length} tasks")
        return (await self._all_at([(level, place)]))[0]

    def level_of(self, task: Task) -> int:
        return task.ordinal % len(self._levels)

    def note(self, task: Task, scores: Sequence[float]) -> None:
        """The attempts at one of its tasks are over."""
        self._chooser.learn(self.level_of(task), scores)

    def rewind(self) -> None:
        self._given = [0] * len(self._levels)
        self._chooser.restore({})

    def position(self) -> dict[str, int]:
        given = {str(level): count for level, count in enumerate(self._given)}
        learnt = {f"{CHOOSER}{name}": number for name, number in self._chooser.position().items()}
        marks = {
            f"{level}:{name}": number
            for level, source in enumerate(self._levels)
            for name, number in source.position().items()
            if name.startswith(MARK)
        }
        return {**given, **learnt, **marks}

    def restore(self, position: dict[str, int]) -> None:
        check_position(position)
        known = {str(level) for level in range(len(self._levels))}
        strange = [name for name in position if name.isdecimal() and name not in known]
        if strange:
            raise ConfigError(f"position has level {strange[0]}, the curriculum has {len(known)}; use as many as then")
        learnt = {name.removeprefix(CHOOSER): n for name, n in position.items() if name.startswith(CHOOSER)}
        self._chooser.restore(learnt)
        self._given = [position.get(str(level), 0) for level in range(len(self._levels))]
        for level, source in enumerate(self._levels):
            begin = f"{level}:"
            source.restore({name.removeprefix(begin): n for name, n in position.items() if name.startswith(begin)})

    async def _open(self) -> None:
        for number, level in enumerate(self._levels):
            await level.ready()
            only_tag(level, f"level {number} of the curriculum")

    def _choose(self, given: Sequence[int], count: int) -> list[tuple[int, int]]:
        """The level of each of the next tasks and its place there; fewer when all have ended."""
        given = [*given]
        chosen: list[tuple[int, int]] = []
        for _ in range(count):
            left = [level for level in range(len(given)) if self._has(level, given[level])]
            if not left:
                break
            wanted = self._chooser.choose(sum(given))
            level = min(left, key=lambda level: (abs(level - wanted), -level))
            chosen.append((level, given[level]))
            given[level] += 1
        return chosen

    def _has(self, level: int, place: int) -> bool:
        length = self._length(level)
        return length is None or place < length

    def _length(self, level: int) -> int | None:
        source = self._levels[level]
        return source.length(source.tags[0])

    async def _all_at(self, chosen: Sequence[tuple[int, int]]) -> list[Task]:
        """The tasks at these places of levels."""
        found: dict[tuple[int, int], Task] = {}
        for level in sorted({level for level, _ in chosen}):
            source = self._levels[level]
            places = [place for at, place in chosen if at == level]
            tasks = await source.at(source.tags[0], places)
            found |= {(level, place): self._ours(level, place, task) for place, task in zip(places, tasks, strict=True)}
        return [found[at] for at in chosen]

    def _ours(self, level: int, place: int, task: Task) -> Task:
        name = f"level {level}/{task.name}" if task.name else ""
        return but(task, ordinal=place * len(self._levels) + level, tag=self._tag, name=name)
