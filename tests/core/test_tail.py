"""Tail batching: more groups begin than a batch needs; the long ones are set aside and played together later."""

from tests.core.given import (
    complete,
    delivered,
    ended,
    failed,
    feed,
    fetched,
    only,
    opened,
    played,
    staffed,
    wanted,
)

from windrow.core.commands import CancelAttempt, DeliverBatch, DropGroup, EndBatches, GrantLease, ResetGroup
from windrow.core.events import BatchTrained, GroupJudged, SourceEnded, TimePassed, VersionPublished, WantWithdrawn
from windrow.types import AttemptId


def one_aside(**rest):
    """Batches of two groups, three begin: g0 and g1 are delivered, g2 is set aside."""
    made = opened(size=1, batch=2, tail=0.5, slots=3, **rest)
    complete(made, 0, 1)
    return made


def two_aside(**rest):
    """The same once more: g2 and g5 are set aside, g3 and g4 are delivered and not trained."""
    made = one_aside(**rest)
    made.step(wanted(2, step=1))
    feed(made, 3)
    complete(made, 3, 4)
    return made


def stock(made):
    lane = made._books.lanes["train"]
    return lane.round, [*lane.aside], [*lane.carried]


def test_more_groups_begin_than_a_batch_has():
    made = staffed(size=1, batch=4, tail=0.5)
    assert fetched(made.step(wanted(4))) == 6


def test_when_the_batch_is_full_the_long_ones_are_set_aside():
    made = opened(size=1, batch=2, tail=0.5, slots=3)
    made.step(ended(1, 0))
    batch, *others = made.step(ended(0, 0), 2.0)
    assert delivered([batch]) == [(1, 0)]
    assert others == [ResetGroup(2, "tail"), CancelAttempt(AttemptId(2, 0), "w0", "tail")]
    assert stock(made) == ("fresh", [2], [])
    assert made.ledgers["train"].groups.dropped == {}


def test_a_group_that_failed_counts_as_begun():
    made = opened(size=1, batch=1, tail=1.0, slots=2)
    made.step(failed(1, 0))
    complete(made, 0)
    assert stock(made) == ("fresh", [1], [])


def test_a_group_that_has_not_begun_is_carried_over_to_the_next_fresh_round():
    made = opened(size=1, batch=1, tail=1.0, slots=1)
    assert delivered(complete(made, 0)) == [(0,)]
    assert stock(made) == ("fresh", [], [1])
    commands = made.step(wanted(1, step=1))
    assert fetched(commands) == 1
    assert played(commands) == ["g1.a0"]


def test_a_complete_group_that_was_not_needed_is_set_aside_too():
    """It would be too old for the next batch."""
    made = opened(size=1, batch=2, tail=0.5, slots=3)
    made.step(WantWithdrawn("trainer"))
    complete(made, 2, 0, 1)
    assert delivered(made.step(wanted(2))) == [(2, 0)]
    assert stock(made) == ("fresh", [1], [])


def test_nothing_begins_until_the_round_is_trained():
    made = one_aside()
    assert made.step(VersionPublished(1, loaded=True)) == []
    assert fetched(made.step(BatchTrained(0))) == 3


def test_a_late_answer_of_a_group_that_was_set_aside_is_ignored():
    made = one_aside()
    assert made.step(ended(2, 0)) == []
    assert made.late == 1


def test_long_ones_wait_until_a_batch_of_them_has_gathered():
    made = one_aside()
    made.step(wanted(2, step=1))
    assert stock(made) == ("fresh", [2], [])
    assert made._books.groups[2].state == "aside"


def test_when_a_batch_of_long_ones_has_gathered_they_are_played_together():
    made = two_aside()
    commands = made.step(wanted(2, step=2))
    assert played(commands) == ["g2.a1", "g5.a1"]
    assert fetched(commands) == 0
    assert stock(made) == ("tail", [], [])
    assert delivered(complete(made, 2, 5)) == [(2, 5)]


def test_long_ones_are_played_under_the_newest_version():
    made = two_aside()
    made.step(VersionPublished(1, loaded=True))
    made.step(wanted(2, step=2))
    assert only(complete(made, 5, 2), DeliverBatch)[0].lags == (0, 0)


def test_after_a_tail_round_comes_a_fresh_one():
    made = two_aside()
    made.step(wanted(2, step=2))
    complete(made, 2, 5)
    assert fetched(made.step(wanted(2, step=3))) == 3
    assert stock(made)[0] == "fresh"


def test_every_task_is_trained_once():
    made = two_aside()
    made.step(wanted(2, step=2))
    complete(made, 5, 2)
    made.step(wanted(2, step=3))
    assert made.ledgers["train"].groups.trained == 6
    assert made.ledgers["train"].groups.admitted == 6


def test_a_long_one_keeps_its_seats():
    made = two_aside()
    assert [lease.seat for lease in only(made.step(wanted(2, step=2)), GrantLease)] == [0, 0]


# what goes wrong in a round


def test_a_group_dropped_in_a_fresh_round_is_replaced():
    made = opened(size=1, batch=2, tail=0.5, slots=3, env_retries=0)
    assert fetched(made.step(failed(0, 0))) == 1


def test_a_group_dropped_in_a_tail_round_is_replaced_by_a_new_one():
    made = two_aside(env_retries=0)
    made.step(wanted(2, step=2))
    commands = made.step(failed(2, 1))
    assert only(commands, DropGroup) == [DropGroup(2, "poisoned")]
    assert fetched(commands) == 1
    feed(made, 1)
    assert delivered(complete(made, 5, 6)) == [(5, 6)]


def test_a_group_dropped_in_a_tail_round_is_replaced_by_another_long_one():
    made = opened(size=1, batch=4, tail=1.0, slots=8, n=2, env_retries=0)
    complete(made, 0, 1)  # six are set aside, four are played
    assert played(made.step(wanted(4, step=1))) == ["g2.a1", "g3.a1", "g4.a1", "g5.a1"]
    assert played(made.step(failed(2, 1))) == ["g6.a1"]


def test_a_tail_round_that_lost_all_its_groups_begins_anew():
    made = opened(size=1, batch=1, tail=1.0, slots=2, filter="external")
    complete(made, 0)
    made.step(GroupJudged(0, accepted=True))
    made.step(wanted(1, step=1))
    assert stock(made)[0] == "tail"
    complete(made, 1)
    assert fetched(made.step(GroupJudged(1, accepted=False))) == 2
    assert stock(made)[0] == "fresh"


def test_a_larger_want_in_a_tail_round_asks_for_the_rest():
    made = two_aside()
    made.steps(VersionPublished(1, loaded=True), BatchTrained(1))
    assert stock(made)[0] == "tail"
    assert fetched(made.step(wanted(3, step=2))) == 1
    feed(made, 1)
    assert delivered(complete(made, 2, 5, 6)) == [(2, 5, 6)]


def test_a_rest_of_an_earlier_round_does_not_shorten_a_later_one():
    made = opened(size=1, batch=1, tail=1.0, slots=2, backoff_s=100.0)
    made.step(failed(1, 0), 0.0)
    complete(made, 0)
    assert stock(made) == ("fresh", [1], [])
    made.step(wanted(1, step=1), 50.0)
    made.step(failed(1, 1), 60.0)
    assert played(made.step(TimePassed(), 100.0)) == []
    assert played(made.step(TimePassed(), 260.0)) == ["g1.a2"]


def test_old_groups_of_a_round_that_was_not_delivered_are_dropped_at_a_new_version():
    made = two_aside()
    made.step(wanted(2, step=2))
    dropped = only(made.step(VersionPublished(1, loaded=True)), DropGroup)
    assert dropped == [DropGroup(2, "stale"), DropGroup(5, "stale")]


# the end of the source


def test_at_the_end_the_long_ones_make_the_last_batch():
    made = one_aside()
    made.step(SourceEnded("train"))
    assert played(made.step(wanted(2, step=1))) == ["g2.a1"]
    batch = only(complete(made, 2), DeliverBatch)[0]
    assert (batch.groups, batch.last) == ((2,), True)
    assert only(made.step(wanted(2, step=2)), EndBatches) != []


def test_at_the_end_carried_groups_are_played_too():
    made = opened(size=1, batch=1, tail=1.0, slots=1)
    complete(made, 0)
    made.step(SourceEnded("train"))
    assert played(made.step(wanted(1, step=1))) == ["g1.a0"]
    assert only(complete(made, 1), DeliverBatch)[0].last


def test_a_fresh_round_that_the_source_leaves_short_is_filled_with_long_ones():
    made = one_aside()
    made.step(wanted(2, step=1))
    feed(made, 1)
    assert played(made.step(SourceEnded("train"))) == ["g2.a1"]
    batch = only(complete(made, 3, 2), DeliverBatch)[0]
    assert (batch.groups, batch.last) == ((3, 2), True)


def test_everything_includes_what_was_set_aside():
    made = one_aside()
    commands = made.step(wanted(-1, step=1))
    assert played(commands) == ["g2.a1"]
    made.step(SourceEnded("train"))
    batch = only(complete(made, 2), DeliverBatch)[0]
    assert (batch.groups, batch.last) == ((2,), True)


def test_everything_includes_what_was_carried():
    made = opened(size=1, batch=1, tail=1.0, slots=1)
    complete(made, 0)
    made.step(wanted(-1, step=1))
    made.step(SourceEnded("train"))
    assert only(complete(made, 1), DeliverBatch)[0].groups == (1,)


def test_everything_sets_nothing_aside():
    made = opened(size=1, batch=1, tail=1.0, slots=2, n=-1)
    made.step(SourceEnded("train"))
    batch = only(complete(made, 0, 1, 2), DeliverBatch)[0]
    assert batch.groups == (0, 1, 2)
    assert stock(made) == ("fresh", [], [])
