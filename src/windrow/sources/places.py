"""Sources whose tasks follow from their place alone: what they have in common.

Promises: the task at a place of a tag is always the same. Several calls may wait at once; each place is given once, a
call that is cancelled has taken nothing, and `position` never counts a task that nobody has got yet. What a position
was taken over (which rows, in which order) stands in it as marks, names that begin with `#`; going on from it over
something else is refused instead of giving other tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.trajectory import Task

MARK = "#"
"""With this begins what is no tag in a position."""


class PlacedSource(ABC):
    """Tasks by tag and place; a subclass says which, this class walks through them."""

    def __init__(self, what: str) -> None:
        self.what = what  # in messages
        self._given: dict[str, int] = {}  # tasks that were given, of all tags that were asked for or restored
        self._expected: Mapping[str, int] = {}  # all and only the marks of the position that was restored

    # what a subclass says

    @property
    @abstractmethod
    def tags(self) -> Sequence[str]:
        """All and only its tags; none while they are not known yet."""

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """It never runs out."""

    @abstractmethod
    def length(self, tag: str) -> int | None:
        """How many tasks there are of a tag, all passes together; None: they never end."""

    @abstractmethod
    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        """The tasks at these places, each below the length."""

    async def open(self) -> None:  # noqa: B027 -- most have nothing to find out
        """Find out what there is; whatever is asked first awaits this."""

    def marks(self) -> Mapping[str, int]:
        """What its tasks depend on, as numbers, once it is open."""
        return {}

    # what every subclass has

    async def next(self, tag: str, count: int) -> list[Task]:
        await self.ready()
        self._check_tag(tag)
        while True:
            begin = self._given.get(tag, 0)
            length = self.length(tag)
            end = begin + count if length is None else min(begin + count, length)
            if end <= begin:
                return []
            tasks = await self.at(tag, range(begin, end))
            if self._given.get(tag, 0) == begin:  # nobody else was faster, nor was it rewound
                self._given[tag] = end
                return tasks

    async def fetch(self, ordinal: int) -> Task:
        """A task again, by its ordinal; nothing moves on."""
        await self.open()
        place, index = divmod(ordinal, len(self.tags))
        tag = self.tags[index]
        length = self.length(tag)
        if ordinal < 0 or (length is not None and place >= length):
            raise ConfigError(f"{self.what} has no task with ordinal {ordinal}; there are {length} of tag {tag!r}")
        return (await self.at(tag, [place]))[0]

    def rewind(self) -> None:
        self._given = {}

    def position(self) -> dict[str, int]:
        given = {tag: self._given.get(tag, 0) for tag in self.tags or self._given}
        return {**given, **self._expected, **self.marks()}

    def restore(self, position: dict[str, int]) -> None:
        check_position(position)
        given = {tag: place for tag, place in position.items() if not tag.startswith(MARK)}
        for tag in given if self.tags else ():
            self._check_tag(tag)
        self._given = given
        self._expected = {name: mark for name, mark in position.items() if name.startswith(MARK)}

    def ordinal(self, tag: str, place: int) -> int:
        """Of the task at a place; tags take ordinals in turn."""
        return place * len(self.tags) + self.tags.index(tag)

    async def ready(self) -> None:
        """Open it, and refuse to go on from a position that was taken over something else."""
        await self.open()
        for tag in self._given:
            self._check_tag(tag)
        marks = self.marks()
        for name, mark in self._expected.items():
            if marks.get(name, mark) != mark:
                raise ConfigError(
                    f"{self.what} is not what its position was taken over: {name} was {mark} and is {marks[name]}; "
                    "bring back the data and settings of then, or begin without the position"
                )

    def _check_tag(self, tag: str) -> None:
        if tag in self.tags:
            return
        if [*self.tags] == [""]:
            raise ConfigError(f"no task in {self.what} has tag {tag!r}; they have no tag, give them one")
        raise ConfigError(f"no task in {self.what} has tag {tag!r}{did_you_mean(tag, self.tags)}")


def check_position(position: Mapping[str, object]) -> None:
    """Refuse what no source can have said."""
    for name, number in position.items():
        if not isinstance(number, int) or number < 0:
            raise ConfigError(f"position of {name!r} must be an integer of 0 or more, got {number!r}")


def check_passes(passes: int | None, what: str) -> None:
    if passes is not None and passes < 1:
        raise ConfigError(f"passes over {what} must be 1 or more, got {passes}")


def check_tag(tag: str) -> str:
    """A tag that cannot be taken for a mark."""
    if tag.startswith(MARK):
        raise ConfigError(f"tag {tag!r} must not begin with {MARK}; call it {tag.lstrip(MARK)!r}")
    return tag


def check_tags(tags: Iterable[str]) -> list[str]:
    """Such tags, each of them once."""
    found: list[str] = []
    for tag in tags:
        if tag in found:
            raise ConfigError(f"tag {tag!r} is given twice; give each once")
        found.append(check_tag(tag))
    return found


def only_tag(source: PlacedSource, what: str) -> str:
    """The one tag of an open source."""
    if len(source.tags) != 1:
        raise ConfigError(f"{what} must have tasks of one tag, it has {len(source.tags)}: {', '.join(source.tags)}")
    return source.tags[0]


def mark_of(*parts: object) -> int:
    """A number below 2**63 that stands for these words and numbers."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{len(str(part))}:{part}".encode())
    return int.from_bytes(digest.digest(), "big") >> 1
