"""Tasks that were played before, again."""

from pathlib import Path

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.sources.kits import played, take, write_jsonl

from windrow.errors import ConfigError
from windrow.sources.recordings import Recorder
from windrow.sources.replay import ReplaySource
from windrow.trajectory import Task, Trajectory
from windrow.types import but


def test_each_task_comes_once_as_it_was_apart_from_its_ordinal(folder: Path):
    given = take(ReplaySource(folder / "played.rec"), 99)
    originals = [made.task for made in played()[::2]]
    assert given == [but(task, ordinal=place) for place, task in enumerate(originals)]


def test_a_list_of_trajectories_is_replayed_like_a_file(folder: Path):
    assert take(ReplaySource(played()), 99) == take(ReplaySource(folder / "played.rec"), 99)


def test_only_tasks_with_some_scores_are_replayed(folder: Path):
    """Attempts at task n scored n and n + 1."""
    given = take(ReplaySource(folder / "played.rec", min_score=3.5, max_score=5.5), 99)
    assert [task.name for task in given] == ["old 3", "old 4", "old 5"]


def made(ordinal: int, tag: str = "", name: str = "") -> Trajectory:
    return but(trajectory(), task=Task(ordinal=ordinal, tag=tag, name=name))


def test_tasks_without_names_are_told_apart_by_their_ordinals():
    given = take(ReplaySource([made(1), made(2), made(1), made(2, name="x"), made(3, name="x")]), 99)
    assert [task.name for task in given] == ["", "", "x"]


def test_tags_are_kept():
    source = ReplaySource([made(1, "a"), made(1, "b"), made(2, "b")], passes=2)
    assert [(task.tag, task.ordinal) for task in take(source, 99, "b")] == [("b", 1), ("b", 3), ("b", 5), ("b", 7)]
    assert [(task.tag, task.ordinal) for task in take(source, 99, "a")] == [("a", 0), ("a", 2)]


def test_what_is_recorded_later_is_not_replayed_and_a_position_says_so(tmp_path: Path):
    with Recorder(tmp_path / "run.rec") as out:
        out.write(made(1))
        source = ReplaySource(out.path, passes=None)
        assert len(take(source, 3)) == 3
        out.write(made(2))
        assert len({task.name for task in take(source, 3)}) == 1
        other = ReplaySource(out.path, passes=None)
        other.restore(source.position())
        with pytest.raises(ConfigError, match="is not what its position was taken over: #tasks was"):
            take(other, 1)


def test_what_cannot_be_replayed_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no file .*playd.rec; did you mean .*played.rec\?"):
        ReplaySource(folder / "playd.rec")
    with pytest.raises(ConfigError, match="names 3 recordings; replay one, or blend several"):
        ReplaySource(str(folder / "part-*.jsonl"))
    with pytest.raises(ConfigError, match="min_score must not be above max_score, got 2 and 1"):
        ReplaySource([], min_score=2, max_score=1)
    with pytest.raises(ConfigError, match="passes over a recording must be 1 or more, got 0"):
        ReplaySource([], passes=0)
    with pytest.raises(ConfigError, match="the list of trajectories has no task with a mean score from -inf to inf"):
        take(ReplaySource([]), 1)
    with pytest.raises(ConfigError, match="has no task with a mean score from 99 to inf"):
        take(ReplaySource(folder / "played.rec", min_score=99), 1)
    with pytest.raises(ConfigError, match="is no recording of trajectories"):
        take(ReplaySource(write_jsonl(tmp_path / "x.jsonl", [{"a": "long enough"}])), 1)
