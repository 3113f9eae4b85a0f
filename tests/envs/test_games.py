"""What the shipped games have in common."""

from typing import Annotated

import pytest

from windrow.envs.games import Course, direction, settled, settled_for_task, spoken
from windrow.errors import ConfigError, EnvError
from windrow.types import Meta, Value


class Toy(Value, frozen=True, kw_only=True):
    size: Annotated[int, Meta(ge=2)] = 4
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("up", "up"),
        ("Up", "up"),
        ("  DOWN\n", "down"),
        ("I go left.", "left"),
        ("<answer>right</answer>", "right"),
        ("up is a hole, so <answer> Down </answer>, not left", "down"),
        ("<answer>up</answer> no: <answer>left</answer>", "left"),
        ("<answer>left", "left"),
        ("<think>up? down?</think> right", "right"),
        ("<think>up, I think", None),
        ("not up but down", "down"),
        ("go north", "up"),
        ("south", "down"),
        ("east", "right"),
        ("west", "left"),
        ("u", "up"),
        ("D", "down"),
        ("action: r", None),
        ("upper downtown", None),
        ("", None),
        ("é 5 <answer></answer>", None),
    ],
)
def test_the_last_direction_that_is_meant_counts(said: str, meant: str | None):
    assert direction(said) == meant


def test_a_text_without_marks_is_all_meant():
    assert spoken("click[a] or click[b]") == "click[a] or click[b]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sise": 5}, r"unknown setting toy\.sise; did you mean size\?"),
        ({"size": 1}, r"toy\.size must be an integer of 2 or more, got 1"),
        ({"size": "4"}, r"toy\.size must be an integer of 2 or more, got '4'"),
        ({"size": True}, r"toy\.size must be an integer of 2 or more, got True"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(given: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        settled(Toy, "toy", given)


def test_a_task_changes_the_settings_it_names():
    settings = settled(Toy, "toy", {"size": 7})
    assert settled_for_task(settings, "toy", {"names": ["a"]}) == Toy(size=7, names=("a",))
    assert settled_for_task(settings, "toy", None) is settings


def test_a_payload_that_is_no_settings_is_refused():
    with pytest.raises(ConfigError, match=r"a task of toy has settings as its payload, a dict or nothing, got \[1\]"):
        settled_for_task(Toy(), "toy", [1])


def test_a_course_is_begun_once():
    course = Course("toy")
    course.begin(2)
    with pytest.raises(EnvError, match="toy was started twice; make a new environment"):
        course.begin(2)


def test_a_course_takes_no_step_before_it_begins():
    with pytest.raises(EnvError, match="toy has not been started; call start first"):
        Course("toy").take()


def test_a_course_that_ends_with_its_last_step_is_terminated_alone():
    course = Course("toy")
    course.begin(1)
    course.take()
    step = course.step("done", {"a": 1}, reward=1.0, ended=True)
    assert (step.terminated, step.truncated, step.observation, step.info) == (True, False, "done", {"a": 1})


def test_a_course_without_steps_left_is_truncated_and_takes_no_more():
    course = Course("toy")
    course.begin(2)
    course.take()
    first = course.step("on", {"a": 1})
    course.take()
    second = course.step("on", {"a": 1})
    assert (first.terminated, first.truncated, first.info) == (False, False, {})
    assert (second.terminated, second.truncated, second.info) == (False, True, {"a": 1})
    assert second.observation == "on\nno steps left"
    with pytest.raises(EnvError, match="toy is over; make a new environment for the next episode"):
        course.take()
