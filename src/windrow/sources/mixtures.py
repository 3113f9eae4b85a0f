"""Several sources as one: each with a tag of its own, or all together in one tag.

Promises: ordinals and names are unique in the whole. How much of each is played follows from weights: those of tags
are the scheduler's, so a mixture of tags only keeps them apart; those inside one tag are kept here, as evenly as whole
tasks allow, over every stretch. A part that has ended leaves its share to the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite, lcm

from windrow.errors import ConfigError
from windrow.nearest import did_you_mean
from windrow.sources.places import MARK, PlacedSource, check_position, check_tag, mark_of, only_tag
from windrow.sources.protocol import Learner, Retriever, Tagged, TaskSource
from windrow.trajectory import Task
from windrow.types import but

BETWEEN = ":"
"""Stands between a tag and what its source says of its position."""
FINEST = 10_000
"""Weights are taken as fractions with at most this denominator."""


class MixtureSource:
    """A source for each tag."""

    def __init__(self, sources: Mapping[str, TaskSource]) -> None:
        if not sources:
            raise ConfigError("a mixture needs at least one tag with a source")
        check_mixed(sources)
        self._sources = dict(sources)
        self._mark = mark_of(*sources)

    @property
    def tags(self) -> list[str]:
        return [*self._sources]

    @property
    def is_endless(self) -> bool:
        """Some tag never runs out."""
        return any(source.is_endless for source in self._sources.values())

    async def next(self, tag: str, count: int) -> list[Task]:
        source = self._sources.get(tag)
        if source is None:
            raise ConfigError(f"no source of the mixture has tag {tag!r}{did_you_mean(tag, self._sources)}")
        if isinstance(source, PlacedSource):
            await source.ready()  # before that it may not know its tags
        return [self._ours(tag, task) for task in await source.next(_tag_within(source, tag), count)]

    async def fetch(self, ordinal: int) -> Task:
        """A task again, by its ordinal; nothing moves on."""
        theirs, index = divmod(ordinal, len(self._sources))
        tag = self.tags[index]
        source = self._sources[tag]
        if not isinstance(source, Retriever):
            raise ConfigError(f"the source of tag {tag!r} cannot fetch a task by its ordinal")
        return self._ours(tag, await source.fetch(theirs))

    def note(self, task: Task, scores: Sequence[float]) -> None:
        """Pass on how the attempts at a task went to the source that it came from."""
        source = self._sources[task.tag]
        if isinstance(source, Learner):
            theirs = but(task, ordinal=task.ordinal // len(self._sources), tag=_tag_within(source, task.tag))
            source.note(theirs, scores)

    def rewind(self) -> None:
        for source in self._sources.values():
            source.rewind()

    def position(self) -> dict[str, int]:
        said = {
            f"{tag}{BETWEEN}{name}": number
            for tag, source in self._sources.items()
            for name, number in source.position().items()
        }
        return {**said, f"{MARK}tags": self._mark}

    def restore(self, position: dict[str, int]) -> None:
        check_position(position)
        if position.get(f"{MARK}tags", self._mark) != self._mark:
            raise ConfigError(f"position was taken over other tags than {', '.join(self._sources)}; mix those of then")
        parts: dict[str, dict[str, int]] = {tag: {} for tag in self._sources}
        for name, number in position.items():
            tag, between, theirs = name.partition(BETWEEN)
            if not between:
                continue  # the mark
            if tag not in parts:
                raise ConfigError(f"position is of a tag {tag!r} that the mixture lacks{did_you_mean(tag, parts)}")
            parts[tag][theirs] = number
        for tag, part in parts.items():
            self._sources[tag].restore(part)

    def _ours(self, tag: str, task: Task) -> Task:
        ordinal = task.ordinal * len(self._sources) + self.tags.index(tag)
        return but(task, ordinal=ordinal, tag=tag, name=f"{tag}/{task.name}" if task.name else "")


def check_mixed(tags: Iterable[str]) -> None:
    """Refuse tags that a position could not tell apart."""
    for tag in tags:
        if BETWEEN in check_tag(tag):
            raise ConfigError(f"tag {tag!r} of a mixture must not have a {BETWEEN} in it")


def _tag_within(source: TaskSource, tag: str) -> str:
    """What a source calls its tasks that the mixture knows by a tag."""
    if isinstance(source, Tagged) and len(source.tags) == 1:
        return source.tags[0]
    return tag


class BlendSource(PlacedSource):
    """Several sources in one tag, as much of each as its weight says."""

    def __init__(
        self, sources: Mapping[str, PlacedSource], weights: Mapping[str, float] | None = None, *, tag: str = ""
    ) -> None:
        super().__init__("the blend")
        if not sources:
            raise ConfigError("a blend needs at least one source")
        self._sources = dict(sources)
        self._strides = strides_of(sources, weights or {})
        self._tag = check_tag(tag)

    @property
    def tags(self) -> list[str]:
        return [self._tag]

    @property
    def is_endless(self) -> bool:
        return any(source.is_endless for source in self._sources.values())

    def length(self, tag: str) -> int | None:  # noqa: ARG002 -- there is only one
        lengths = self._lengths()
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None

    def marks(self) -> dict[str, int]:
        said = {
            f"{MARK}{name}{BETWEEN}{mark}": number
            for name, source in self._sources.items()
            for mark, number in source.marks().items()
        }
        return {**said, f"{MARK}weights": mark_of(*self._sources, *self._strides)}

    async def open(self) -> None:
        for name, source in self._sources.items():
            await source.open()
            only_tag(source, f"source {name!r} of the blend")

    async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
        found: dict[int, Task] = {}
        for (name, source), (ours, theirs) in zip(self._sources.items(), self._shared_out(places), strict=True):
            tasks = await source.at(source.tags[0], theirs) if theirs else []
            for place, task in zip(ours, tasks, strict=True):
                found[place] = but(task, ordinal=place, tag=tag, name=f"{name}/{task.name}" if task.name else "")
        return [found[place] for place in places]

    def _lengths(self) -> list[int | None]:
        return [source.length(source.tags[0]) for source in self._sources.values()]

    def _shared_out(self, places: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """For each source, which of these places are its own, and the places in it that these are."""
        shares: list[tuple[list[int], list[int]]] = [([], []) for _ in self._strides]
        order = Interleaving(self._strides, self._lengths())
        for place, (member, theirs) in zip(places, order.members(places), strict=True):
            shares[member][0].append(place)
            shares[member][1].append(theirs)
        return shares


class Interleaving:
    """Who comes at which place when several take turns by weight.

    The task number `n` of a member (from 0) is due at (2n + 1) × stride, strides being inverse to weights; tasks come
    in the order in which they are due, the first member first. So what came before a place is found without counting
    through it. At any moment a member has had what is its due within half a task, so while all of `m` members have
    tasks none is further than (m + 1) ÷ 2 tasks from its share.
    """

    def __init__(self, strides: Sequence[int], lengths: Sequence[int | None]) -> None:
        self._strides = strides
        self._lengths = lengths

    def members(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """For each place, the member and its own place."""
        given: list[int] = []
        at = -1
        for place in places:
            if place != at:
                given = [self._before(member, place) for member in range(len(self._strides))]
            member = self._turn(given)
            yield member, given[member]
            given[member] += 1
            at = place + 1

    def _turn(self, given: Sequence[int]) -> int:
        """Whose turn it is when each has had so many."""
        dues = [
            ((2 * count + 1) * stride, member)
            for member, (count, stride, length) in enumerate(zip(given, self._strides, self._lengths, strict=True))
            if length is None or count < length
        ]
        return min(dues)[1]

    def _before(self, member: int, place: int) -> int:
        """How many tasks of a member come before a place."""
        length = self._lengths[member]
        low, high = 0, place if length is None else min(place, length)
        while low < high:
            middle = (low + high) // 2
            if self._rank(member, middle) < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _rank(self, member: int, number: int) -> int:
        """At which place a task of a member comes."""
        due = (2 * number + 1) * self._strides[member]
        rank = 0
        for other, (stride, length) in enumerate(zip(self._strides, self._lengths, strict=True)):
            until = due if other < member else due - 1
            count = number if other == member else (until // stride + 1) // 2
            rank += count if length is None else min(count, length)
        return rank


def strides_of(sources: Mapping[str, object], weights: Mapping[str, float]) -> list[int]:
    for name, weight in weights.items():
        if name not in sources:
            raise ConfigError(f"weights has {name!r}, the blend does not{did_you_mean(name, sources)}")
        if not isfinite(weight) or weight < 1 / FINEST:
            raise ConfigError(f"weights.{name} must be a finite number of {1 / FINEST:g} or more, got {weight}")
    shares = [Fraction(weights.get(name, 1.0)).limit_denominator(FINEST) for name in sources]
    whole = lcm(*(share.numerator for share in shares))
    return [whole // share.numerator * share.denominator for share in shares]
