"""Leases: deadlines, heartbeats, workers that leave or die."""

import pytest
from tests.core.given import (
    Checked,
    complete,
    ended,
    failed,
    machine,
    only,
    opened,
    played,
    progressed,
    queued,
    wanted,
)

from windrow.core.commands import CancelAttempt, DropGroup, FetchTask, GrantLease
from windrow.core.events import (
    EngineLost,
    EpisodeEnded,
    ResumeWanted,
    ShutdownWanted,
    SuspendWanted,
    TimePassed,
    VersionPublished,
    WorkerBeat,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from windrow.core.machine import Machine
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
    assert seen == [25.0]  # the worker is silent; there is no other to play it


@pytest.mark.parametrize("event", [SuspendWanted("user"), EngineLost("e0")])
def test_a_lease_that_runs_out_while_nothing_can_be_generated_is_renewed_whole(event):
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(event, 10.0)
    assert made.step(TimePassed(), 61.0) == []
    assert made.next_deadline == 121.0


def test_a_renewed_lease_runs_out_once_its_engine_generates():
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(SuspendWanted("user"))
    made.step(TimePassed(), 60.0)
    made.step(ResumeWanted("user"), 70.0)
    assert made.step(TimePassed(), 120.0) == [CancelAttempt(AttemptId(0, 0), "w0", "failed")]


def test_a_renewed_lease_is_found_again_in_a_snapshot():
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(SuspendWanted("user"))
    made.step(TimePassed(), 60.0)
    assert Machine.restore(made.snapshot()).next_deadline == 120.0


# scores


def scoring(**rest) -> Checked:
    """g0.a0 was played to its end in two seconds and waits for its score."""
    made = opened(size=1, batch=2, slots=1, lease_s=60.0, **rest)
    made.step(EpisodeEnded(AttemptId(0, 0), 7, 0), 2.0)
    return made


def test_an_episode_that_was_played_gives_its_slot_and_its_engine_to_another():
    made = opened(size=1, batch=2, slots=1)
    assert played(made.step(EpisodeEnded(AttemptId(0, 0), 7))) == ["g1.a0"]
    assert made.status().attempts_scoring == 1
    assert made.status().lanes["train"].attempts_playing == 1


def test_a_score_completes_an_attempt_whose_episode_was_played():
    made = scoring()
    made.step(ended(0, 0, tokens=7), 9.0)
    assert made._books.groups[0].attempts[0].seconds == 2.0
    assert made.status().attempts_scoring == 0


def test_an_episode_that_was_played_is_not_too_late_however_long_its_score_takes():
    """It may wait for the others of its group, or in line; its reward has deadlines of its own."""
    made = scoring(tasks=1)
    assert made.step(TimePassed(), 60.0) == []
    assert made.next_deadline == 120.0
    made.step(ended(0, 0, tokens=7), 500.0)
    assert made._books.groups[0].state == "ready"


def test_a_lost_worker_does_not_take_along_what_waits_for_its_score():
    made = scoring()
    made.step(WorkerLost("w0"))
    made.step(ended(0, 0, tokens=7), 9.0)
    assert made._books.groups[0].state == "ready"


def test_a_leaving_worker_is_gone_before_the_score_comes():
    made = scoring(tasks=1, beat_s=50.0)
    made.steps(WorkerLeft("w0"), ended(0, 0), now=3.0)
    assert made._books.groups[0].state == "ready"


def test_a_dropped_group_cancels_what_waits_for_its_score():
    made = scoring()
    assert CancelAttempt(AttemptId(0, 0), "w0", "shutdown") in made.step(ShutdownWanted())
    assert made.status().attempts_scoring == 0


def test_a_score_is_cancelled_even_if_the_worker_that_played_is_gone():
    made = scoring()
    made.step(WorkerLost("w0"))
    assert CancelAttempt(AttemptId(0, 0), "w0", "shutdown") in made.step(ShutdownWanted())


def test_a_reward_that_fails_after_the_episode_is_tried_again():
    made = scoring(backoff_s=0.0)
    made.step(failed(0, 0, "reward"))
    assert made._books.groups[0].failures == {"reward": 1}
    assert played(made.step(ended(1, 0))) == ["g0.a1"]


@pytest.mark.parametrize("times", [1, 2])
def test_an_episode_that_ends_twice_or_too_late_is_counted(times):
    made = scoring()
    made.steps(*[EpisodeEnded(AttemptId(0, 0), 7)] * (times - 1), ended(0, 0), EpisodeEnded(AttemptId(0, 0), 7))
    assert made.late == times


def test_an_episode_tells_how_old_its_tokens_are():
    made = opened(size=1, batch=2, staleness=2.0)
    made.steps(VersionPublished(1, loaded=True), EpisodeEnded(AttemptId(0, 0), 7, 1))
    assert made._books.groups[0].version == 1


# workers


def test_a_lost_worker_loses_its_slots_and_its_attempts_play_elsewhere():
    made = opened(size=2, batch=2, slots=2, backoff_s=0.0)
    made.step(WorkerJoined("w1", 2))
    leases = only(made.step(WorkerLost("w0", "out of memory")), GrantLease)
    assert [(str(lease.attempt), lease.worker) for lease in leases] == [("g0.a2", "w1"), ("g0.a3", "w1")]
    assert made._books.groups[0].last_failure == "g0.a1 worker: worker w0: out of memory"


def test_a_lost_worker_costs_each_group_one_failure():
    made = opened(size=3, batch=6, slots=6, worker_retries=1)
    made.steps(WorkerLost("w0"), WorkerJoined("w1", 6))
    assert [group.failures for group in made._books.groups.values()] == [{"worker": 1}, {"worker": 1}]
    assert [drop.group for drop in only(made.step(WorkerLost("w1")), DropGroup)] == [0, 1]


def test_what_a_lost_worker_played_does_not_rest():
    made = opened(size=1, batch=1, backoff_s=99.0)
    made.step(WorkerJoined("w1", 1))
    assert played(made.step(WorkerLost("w0"))) == ["g0.a1"]


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
