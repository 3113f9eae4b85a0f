"""Shutdown is a path, not an accident."""

from tests.core.given import complete, ended, failed, only, opened, progressed, staffed, wanted

from windrow.core.commands import CancelAttempt, DropGroup, EndBatches, RetireBatch
from windrow.core.delivery import CLOSED
from windrow.core.events import (
    BatchTrained,
    GroupJudged,
    ShutdownWanted,
    SourceEnded,
    TaskArrived,
    TimePassed,
    VersionPublished,
    WorkerJoined,
)
from windrow.types import AttemptId


def test_whatever_lives_is_dropped_and_whoever_waits_is_told():
    made = opened(size=1, batch=2, slots=1)
    assert made.step(ShutdownWanted()) == [
        CancelAttempt(AttemptId(0, 0), "w0", "shutdown"),
        DropGroup(0, "shutdown"),
        DropGroup(1, "shutdown"),
        EndBatches("trainer", CLOSED),
    ]


def test_consumers_of_both_modes_are_told():
    made = opened()
    made.step(wanted(1, consumer="judge", mode="val"))
    assert [end.consumer for end in only(made.step(ShutdownWanted()), EndBatches)] == ["trainer", "judge"]


def test_complete_and_judged_groups_are_dropped_too():
    made = opened(size=1, batch=3, filter="external")
    complete(made, 0, 1)
    made.step(GroupJudged(0, accepted=True))
    made.step(ShutdownWanted())
    assert made._books.groups == {}
    assert made.ledgers["train"].groups.dropped == {"shutdown": 3}


def test_what_was_delivered_may_still_be_asked_for_and_acknowledged():
    made = opened(size=1, batch=1)
    first = complete(made, 0)
    assert made.step(ShutdownWanted()) == []
    assert made.step(wanted(1)) == first
    assert made.step(BatchTrained(0)) == [RetireBatch(0)]


def test_answers_that_come_later_are_late():
    made = opened(size=1, batch=2, filter="external")
    complete(made, 0)
    made.step(ShutdownWanted())
    assert made.steps(ended(1, 0), failed(1, 0), progressed(1, 0), GroupJudged(0, accepted=True)) == []
    assert made.late == 4


def test_wants_that_come_later_are_ended():
    made = opened()
    made.step(ShutdownWanted())
    assert made.step(wanted(4, step=1)) == [EndBatches("trainer", CLOSED)]
    assert made.step(wanted(-1, consumer="judge", mode="val")) == [EndBatches("judge", CLOSED)]


def test_tasks_that_come_later_are_dropped_and_not_replaced():
    made = staffed(size=1, batch=2)
    made.steps(wanted(2), ShutdownWanted())
    assert made.step(TaskArrived("train", 0)) == [DropGroup(0, "shutdown")]


def test_nothing_starts_any_more():
    made = opened(size=1, batch=2, slots=1)
    made.step(failed(0, 0))
    made.step(ShutdownWanted())
    news = (WorkerJoined("w1", 9), VersionPublished(1, loaded=True), SourceEnded("train"))
    assert made.steps(*news) == []
    assert made.step(TimePassed(), 1000.0) == []
    assert made.next_deadline is None


def test_shutting_down_twice_is_harmless():
    made = opened()
    made.step(ShutdownWanted())
    assert made.step(ShutdownWanted()) == []


def test_groups_that_were_carried_over_are_dropped_too():
    made = opened(size=1, batch=1, tail=1.0, slots=1)
    complete(made, 0)
    assert [*made._books.lanes["train"].carried] == [1]
    assert made.step(ShutdownWanted()) == [DropGroup(1, "shutdown")]


def test_groups_that_wait_for_a_tail_round_are_dropped_too():
    made = opened(size=1, batch=1, tail=1.0, slots=2)
    complete(made, 0)
    assert [*made._books.lanes["train"].aside] == [1]
    assert made.step(ShutdownWanted()) == [DropGroup(1, "shutdown")]


def test_waste_is_booked_as_cancelled():
    made = opened(size=1, batch=2, slots=2)
    made.step(progressed(0, 0, tokens=40))
    made.step(ShutdownWanted(), 3.0)
    waste = made.ledgers["train"].waste["cancelled"]
    assert (waste.attempts, waste.tokens, waste.seconds) == (2, 40, 6.0)
