"""Levels that follow the results."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.kits import take, tasks

from windrow.errors import ConfigError
from windrow.sources.curriculum import CurriculumSource, Ladder
from windrow.sources.lists import ListSource, SeedSource
from windrow.sources.mixtures import MixtureSource
from windrow.sources.protocol import Learner


def climbing(levels: int = 3, **how: float) -> CurriculumSource:
    ladder = Ladder(levels, **{"window": 2, "up": 0.75, "down": 0.25, **how})  # type: ignore[arg-type]
    return CurriculumSource([SeedSource(seed=100 * level) for level in range(levels)], ladder)


def play(source: CurriculumSource, *scores: Sequence[float]) -> list[int]:
    """The levels of the tasks that were played with these results."""
    levels = []
    for of_one in scores:
        (task,) = take(source, 1)
        levels.append(source.level_of(task))
        source.note(task, of_one)
    return levels


def test_success_over_a_window_leads_one_level_up():
    assert play(climbing(), [1, 1], [1, 0], [1, 1], [1, 1], [0, 0]) == [0, 0, 1, 1, 2]


def test_failure_over_a_window_leads_one_level_down():
    source = climbing()
    assert play(source, [1], [1], [0], [0], [0]) == [0, 0, 1, 1, 0]


def test_in_between_it_stays_and_counts_anew():
    assert play(climbing(), [1], [0], [0], [1], [1], [1], [1]) == [0, 0, 0, 0, 0, 0, 1]


def test_it_stays_within_its_levels():
    assert play(climbing(levels=2), *[[1.0]] * 6) == [0, 0, 1, 1, 1, 1]
    assert play(climbing(levels=2), *[[0.0]] * 4) == [0, 0, 0, 0]


def test_results_of_a_level_that_was_left_do_not_count():
    source = climbing()
    late = take(source, 4)
    for task in late:  # two of them lead up; the others are of level 0 still
        source.note(task, [1.0])
    assert play(source, [1.0], [1.0], [1.0]) == [1, 1, 2]


def test_a_task_without_results_says_nothing():
    source = climbing(window=1)
    assert play(source, [], [], []) == [0, 0, 0]


def test_some_of_the_tasks_are_from_the_level_below():
    source = climbing(levels=2, window=1, review=0.25)
    assert sum(level == 0 for level in play(source, *[[1.0]] * 41)[1:]) == 10


def test_what_counts_as_success_can_be_said():
    assert play(climbing(success=0.5), [0.6], [0.5], [0.4]) == [0, 0, 1]


def test_levels_keep_their_place_when_they_are_left_and_taken_up_again():
    source = climbing()
    given = [task.seed for task in take(source, 2)]
    play(source, [1], [1], [0], [0])  # one up, one down
    assert given + [task.seed for task in take(source, 2)] == [0, 1, 4, 5]


def test_a_task_has_its_level_in_its_ordinal_whatever_was_learnt_since():
    source = climbing()
    before = take(source, 3)
    play(source, [1], [1], [1], [1])
    assert [asyncio.run(source.fetch(task.ordinal)) for task in before] == before
    assert len({task.ordinal for task in before + take(source, 5)}) == 8


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3), max_size=20), st.integers(0, 20))
def test_the_same_results_after_a_restore_bring_the_same_tasks(scores: list[list[float]], saved: int):
    source, other = climbing(review=0.3), climbing(review=0.3)
    play(source, *scores[:saved])
    other.restore(json.loads(json.dumps(source.position())))
    assert play(other, *scores[saved:]) == play(source, *scores[saved:])
    assert other.position() == source.position()
    assert take(other, 5) == take(source, 5)


def test_a_level_that_has_ended_is_replaced_by_its_neighbours():
    source = CurriculumSource([ListSource(tasks(2)), ListSource(tasks(1)), ListSource(tasks(3))])
    assert not source.is_endless
    assert [source.level_of(task) for task in take(source, 99)] == [0, 0, 1, 2, 2, 2]


def test_results_reach_a_curriculum_inside_a_mixture():
    inner = climbing(window=1)
    source = MixtureSource({"seeds": SeedSource(), "climb": inner})
    assert isinstance(source, Learner)
    (task,) = take(source, 1, "climb")
    source.note(task, [1.0])
    source.note(take(source, 1, "seeds")[0], [1.0])
    (after,) = take(source, 1, "climb")
    assert after.name == "climb/level 1/seed 0"
    assert asyncio.run(source.fetch(after.ordinal)) == after


def test_a_chooser_of_ones_own_decides():
    class Alternating:
        def choose(self, given: int) -> int:
            return given % 2

        def learn(self, level: int, scores: Sequence[float]) -> None:
            pass

        def position(self) -> dict[str, int]:
            return {}

        def restore(self, position: dict[str, int]) -> None:
            pass

    source = CurriculumSource([SeedSource(), SeedSource(seed=50)], Alternating(), tag="t")
    assert [task.seed for task in take(source, 5, "t")] == [0, 50, 1, 51, 2]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"up": 1.5}, "up must be a share from 0 to 1, got 1.5"),
        ({"review": -0.1}, "review must be a share from 0 to 1, got -0.1"),
        ({"down": 0.8, "up": 0.8}, "down must be below up, got 0.8 and 0.8"),
        ({"window": 0}, "levels and window must be 1 or more, got 3 and 0"),
        ({"levels": 0}, "a curriculum needs at least one level|levels and window must be 1 or more"),
    ],
)
def test_a_ladder_that_cannot_be_climbed_is_refused(how: dict[str, float], why: str):
    with pytest.raises(ConfigError, match=why):
        climbing(**how)  # type: ignore[arg-type]


def test_a_curriculum_without_levels_is_refused():
    with pytest.raises(ConfigError, match="a curriculum needs at least one level"):
        CurriculumSource([])


def test_levels_of_several_tags_are_refused():
    with pytest.raises(ConfigError, match="level 0 of the curriculum must have tasks of one tag, it has 2: a, b"):
        take(CurriculumSource([SeedSource(["a", "b"])]), 1)


@pytest.mark.parametrize(
    ("position", "why"),
    [
        ({"0": 1, "5": 1}, "position has level 5, the curriculum has 3; use as many as then"),
        ({"0": 1, "chooser:level": 4}, "position is at level 4, the ladder has 3; use as many as then"),
    ],
)
def test_a_position_of_other_levels_is_refused_and_changes_nothing(position: dict[str, int], why: str):
    source = climbing()
    play(source, [1.0], [1.0])
    before = source.position()
    with pytest.raises(ConfigError, match=why):
        source.restore(position)
    assert source.position() == before


def test_ordinals_that_no_level_has_are_refused():
    source = CurriculumSource([ListSource(tasks(2)), ListSource(tasks(1))])
    with pytest.raises(ConfigError, match="has no task with ordinal 3; level 1 has 1 tasks"):
        asyncio.run(source.fetch(3))


def test_its_tasks_have_its_tag():
    assert {task.tag for task in take(CurriculumSource([SeedSource(["x"])], tag="t"), 3, "t")} == {"t"}
