"""Events that cannot have happened raise with the story, and change nothing."""

from math import inf, nan

import pytest
from tests.core.given import complete, ended, failed, opened, progressed, refusal, staffed, wanted

from windrow.core.events import (
    BatchTrained,
    EngineAssigned,
    EngineJoined,
    EpisodeEnded,
    GroupJudged,
    SourceEnded,
    SourceOpened,
    SuspendWanted,
    TaskArrived,
    TimePassed,
    VersionPublished,
    WorkerJoined,
)
from windrow.errors import IllegalEvent, InternalError
from windrow.types import AttemptId

CASES = {
    "an attempt of a group that never was": (ended(9, 0), r"attempt g9.a0 was never granted\ng9 never was"),
    "an attempt that was never granted": (ended(0, 7), r"g0.a7 was never granted\ng0 \(train, ordinal 0, "),
    "a failure that was never granted": (failed(1, 2), r"g1.a2 was never granted\ng1 \(train, ordinal 1, "),
    "progress that was never granted": (progressed(0, 2), r"g0.a2 was never granted\ng0 .* 2 playing"),
    "a negative index": (ended(0, -1), r"g0.a-1 was never granted\ng0 \(train"),
    "a negative group": (ended(-1, 0), r"g-1.a0 was never granted\ng-1 never was"),
    "a verdict on a group that never was": (GroupJudged(9, accepted=True), r"g9 was judged and never admitted"),
    "a verdict on a negative group": (GroupJudged(-1, accepted=True), r"g-1 was judged and never admitted"),
    "a batch that never was": (BatchTrained(0), r"batch 0 was trained and never delivered"),
    "a task that was not asked for": (TaskArrived("train", 5), r"tag '' arrived for train that was not asked for"),
    "a task of an unknown tag": (TaskArrived("train", 5, "maze"), r"tag 'maze' arrived for train that was not asked"),
    "a task of another mode": (TaskArrived("val", 5), r"tag '' arrived for val that was not asked for"),
    "the end of an unknown tag": (SourceEnded("train", "maze"), r"the source of an unknown tag 'maze'; known: "),
    "the opening of an unknown tag": (SourceOpened("train", "maze"), r"the source of an unknown tag 'maze'; known: "),
    "a played episode that was never granted": (EpisodeEnded(AttemptId(0, 7), 3), r"g0.a7 was never granted\ng0 "),
    "a score that is no number": (ended(0, 0, score=nan), r"g0.a0 has score nan; report it as failed\ng0 "),
    "a score without bounds": (ended(0, 0, score=-inf), r"g0.a0 has score -inf; report it as failed\ng0 "),
    "fewer than no tokens": (ended(0, 0, tokens=-1), r"attempt g0.a0 has -1 tokens\ng0 "),
    "a failure with fewer than no tokens": (failed(0, 0, tokens=-1), r"attempt g0.a0 has -1 tokens\ng0 "),
    "a worker that joins twice": (WorkerJoined("w0", 8), r"worker 'w0' joined twice; report it lost"),
    "a worker without slots": (WorkerJoined("w1", 0), r"worker 'w1' offers 0 slots for kinds \[''\]"),
    "a worker without kinds": (WorkerJoined("w1", 2, ()), r"worker 'w1' offers 2 slots for kinds \[\]"),
    "an engine that joins twice": (EngineJoined("e0"), r"engine 'e0' joined twice; report it lost"),
    "an engine without capacity": (EngineJoined("e1", capacity=0), r"engine 'e1' has capacity 0; it must be 1"),
    "an unknown engine assigned": (EngineAssigned("e9", "val"), r"unknown engine 'e9'; known: e0"),
    "an unknown engine held": (SuspendWanted("user", engines=("e9",)), r"unknown engine 'e9'; known: e0"),
    "a version that goes back": (VersionPublished(-1), r"version went back from 0 to -1"),
}


@pytest.mark.parametrize(("event", "message"), CASES.values(), ids=CASES)
def test_it_raises_with_the_story_and_changes_nothing(event, message):
    made = opened(size=2, batch=4)
    with refusal(made, IllegalEvent, match=message):
        made.step(event, 1.0)
    assert made.now == 0.0


def test_time_does_not_go_back():
    made = opened(size=1, batch=1)
    made.step(TimePassed(), 5.0)
    with refusal(made, IllegalEvent, match=r"time went from 5.0 to 4.0 with TimePassed\(\)"):
        made.step(TimePassed(), 4.0)


@pytest.mark.parametrize("now", [inf, -inf, nan])
def test_time_is_a_number(now):
    made = opened(size=1, batch=1)
    made.step(TimePassed(), 5.0)
    with refusal(made, IllegalEvent, match=f"time went from 5.0 to {now}"):
        made.step(TimePassed(), now)


def test_time_may_stand_still():
    made = opened(size=1, batch=1)
    made.step(TimePassed(), 5.0)
    assert made.step(TimePassed(), 5.0) == []
    assert made.now == 5.0


def test_the_story_is_that_of_the_group_concerned():
    made = opened(size=2, batch=4)
    made.step(failed(1, 0, why="KeyError: 'door'"))
    story = r"g1 .* failures \{'env': 1\}, the last: g1.a0 env: KeyError: 'door'\n  g1.a1 granted at 0.000"
    with refusal(made, IllegalEvent, match=story):
        made.step(ended(1, 9))


def test_an_illegal_event_is_our_own_fault():
    assert issubclass(IllegalEvent, InternalError)


def test_after_an_illegal_event_everything_goes_on():
    made = opened(size=1, batch=1)
    with pytest.raises(IllegalEvent):
        made.step(ended(5, 5))
    assert len(complete(made, 0)) == 1


def test_an_ended_source_brings_nothing_more():
    made = staffed(size=1, batch=2)
    made.steps(wanted(2), SourceEnded("train"))
    with refusal(made, IllegalEvent, match="was not asked for"):
        made.step(TaskArrived("train", 0))


def test_a_source_may_end_twice():
    made = staffed(size=1, batch=2)
    made.step(SourceEnded("train"))
    before = made.snapshot()
    assert made.step(SourceEnded("train")) == []
    assert made.snapshot() == before


def test_without_engines_the_message_says_so():
    made = opened(engines=0)
    with refusal(made, IllegalEvent, match="unknown engine 'e0'; known: none"):
        made.step(EngineAssigned("e0"))
