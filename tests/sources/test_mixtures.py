"""Several sources as one: shares, ends, names."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.kits import take, tasks, write_jsonl

from windrow.errors import ConfigError
from windrow.sources.jsonl import JsonlSource
from windrow.sources.lists import ListSource, SeedSource
from windrow.sources.mixtures import BlendSource, Interleaving, MixtureSource
from windrow.sources.places import PlacedSource
from windrow.trajectory import Task

# blends

LENGTHS = st.one_of(st.none(), st.integers(0, 30))
MEMBERS = st.lists(st.tuples(st.integers(1, 40), LENGTHS), min_size=1, max_size=5)


def counted(order: Interleaving, upto: int) -> list[tuple[int, int]]:
    return [*order.members(range(upto))]


@given(members=MEMBERS, start=st.integers(0, 120))
def test_what_comes_at_a_place_is_the_same_whether_counted_through_or_not(
    members: list[tuple[int, int | None]], start: int
):
    strides, lengths = zip(*members, strict=True)
    total = 150 if None in lengths else sum(length or 0 for length in lengths)
    order = Interleaving(strides, lengths)
    whole = counted(order, min(total, 150))
    assert [*order.members(range(start, len(whole)))] == whole[start:]
    backwards = [*range(len(whole))][::-1]
    assert [*order.members(backwards)] == whole[::-1]


@given(members=MEMBERS)
def test_every_task_of_every_member_comes_once_and_in_order(members: list[tuple[int, int | None]]):
    strides, lengths = zip(*members, strict=True)
    finite = [length or 0 for length in lengths]
    order = Interleaving(strides, finite)
    whole = counted(order, sum(finite))
    for member, length in enumerate(finite):
        assert [place for who, place in whole if who == member] == [*range(length)]


@given(weights=st.lists(st.integers(1, 60), min_size=2, max_size=6))
def test_shares_are_kept_over_every_stretch(weights: list[int]):
    sources: dict[str, PlacedSource] = {str(number): SeedSource() for number in range(len(weights))}
    blend = BlendSource(sources, {str(number): weight for number, weight in enumerate(weights)})
    given = [task.name.partition("/")[0] for task in take(blend, 120)]
    for count in range(1, 121):
        had = Counter(given[:count])
        for number, weight in enumerate(weights):
            assert abs(had[str(number)] - count * weight / sum(weights)) <= (len(weights) + 1) / 2


def test_a_blend_of_three_to_one():
    blend = BlendSource({"a": ListSource(tasks(6)), "b": ListSource(tasks(2))}, {"a": 3}, tag="math")
    given = take(blend, 99, "math")
    assert [task.name[0] for task in given] == [*"aabaaaba"]
    assert [task.ordinal for task in given] == [*range(8)]
    assert {task.tag for task in given} == {"math"}


def test_a_member_that_ends_leaves_its_share_to_the_others():
    blend = BlendSource({"a": ListSource(tasks(2)), "b": SeedSource(max_tasks=5), "c": SeedSource()})
    given = "".join(task.name[0] for task in take(blend, 16))
    assert given == "abcabcbcbcbccccc"
    assert blend.is_endless


def test_names_and_ordinals_are_unique_though_members_have_the_same():
    blend = BlendSource({"a": SeedSource(max_tasks=4), "b": SeedSource(max_tasks=4)})
    given = take(blend, 8)
    assert len({task.name for task in given}) == len({task.ordinal for task in given}) == 8


@pytest.mark.parametrize(
    ("members", "weights", "why"),
    [
        ({}, {}, "a blend needs at least one source"),
        ({"easy": SeedSource()}, {"esay": 1.0}, r"weights has 'esay', the blend does not; did you mean easy\?"),
        ({"easy": SeedSource()}, {"easy": 0.0}, r"weights.easy must be a finite number of 0.0001 or more, got 0.0"),
        ({"easy": SeedSource()}, {"easy": float("nan")}, "got nan"),
        ({"easy": SeedSource()}, {"easy": float("inf")}, "got inf"),
    ],
)
def test_a_blend_that_cannot_be_is_refused(members: dict[str, PlacedSource], weights: dict[str, float], why: str):
    with pytest.raises(ConfigError, match=why):
        BlendSource(members, weights)


def test_a_member_of_two_tags_is_refused():
    blend = BlendSource({"two": SeedSource(["a", "b"])})
    with pytest.raises(ConfigError, match="source 'two' of the blend must have tasks of one tag, it has 2: a, b"):
        take(blend, 1)


def test_a_position_of_other_weights_is_refused():
    blend = BlendSource({"a": SeedSource(), "b": SeedSource()}, {"a": 2})
    take(blend, 3)
    other = BlendSource({"a": SeedSource(), "b": SeedSource()})
    other.restore(blend.position())
    with pytest.raises(ConfigError, match="the blend is not what its position was taken over: #weights was"):
        take(other, 1)


# mixtures


def mixture(folder: Path) -> MixtureSource:
    return MixtureSource({"math": JsonlSource(folder / "rows.jsonl"), "seeds": SeedSource(["x"], max_tasks=4)})


def test_each_tag_has_its_own_tasks_and_its_own_end(folder: Path):
    source = mixture(folder)
    math, seeds = take(source, 99, "math"), take(source, 99, "seeds")
    assert (len(math), len(seeds)) == (15, 4)
    assert {task.tag for task in math} == {"math"}
    assert {task.tag for task in seeds} == {"seeds"}
    assert len({task.ordinal for task in math + seeds}) == len({task.name for task in math + seeds}) == 19


def test_tags_that_wait_at_once_do_not_disturb_each_other(folder: Path):
    source = mixture(folder)

    async def body() -> list[list[Task]]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(source.next(tag, 2)) for tag in ("math", "seeds", "math", "seeds")]
        return [call.result() for call in calls]

    given = [task for call in asyncio.run(body()) for task in call]
    assert sorted(task.name for task in given if task.tag == "seeds") == [f"seeds/seed {n}" for n in range(4)]
    assert sorted(task.ordinal for task in given if task.tag == "math") == [0, 2, 4, 6]


def test_a_task_without_a_name_gets_none():
    class Nameless(SeedSource):
        async def at(self, tag: str, places: Sequence[int]) -> list[Task]:
            return [Task(ordinal=place, tag=tag) for place in places]

    assert take(MixtureSource({"a": Nameless()}), 1, "a")[0].name == ""
    assert take(BlendSource({"a": Nameless()}), 1)[0].name == ""


def test_any_source_can_be_mixed():
    class Countdown:
        """No more than what every source has."""

        is_endless = False

        def __init__(self) -> None:
            self.left = 3

        async def next(self, tag: str, count: int) -> list[Task]:
            given = min(count, self.left)
            self.left -= given
            return [Task(ordinal=3 - self.left - given + n, tag=tag) for n in range(given)]

        def rewind(self) -> None:
            self.left = 3

        def position(self) -> dict[str, int]:
            return {"left": self.left}

        def restore(self, position: dict[str, int]) -> None:
            self.left = position["left"]

    source = MixtureSource({"a": Countdown(), "b": SeedSource()})
    assert [task.ordinal for task in take(source, 2, "a")] == [0, 2]
    other = MixtureSource({"a": Countdown(), "b": SeedSource()})
    other.restore(source.position())
    assert [task.ordinal for task in take(other, 9, "a")] == [4]
    with pytest.raises(ConfigError, match="the source of tag 'a' cannot fetch a task by its ordinal"):
        asyncio.run(other.fetch(0))
    other.note(Task(ordinal=0, tag="a"), [1.0])  # nobody there who learns


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ([], "a mixture needs at least one tag"),
        (["a:b"], "tag 'a:b' of a mixture must not have a : in it"),
        (["#a"], "tag '#a' must not begin with #; call it 'a'"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tags: list[str], why: str):
    with pytest.raises(ConfigError, match=why):
        MixtureSource({tag: SeedSource() for tag in tags})


def test_a_position_of_other_tags_is_refused(folder: Path):
    position = mixture(folder).position()
    with pytest.raises(ConfigError, match="position was taken over other tags than math; mix those of then"):
        MixtureSource({"math": SeedSource()}).restore(position)
    with pytest.raises(ConfigError, match=r"position is of a tag 'maths' that the mixture lacks; did you mean math\?"):
        mixture(folder).restore({"maths:": 3})


@pytest.mark.parametrize("given", [0, 2])
def test_a_source_that_learns_its_tag_from_its_file_is_asked_at_once(given: int, tmp_path: Path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"n": n, "kind": "old"} for n in range(4)])
    before = MixtureSource({"again": JsonlSource(path, tag_field="kind")})
    take(before, given, "again")
    source = MixtureSource({"again": JsonlSource(path, tag_field="kind")})
    source.restore(before.position())
    found = take(source, 9, "again")
    assert [(task.tag, task.payload["n"]) for task in found] == [("again", n) for n in range(given, 4)]
