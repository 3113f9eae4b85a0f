"""An alarm speaks when trainer and engines do not agree, and not more often than it must."""

import logging

import pytest

from windrow.errors import TrainError
from windrow.train.alarm import MEAN, MOST, NO_SIGNAL, PATIENCE, MismatchAlarm, SignalAlarm
from windrow.train.config import TrainConfig

GOOD, BAD = {MEAN: 0.05, MOST: 3.0}, {MEAN: 0.051, MOST: 0.2}


def test_it_warns_once_for_each_streak(caplog):
    alarm = MismatchAlarm(TrainConfig(mismatch_alarm=0.05))
    with caplog.at_level(logging.WARNING):
        assert [alarm.look(each) for each in (GOOD, BAD, BAD, {}, BAD, GOOD, BAD)] == [
            False, True, True, False, True, False, True,
        ]  # fmt: skip
    assert len(caplog.records) == 2
    said = caplog.records[0].getMessage()
    assert "differ by 0.051 (at worst 0.2)" in said
    assert "train.mismatch_alarm is 0.05" in said
    assert "temperature" in said


def test_it_says_when_they_agree_again(caplog):
    alarm = MismatchAlarm(TrainConfig())
    with caplog.at_level(logging.INFO):
        for each in (BAD, BAD, GOOD, GOOD):
            alarm.look(each)
    assert [record.getMessage() for record in caplog.records[1:]] == ["trainer and engines agree again after 2 batches"]


def test_what_is_no_number_is_a_mismatch():
    with pytest.raises(TrainError, match=r"differ by nan on tokens"):
        MismatchAlarm(TrainConfig(on_mismatch="stop")).look({MEAN: float("nan")})


def test_it_stops_training_if_it_was_told_to():
    alarm = MismatchAlarm(TrainConfig(on_mismatch="stop"))
    assert alarm.look(GOOD) is False
    with pytest.raises(TrainError, match=r"windrow doctor CONFIG shows whether they agree"):
        alarm.look(BAD)


def test_batches_that_teach_nothing_are_spoken_of_when_there_are_several_in_a_row(caplog: pytest.LogCaptureFixture):
    alarm = SignalAlarm()
    nothing, something = {NO_SIGNAL: 1.0}, {NO_SIGNAL: 0.9}
    with caplog.at_level(logging.INFO):
        for each in [nothing] * (PATIENCE - 1) + [something] + [nothing] * (PATIENCE + 2) + [something, {}]:
            assert alarm.look(each) is (each == nothing)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(f"nothing was learnt from the last {PATIENCE} batches")
    assert said[1] == f"there is something to learn again after {PATIENCE + 2} batches"
