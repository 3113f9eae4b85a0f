"""Task sources: in order, each task with a place of its own from which it can be found again."""

import asyncio
from collections.abc import Callable

import pytest

from windrow.errors import ConfigError
from windrow.sources.lists import ListSource, SeedSource
from windrow.sources.protocol import TaskSource
from windrow.trajectory import Task


def take(source: TaskSource, count: int, tag: str = "") -> list[Task]:
    return asyncio.run(source.next(tag, count))


def mixed(passes: int | None = 1) -> ListSource:
    tags = ["maze", "shop", "maze", "maze", "shop"]
    tasks = [Task(ordinal=99, seed=seed, tag=tag) for seed, tag in enumerate(tags)]
    return ListSource(tasks, passes=passes)


SOURCES: dict[str, Callable[[], TaskSource]] = {
    "list": lambda: ListSource([Task(ordinal=0, seed=seed) for seed in range(5)], passes=3),
    "endless list": lambda: ListSource([Task(ordinal=0, seed=seed) for seed in range(5)], passes=None),
    "seeds": lambda: SeedSource(max_tasks=15),
    "endless seeds": SeedSource,
}
every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


# what holds for all of them


@every_source
def test_ordinals_are_unique_and_in_order(make: Callable[[], TaskSource]):
    source = make()
    ordinals = [task.ordinal for count in (1, 4, 7, 3) for task in take(source, count)]
    assert ordinals == [*range(15)]


@every_source
def test_rewound_it_begins_again(make: Callable[[], TaskSource]):
    source = make()
    first = take(source, 8)
    source.rewind()
    assert take(source, 8) == first


@every_source
def test_at_the_same_position_it_gives_the_same_tasks_also_in_another_process(make: Callable[[], TaskSource]):
    source, other = make(), make()
    take(source, 7)
    other.restore(source.position())
    assert take(other, 6) == take(source, 6)
    assert other.position() == source.position() == {"": 13}


@every_source
def test_a_position_is_a_copy(make: Callable[[], TaskSource]):
    source = make()
    position = source.position()
    take(source, 3)
    assert position == {"": 0}


@every_source
def test_an_unknown_tag_is_refused(make: Callable[[], TaskSource]):
    with pytest.raises(ConfigError, match="tag 'maze'"):
        take(make(), 1, "maze")


@pytest.mark.parametrize("name", SOURCES)
def test_it_says_whether_it_ends(name: str):
    source = SOURCES[name]()
    assert source.is_endless == name.startswith("endless")
    assert len(take(source, 20)) == (20 if source.is_endless else 15)
    assert bool(take(source, 1)) == source.is_endless


@every_source
def test_nothing_is_asked_for_nothing_is_given(make: Callable[[], TaskSource]):
    assert take(make(), 0) == []


# lists


def test_a_task_that_comes_again_keeps_its_name_and_not_its_ordinal():
    source = SOURCES["list"]()
    tasks = take(source, 15)
    assert [task.name for task in tasks[:2]] == ["task 0", "task 1"]
    assert [task.name for task in tasks[5:7]] == ["task 0", "task 1"]
    assert [task.seed for task in tasks] == [*range(5)] * 3


def test_a_name_of_its_own_is_kept():
    (task,) = take(ListSource([Task(ordinal=0, name="hanoi")]), 1)
    assert task.name == "hanoi"


def test_tags_are_given_apart_with_ordinals_of_the_whole_list():
    source = mixed(passes=2)
    assert [task.ordinal for task in take(source, 9, "shop")] == [1, 4, 6, 9]
    assert [task.ordinal for task in take(source, 9, "maze")] == [0, 2, 3, 5, 7, 8]
    assert source.position() == {"maze": 6, "shop": 4}


def test_an_unknown_tag_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"no task in the list has tag 'mase'; did you mean maze\?"):
        take(mixed(), 1, "mase")


def test_a_position_of_some_tags_leaves_the_others_at_their_beginning():
    source = mixed()
    take(source, 2, "maze")
    source.restore({"shop": 1})
    assert source.position() == {"maze": 0, "shop": 1}


@pytest.mark.parametrize(
    ("tasks", "passes", "why"),
    [([], 1, "a list of tasks must not be empty"), ([Task(ordinal=0)], 0, "must be 1 or more, got 0")],
)
def test_a_list_that_cannot_be_played_is_refused(tasks: list[Task], passes: int, why: str):
    with pytest.raises(ConfigError, match=why):
        ListSource(tasks, passes=passes)


def test_a_generator_is_read_once():
    assert len(take(ListSource(Task(ordinal=0, seed=seed) for seed in range(4)), 9)) == 4


# seeds


def test_seeds_follow_from_the_runs_seed_and_the_ordinal():
    source = SeedSource(seed=100, max_tasks=3, payload={"size": 4})
    assert [(task.seed, task.name, task.payload) for task in take(source, 9)] == [
        (100, "seed 0", {"size": 4}),
        (101, "seed 1", {"size": 4}),
        (102, "seed 2", {"size": 4}),
    ]


def test_tags_share_the_ordinals_and_the_tasks():
    source = SeedSource(["a", "b", "c"], max_tasks=7)
    given = {tag: [task.ordinal for task in take(source, 9, tag)] for tag in "abc"}
    assert given == {"a": [0, 3, 6], "b": [1, 4], "c": [2, 5]}


def test_a_tag_without_a_task_has_none():
    source = SeedSource(["a", "b"], max_tasks=1)
    assert (len(take(source, 5, "a")), take(source, 5, "b")) == (1, [])


def test_no_tasks_at_all_are_refused():
    with pytest.raises(ConfigError, match="max_tasks must be 1 or more, got 0"):
        SeedSource(max_tasks=0)
