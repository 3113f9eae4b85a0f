"""How things are measured: in turns, as medians; nothing about how fast they are."""

import pytest

from windrow.bench import alternate, compared, cpu_s
from windrow.bench.core import play, record
from windrow.core.machine import Machine


def test_measurements_are_taken_in_turns_and_their_medians_kept():
    order: list[str] = []
    ours, theirs = iter([5.0, 1.0, 3.0]), iter([9.0, 8.0, 70.0])

    def measure_ours() -> float:
        order.append("ours")
        return next(ours)

    def measure_theirs() -> float:
        order.append("theirs")
        return next(theirs)

    assert alternate(3, measure_ours, measure_theirs) == [3.0, 9.0]
    assert order == ["ours", "theirs"] * 3


def test_the_ratio_is_ours_to_the_alternative():
    result = compared("x", 3.0, 2.0, "s")
    assert (result.ours, result.alternative, result.ratio, result.unit) == (3.0, 2.0, 1.5, "s")


def test_the_work_is_done_once():
    done: list[int] = []
    assert cpu_s(lambda: done.append(1)) >= 0
    assert done == [1]


def test_a_recording_is_long_enough_and_can_be_played_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windrow.bench.core.EVENTS", 200)
    recording = record(16, 2)
    assert len(recording.events) == 16 * 4 + 200
    assert recording.timed == 132, "half of them"
    machine = Machine(recording.settings)
    assert play(recording, machine) >= 0
    machine.check()
    assert machine.now == recording.events[-1][1]
