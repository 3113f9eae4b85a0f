"""Which layouts are looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.given import question

from windrow.cluster.mapping import Layout, spelled
from windrow.plan.layouts import candidates
from windrow.plan.question import Question


def told(asked: Question) -> list[str]:
    return [f"{layout.kind} {spelled(layout.infer)} {spelled(layout.train)}" for layout in candidates(asked)]


def test_four_devices_are_shared_in_seven_ways_the_simplest_first():
    assert told(question()) == [
        "disjoint 1-3 0",
        "disjoint 2-3 0-1",
        "disjoint 3 0-2",
        "colocated 0-3 0-3",
        "overlapping 0-3 0",
        "overlapping 0-3 0-1",
        "overlapping 0-3 0-2",
    ]


def test_one_device_is_shared_in_turns():
    assert told(question(1)) == ["colocated 0 0"]


def test_training_that_is_a_thread_has_one_device():
    assert told(question(3, splits=False)) == ["disjoint 1-2 0", "overlapping 0-2 0"]


def test_workers_of_several_devices_get_all_of_theirs():
    assert told(question(infer_each=2)) == [
        "disjoint 1-2 0",
        "disjoint 2-3 0-1",
        "colocated 0-3 0-3",
        "overlapping 0-3 0-1",
    ]
    assert told(question(5, infer_each=2, train_each=3)) == ["disjoint 3-4 0-2"]


@pytest.mark.parametrize(
    ("infer", "train", "found"),
    [
        (None, (1,), ["disjoint 0,2-3 1", "overlapping 0-3 1"]),
        ((0, 1), None, ["disjoint 0-1 2", "disjoint 0-1 2-3", "colocated 0-1 0-1", "overlapping 0-1 0"]),
        (None, (), ["disjoint 0-3 "]),
    ],
)
def test_what_was_said_is_kept(infer: tuple[int, ...] | None, train: tuple[int, ...] | None, found: list[str]):
    assert told(question(infer=infer, train=train)) == found


def test_a_layout_that_the_file_says_comes_first_and_once():
    said = Layout(infer=(0, 1, 2, 3), train=(0,))
    found = candidates(question(given=said))
    assert found[0] == said
    assert len(found) == 7


@given(st.integers(1, 600), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_every_layout_can_be_carried_out_and_there_are_few(devices: int, infer_each: int, train_each: int):
    found = candidates(question(devices, infer_each=infer_each, train_each=train_each))
    assert len(set(found)) == len(found) <= 30
    for layout in found:
        assert len(layout.infer) % infer_each == len(layout.train) % train_each == 0
        assert set(layout.infer) | set(layout.train) <= set(range(devices))
        shared = set(layout.shared)
        assert all(len(shared & set(engine)) in (0, infer_each) for engine in layout.engines)


def test_what_others_were_given_is_kept_and_a_reward_model_has_its_devices_alone():
    found = candidates(question(4, critic=(2,), rewards=(3,)))
    assert all(layout.critic == (2,) for layout in found)
    assert all(3 not in (*layout.infer, *layout.train) for layout in found)
    assert any(layout.infer == (1,) and layout.train == (0,) for layout in found), "nobody shares anything"
