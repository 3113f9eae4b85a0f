"""Tasks that were played before, again.

Promises: each task of a recording once, in the order in which they were first played, whatever the number of attempts;
seed, payload, tag, name and split are those of then, ordinals are new. A recording is read for its tasks alone and not
kept in memory.
"""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from windrow.errors import ConfigError, DataError
from windrow.sources.files import find_files
from windrow.sources.places import MARK, PlacedSource, check_passes, check_tag, mark_of
from windrow.sources.recordings import Head, Recording
from windrow.sources.rows import Reader
from windrow.sources.shuffles import Laps
from windrow.trajectory import Task, Trajectory
from windrow.types import Record, but

Key = tuple[str, str, int, int]
"""What makes two tasks the same: tag and name, or, without a name, tag, ordinal and seed."""


class Played(Protocol):
    """Where trajectories lie."""

    def heads(self) -> Iterator[tuple[int, Head]]:
        """What each is about, by its place."""
        ...

    def tasks(self, places: Sequence[int]) -> list[Task]:
        """The tasks of those at some places."""
        ...


class ReplaySource(PlacedSource):
    """The tasks of recorded trajectories; with bounds, those alone whose mean score lies between them."""

    def __init__(
        self,
        played: str | os.PathLike[str] | Iterable[Trajectory],
        *,
        min_score: float = float("-inf"),
        max_score: float = float("inf"),
        passes: int | None = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        is_file = isinstance(played, str | os.PathLike)
        super().__init__(f"recording {played}" if is_file else "the list of trajectories")
        check_passes(passes, "a recording")
        check_bounds(min_score, max_score)
        self._played = _opened(played)
        self._bounds = min_score, max_score
        self._passes = passes
        self._shuffle_seed = shuffle_seed
        self._reader = Reader()
        self._picked: dict[str, array[int]] = {}  # places of the tasks of each tag; empty before they are looked for
        self._laps: dict[str, Laps] = {}
        self._mark = 0

    @property
    def tags(self) -> list[str]:
        return [*self._picked]

    @property
    def is_endless(self) -> bool:
        return self._passes is None

    def length(self, tag: str) -> int | None:
        return self._laps[tag].length

    def marks(self) -> dict[str, int]:
        return {f"{MARK}tasks": self._mark} if self._picked else {}

    async def open(self) -> None:
        if not self._picked:
            await self._reader.do(self._look_through)

    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        picked, laps = self._picked[tag], self._laps[tag]
        wanted = [picked[laps.row(place)] for place in places]
        tasks = await self._reader.do(partial(self._played.tasks, wanted))
        found = zip(places, tasks, strict=True)
        return [but(task, ordinal=self.ordinal(tag, place)) for place, task in found]

    def _look_through(self) -> None:
        """Find the tasks that are meant, unless a call before this one has."""
        if self._picked:
            return
        low, high = self._bounds
        try:
            stories = _stories(self._played.heads())
        except DataError as error:
            raise ConfigError(f"{self.what} cannot be played: {error}") from error
        meant = {key: story for key, story in stories.items() if low <= story.mean <= high}
        if not meant:
            raise ConfigError(f"{self.what} has no task with a mean score from {low:g} to {high:g}")
        picked: dict[str, array[int]] = {}
        for (tag, *_), story in meant.items():
            picked.setdefault(check_tag(tag), array("q")).append(story.place)
        self._laps = {
            tag: Laps(len(places), passes=self._passes, shuffle_seed=self._shuffle_seed, name=tag)
            for tag, places in picked.items()
        }
        self._mark = mark_of(self._shuffle_seed, *meant)
        self._picked = picked


def check_bounds(min_score: float, max_score: float) -> None:
    if not min_score <= max_score:
        raise ConfigError(f"min_score must not be above max_score, got {min_score} and {max_score}")


def _opened(played: str | os.PathLike[str] | Iterable[Trajectory]) -> Played:
    if not isinstance(played, str | os.PathLike):
        return InMemory(played)
    files = find_files(played)
    if len(files) > 1:
        raise ConfigError(f"{played} names {len(files)} recordings; replay one, or blend several")
    return Recording(files[0])


class Story(Record):
    """How a task went."""

    place: int
    """Of its first trajectory."""
    attempts: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.attempts


class InMemory:
    """Trajectories that are there anyway."""

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._trajectories = [*trajectories]

    def heads(self) -> Iterator[tuple[int, Head]]:
        for place, made in enumerate(self._trajectories):
            about = Head(attempt=made.attempt, mode=made.mode, task=made.task, score=made.score, ending=made.ending)
            yield place, about

    def tasks(self, places: Sequence[int]) -> list[Task]:
        return [self._trajectories[place].task for place in places]


def _stories(heads: Iterable[tuple[int, Head]]) -> dict[Key, Story]:
    """Every task once, in the order of their first trajectories."""
    stories: dict[Key, Story] = {}
    for place, head in heads:
        story = stories.setdefault(_key(head.task), Story(place))
        story.attempts += 1
        story.total += head.score
    return stories


def _key(task: Task) -> Key:
    return (task.tag, task.name, 0, 0) if task.name else (task.tag, "", task.ordinal, task.seed)
