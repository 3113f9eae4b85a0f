"""Leases: deadlines, heartbeats, workers that leave or die."""

import pytest
from tests.core.given import complete, ended, failed, machine, only, opened, played, progressed, queued, wanted

from windrow.core.commands import CancelAttempt, FetchTask, GrantLease
from windrow.core.events import TimePassed, WorkerBeat, WorkerJoined, WorkerLeft, WorkerLost
from windrow.types import AttemptId


def test_an_attempt_that_outlives_its_lease_is_cancelled_and_tried_again():
    made = opened(size=1, batch=1, slots=1, lease_s=60.0, backoff_s=2.0)
    assert made.step(TimePassed(), 60.0) == [CancelAttempt(AttemptId(0, 0), "w0", "failed")]
    assert played(made.step(TimePassed(), 62.0)) == ["g0.a1"]


def test_without_back_off_it_is_tried_again_in_the_same_step():
    made = opened(size=1, batch=1, slots=1, lease_s=60.0, backoff_s=0.0)
    assert played(made.step(TimePassed(), 60.0)) == ["g0.a1"]


def test_an_attempt_within_its_lease_goes_on():
    made = opened(size=1, batch=1, lease_s=60.0)
    assert made.step(TimePassed(), 59.9) == []


def test_only_the_leases_that_ran_out_are_cancelled():
    made = opened(size=1, batch=2, slots=1, lease_s=60.0, backoff_s=0.0)
    made.step(WorkerJoined("w1", 1), 10.0)
    assert only(made.step(TimePassed(), 60.0), CancelAttempt) == [CancelAttempt(AttemptId(0, 0), "w0", "failed")]
    assert only(made.step(TimePassed(), 70.0), CancelAttempt) == [CancelAttempt(AttemptId(1, 0), "w1", "failed")]


def test_the_answer_of_an_attempt_that_outlived_its_lease_is_late():
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(TimePassed(), 60.0)
    assert made.step(ended(0, 0)) == []
    assert made.late == 1


def test_an_attempt_that_runs_out_is_blamed_on_its_environment():
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(TimePassed(), 60.0)
    assert made._books.groups[0].last_failure == "g0.a0 env: its lease of 60.0 s ran out"


# when to look again


def test_without_anything_to_wait_for_there_is_no_deadline():
    assert machine().next_deadline is None


def test_the_next_deadline_is_the_oldest_lease():
    made = opened(size=1, batch=2, slots=1, lease_s=60.0)
    made.step(WorkerJoined("w1", 1), 10.0)
    assert made.next_deadline == 60.0
    made.step(ended(0, 0), 20.0)
    assert made.next_deadline == 70.0
    made.step(ended(1, 0), 30.0)
    assert made.next_deadline is None


def test_the_next_deadline_is_the_end_of_a_rest():
    made = opened(size=1, batch=1, lease_s=60.0, backoff_s=2.0)
    made.step(failed(0, 0), 5.0)
    assert made.next_deadline == 7.0


def test_the_next_deadline_is_when_a_worker_is_due():
    made = opened(size=1, batch=1, lease_s=60.0, beat_s=10.0)
    assert made.next_deadline == 10.0
    made.step(WorkerBeat("w0"), 4.0)
    assert made.step(TimePassed(), 10.0) == []
    assert made.next_deadline == 14.0


def test_when_its_deadline_comes_something_is_done_or_it_moves_on():
    made = opened(size=1, batch=1, lease_s=60.0, beat_s=25.0, backoff_s=40.0)
    seen: list[float] = []
    while (due := made.next_deadline) is not None and len(seen) < 4:
        made.step(TimePassed(), due)
        seen.append(due)
    assert seen == [25.0, 65.0]  # the worker is silent; the rest is over; there is no worker to play it


# workers


def test_a_lost_worker_loses_its_slots_and_its_attempts_play_elsewhere():
    made = opened(size=2, batch=2, slots=2, backoff_s=0.0)
    made.step(WorkerJoined("w1", 2))
    leases = only(made.step(WorkerLost("w0", "out of memory")), GrantLease)
    assert [(str(lease.attempt), lease.worker) for lease in leases] == [("g0.a2", "w1"), ("g0.a3", "w1")]
    assert made._books.groups[0].last_failure == "g0.a1 worker: worker w0: out of memory"


def test_attempts_of_a_lost_worker_wait_for_a_slot():
    made = opened(size=1, batch=1, slots=1, backoff_s=0.0)
    assert made.step(WorkerLost("w0")) == []
    assert "no worker has joined" in made.why_waiting("trainer")
    assert played(made.step(WorkerJoined("w0", 1))) == ["g0.a1"]


def test_a_lost_worker_is_told_nothing():
    made = opened(size=2, batch=2, slots=2, worker_retries=0)
    commands = made.step(WorkerLost("w0"))
    assert only(commands, CancelAttempt) == []


def test_a_group_that_is_given_up_is_cancelled_on_the_workers_that_live():
    made = opened(size=2, batch=2, slots=1, worker_retries=0)
    made.step(WorkerJoined("w1", 1))
    assert only(made.step(WorkerLost("w0")), CancelAttempt) == [CancelAttempt(AttemptId(0, 1), "w1", "failed")]


def test_losing_a_worker_twice_is_late():
    made = opened()
    made.steps(WorkerLost("w0"), WorkerLost("w0"))
    assert made.late == 1


def test_a_leaving_worker_plays_what_it_has_and_gets_nothing_new():
    made = opened(size=1, batch=4, slots=2)
    assert made.step(WorkerLeft("w0")) == []
    assert made.step(ended(0, 0)) == []
    assert "w0" in made._books.workers.table
    made.step(ended(1, 0))
    assert "w0" not in made._books.workers.table


def test_an_idle_worker_leaves_at_once():
    made = machine()
    made.steps(WorkerJoined("w0", 2), WorkerLeft("w0"))
    assert made._books.workers.table == {}


def test_a_worker_may_leave_twice_and_die_then():
    made = opened(size=1, batch=1, slots=1, backoff_s=0.0)
    made.steps(WorkerLeft("w0"), WorkerLeft("w0"))
    made.step(WorkerJoined("w1", 1))
    assert played(made.step(WorkerLost("w0"))) == ["g0.a1"]
    assert made._books.workers.slots == 1


@pytest.mark.parametrize("event", [WorkerBeat("w9"), WorkerLeft("w9"), WorkerLost("w9")])
def test_news_of_a_worker_that_is_gone_is_late(event):
    made = machine()
    assert made.step(event) == []
    assert made.late == 1


def test_a_silent_worker_is_lost():
    made = opened(size=1, batch=1, slots=1, beat_s=10.0)
    made.step(TimePassed(), 10.0)
    assert made._books.workers.table == {}
    assert made._books.groups[0].last_failure == "g0.a0 worker: worker w0: silent for 10.0 s"


@pytest.mark.parametrize("sign", [WorkerBeat("w0"), progressed(0, 0, 5), ended(0, 0)])
def test_any_sign_of_life_counts(sign):
    made = opened(size=1, batch=2, slots=2, beat_s=10.0)
    made.step(sign, 9.0)
    made.step(TimePassed(), 10.0)
    assert "w0" in made._books.workers.table
    made.step(TimePassed(), 19.0)
    assert made._books.workers.table == {}


def test_a_worker_that_is_gone_is_not_looked_after():
    made = machine(beat_s=10.0)
    made.steps(WorkerJoined("w0", 1), WorkerLost("w0"))
    assert made.step(TimePassed(), 10.0) == []
    assert made.late == 0
    assert made.next_deadline is None


def test_a_worker_that_came_back_and_falls_silent_is_lost_once():
    made = machine(beat_s=10.0)
    made.steps(WorkerJoined("w0", 1), WorkerLost("w0"), WorkerJoined("w0", 1))
    made.step(TimePassed(), 10.0)
    assert made._books.workers.table == {}
    assert made.late == 0


def test_without_a_beat_nobody_is_silent():
    made = opened(size=1, batch=1, lease_s=100.0)
    assert made.step(TimePassed(), 99.0) == []


# growing


def test_leases_of_ended_attempts_are_not_kept():
    made = queued(size=1, batch=80)
    made.step(WorkerJoined("w0", 1))
    complete(made, *range(79))
    assert len(made._books.leases) <= 2 + 64
    assert made.next_deadline == made.settings.lease_s


def test_a_lost_worker_makes_no_room_for_more_tasks():
    made = opened(size=1, batch=2)
    assert only(made.step(WorkerLost("w0")), FetchTask) == []
    assert made.step(wanted(2)) == []
