"""Lines of metrics: there when they are written, told once when a run goes on."""

import math
from pathlib import Path

import pytest

from windrow.errors import DataError, Refused
from windrow.store.metrics import TAIL, Line, MetricsFile


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics.jsonl", is_ours=True)


def told(metrics: MetricsFile) -> list[tuple[int, dict[str, float]]]:
    return [(line.step, line.values) for line in metrics]


def test_what_was_measured_is_read_back_in_order(metrics: MetricsFile):
    metrics.append(1, {"train/loss": 0.1, "batch/groups_total": 4})
    metrics.append(2, {"train/loss": -1e-300})
    assert told(metrics) == [(1, {"train/loss": 0.1, "batch/groups_total": 4.0}), (2, {"train/loss": -1e-300})]
    assert [line.at for line in metrics] == sorted(line.at for line in metrics)


def test_a_line_is_there_for_other_readers_at_once(metrics: MetricsFile):
    metrics.append(1, {"a": 1.0})
    assert told(MetricsFile(metrics.path, is_ours=False)) == [(1, {"a": 1.0})]


def test_what_json_cannot_say_becomes_nan(metrics: MetricsFile):
    metrics.append(1, {"a": math.nan, "b": math.inf})
    ((_, values),) = told(metrics)
    assert all(math.isnan(value) for value in values.values())
    assert b"null" in metrics.path.read_bytes(), "any program can read it"


def test_no_file_has_no_lines(metrics: MetricsFile):
    assert (told(metrics), metrics.last(), metrics.cut_after(0)) == ([], None, 0)


@pytest.mark.parametrize("name", ["step", "at"])
def test_the_names_of_every_line_are_taken(metrics: MetricsFile, name: str):
    with pytest.raises(DataError, match=f"must not be called '{name}'"):
        metrics.append(1, {name: 1.0})
    assert told(metrics) == []


def test_a_file_cut_off_anywhere_has_all_lines_before_and_can_be_gone_on_with(metrics: MetricsFile):
    for step in range(3):
        metrics.append(step, {"a": step / 3})
    whole, lines = metrics.path.read_bytes(), told(metrics)
    for size in range(len(whole) + 1):
        metrics.path.write_bytes(whole[:size])
        left = whole[:size].count(b"\n")
        assert told(MetricsFile(metrics.path, is_ours=False)) == lines[:left]
        again = MetricsFile(metrics.path, is_ours=True)
        again.append(9, {"b": 1.0})
        assert told(again) == [*lines[:left], (9, {"b": 1.0})]


def test_zeros_that_a_loss_of_power_leaves_at_the_end_are_removed(metrics: MetricsFile):
    metrics.append(1, {"a": 1.0})
    with metrics.path.open("ab") as file:
        file.write(bytes(100))
    assert told(MetricsFile(metrics.path, is_ours=True)) == [(1, {"a": 1.0})]


def test_damage_before_the_end_is_an_error_with_its_line(metrics: MetricsFile):
    metrics.path.write_bytes(b'{"step":1,"at":0}\n{"step":\n{"step":3,"at":0}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl, line 2, is no line of metrics"):
        told(metrics)


def test_reading_alone_changes_nothing(metrics: MetricsFile):
    metrics.path.write_bytes(b'{"step":1,"at":0}\n{"st')
    reader = MetricsFile(metrics.path, is_ours=False)
    assert len(told(reader)) == 1
    assert metrics.path.read_bytes().endswith(b'{"st')
    with pytest.raises(Refused, match="open for reading alone"):
        reader.append(2, {})


def test_later_steps_are_cut_away_and_the_others_stay_as_they_were(metrics: MetricsFile):
    for step in (0, 1, 1, 3, 2, 4):
        metrics.append(step, {"a": math.nan if step == 1 else 0.1})
    before = [
        line for line in metrics.path.read_bytes().splitlines() if b'"step":3' not in line and b'"step":4' not in line
    ]
    assert metrics.cut_after(2) == 2
    assert metrics.path.read_bytes().splitlines() == before
    metrics.append(3, {"a": 1.0})
    assert [step for step, _ in told(metrics)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("width", [1, TAIL // 60, TAIL // 10])
def test_the_last_line_is_found_without_reading_the_others(metrics: MetricsFile, width: int):
    for step in range(3):
        metrics.append(step, {f"metric/{number}": 0.5 for number in range(width)})
    with metrics.path.open("ab") as file:
        file.write(b'{"step":9,"at":0,"torn')
    last = metrics.last()
    assert isinstance(last, Line)
    assert (last.step, len(last.values)) == (2, width)
    metrics.path.write_bytes(b"garbage\n" * TAIL + metrics.path.read_bytes())
    last = metrics.last()
    assert last is not None
    assert last.step == 2
