"""Spares are cancelled at once, and whatever is heard of a forgotten attempt is only counted."""

from tests.core.given import (
    but_not,
    complete,
    delivered,
    ended,
    failed,
    feed,
    only,
    opened,
    played,
    progressed,
    queued,
    wanted,
)

from windrow.core.commands import CancelAttempt, DeliverBatch, GrantLease
from windrow.core.events import AttemptEnded, TimePassed, WorkerJoined
from windrow.types import AttemptId, Finished


def test_spares_are_cancelled_when_the_group_is_full():
    made = opened(size=2, batch=4, spares=1)
    assert made.step(ended(0, 0)) == []
    assert made.step(ended(0, 1)) == [CancelAttempt(AttemptId(0, 2), "w0", "spare")]


def test_a_spare_that_is_faster_takes_the_place_of_a_member():
    made = opened(size=2, batch=2, spares=1)
    made.step(ended(0, 2))
    commands = made.step(ended(0, 0))
    assert commands[0] == CancelAttempt(AttemptId(0, 1), "w0", "spare")
    assert only(commands, DeliverBatch)[0].attempts == (AttemptId(0, 0), AttemptId(0, 2))


def test_the_slots_of_cancelled_spares_are_used_in_the_same_step():
    made = opened(size=1, batch=2, spares=1, slots=2)  # both slots play g0, g1 waits
    cancelled, *granted = made.step(ended(0, 0))
    assert cancelled == CancelAttempt(AttemptId(0, 1), "w0", "spare")
    assert played(granted) == ["g1.a0", "g1.a1"]


def test_spares_are_not_started_while_another_group_needs_the_slot():
    made = queued(size=1, batch=3, spares=2)
    assert played(made.step(WorkerJoined("w0", 4))) == ["g0.a0", "g1.a0", "g2.a0", "g0.a1"]
    assert played(made.step(ended(0, 0))) == ["g1.a1", "g2.a1"]


def test_spares_that_never_started_are_not_started_for_a_full_group():
    made = opened(size=1, batch=1, spares=3, slots=2)
    assert but_not(made.step(ended(0, 1)), DeliverBatch) == [CancelAttempt(AttemptId(0, 0), "w0", "spare")]


def test_a_resting_spare_does_not_outlive_its_group():
    made = opened(size=1, batch=1, spares=1)
    made.step(failed(0, 0))
    assert made._books.groups[0].resting == [0]
    assert delivered(made.step(ended(0, 1))) == [(0,)]


def test_a_late_answer_of_a_cancelled_spare_is_counted_and_ignored():
    made = opened(size=1, batch=2, spares=1)
    made.step(ended(0, 0))
    before = made.ledgers["train"].attempts.alive
    assert made.steps(ended(0, 1), failed(0, 1), progressed(0, 1, 5)) == []
    assert made.late == 3
    assert made.ledgers["train"].attempts.alive == before


def test_a_doubled_answer_counts_once():
    made = opened(size=2, batch=2)
    assert made.steps(ended(0, 0, score=1.0), ended(0, 0, score=0.5), failed(0, 0), progressed(0, 0, 9)) == []
    assert made.late == 3
    assert made._books.groups[0].attempts[0].score == 1.0


def test_an_answer_for_a_delivered_group_is_late():
    made = opened(size=1, batch=1)
    complete(made, 0)
    assert made.step(ended(0, 0)) == []
    assert made.late == 1


def test_an_answer_for_a_trained_group_is_late():
    made = opened(size=1, batch=1)
    complete(made, 0)
    made.step(wanted(1, step=1))
    assert made.step(AttemptEnded(AttemptId(0, 7), Finished(0.0, 0, -1))) == []
    assert made.late == 1


def test_answers_in_any_order_fill_the_group_in_order_of_index():
    made = opened(size=3, batch=3)
    batch = only(made.steps(ended(0, 2), ended(0, 0), ended(0, 1)), DeliverBatch)[0]
    assert batch.attempts == (AttemptId(0, 0), AttemptId(0, 1), AttemptId(0, 2))


def test_a_lease_says_everything_that_a_worker_needs():
    made = opened(size=1, batch=1, tasks=0, lease_s=60.0)
    assert feed(made, 1) == [GrantLease(AttemptId(0, 0), 0, "w0", "e0", 0, "", "train", 0, 60.0)]


def seats(commands) -> list[tuple[str, int]]:
    return [(str(lease.attempt), lease.seat) for lease in only(commands, GrantLease)]


def test_every_member_and_spare_has_a_seat_of_its_own():
    made = opened(size=2, batch=2, spares=1, tasks=0)
    assert seats(feed(made, 1)) == [("g0.a0", 0), ("g0.a1", 1), ("g0.a2", 2)]


def test_a_retry_takes_the_seat_that_was_vacated():
    made = opened(size=3, batch=3, backoff_s=0.0)
    assert seats(made.step(failed(0, 1))) == [("g0.a3", 1)]
    assert seats(made.step(failed(0, 0))) == [("g0.a4", 0)]


def test_of_several_vacated_seats_the_lowest_is_taken_first():
    made = opened(size=3, batch=3, backoff_s=1.0)
    made.steps(failed(0, 2), failed(0, 0))
    assert seats(made.step(TimePassed(), 2.0)) == [("g0.a3", 0), ("g0.a4", 2)]
