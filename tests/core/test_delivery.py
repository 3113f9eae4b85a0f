"""Who gets which groups, what may be handed over again, and when it ends."""

import pytest
from tests.core.given import (
    complete,
    delivered,
    ended,
    failed,
    feed,
    fetched,
    only,
    opened,
    progressed,
    refusal,
    staffed,
    wanted,
)

from windrow.core.commands import CancelAttempt, DeliverBatch, DropGroup, EndBatches, FetchTask, RetireBatch
from windrow.core.delivery import OVER
from windrow.core.events import (
    BatchTrained,
    ConsumerLost,
    GroupJudged,
    ShutdownWanted,
    SourceEnded,
    SourceOpened,
    VersionPublished,
    WantWithdrawn,
)
from windrow.errors import IllegalEvent
from windrow.types import AttemptId


def test_a_batch_goes_out_in_the_step_that_completes_it():
    made = opened(size=2, batch=4)
    made.steps(ended(0, 0), ended(0, 1), ended(1, 1))
    attempts = tuple(AttemptId(g, i) for g in (0, 1) for i in (0, 1))
    expected = DeliverBatch(0, "trainer", "train", 0, 0, (0, 1), attempts, (0, 0))
    assert made.step(ended(1, 0)) == [expected]


def test_a_batch_that_is_there_goes_out_when_it_is_wanted():
    made = opened(size=1, batch=2)
    made.step(WantWithdrawn("trainer"))
    assert complete(made, 0, 1) == []
    assert delivered(made.step(wanted(2))) == [(0, 1)]


def test_nobody_waits_for_a_slow_group_when_old_ones_are_kept():
    made = opened(size=1, batch=2, staleness=1.0)
    assert delivered(complete(made, 3, 1)) == [(3, 1)]


def test_the_oldest_version_goes_out_first():
    made = opened(size=1, batch=2, staleness=2.0)
    complete(made, 0, 1)
    made.steps(BatchTrained(0), VersionPublished(1, loaded=True))
    feed(made, 2)
    complete(made, 6, 5, 7)
    batch = only(made.step(wanted(2, step=1)), DeliverBatch)[0]
    assert (batch.groups, batch.lags, batch.version) == ((5, 6), (1, 0), 1)


def test_within_a_version_the_first_to_be_complete_goes_out_first():
    made = opened(size=1, batch=3, slots=3)
    assert delivered(complete(made, 2, 0, 1)) == [(2, 0, 1)]


def test_a_group_keeps_its_slowest_members_version():
    made = opened(size=2, batch=2, staleness=1.0)
    made.step(ended(0, 0))
    made.step(VersionPublished(1, loaded=True))
    batch = only(made.step(ended(0, 1, version=1)), DeliverBatch)[0]
    assert batch.lags == (1,)


def test_the_consumer_that_waits_longest_is_served_first():
    made = opened(size=1, batch=1, staleness=3.0)
    made.step(wanted(1, consumer="second"))
    batches = only(complete(made, 0, 1), DeliverBatch)
    assert [(b.consumer, b.groups) for b in batches] == [("trainer", (0,)), ("second", (1,))]


def test_a_smaller_want_is_served_though_an_earlier_larger_one_cannot_be():
    made = opened(size=1, batch=4)
    made.step(wanted(1, consumer="small"))
    batches = only(made.step(ended(0, 0)), DeliverBatch)
    assert [(b.consumer, b.groups) for b in batches] == [("small", (0,))]
    assert made.why_waiting("trainer").startswith("'trainer' (since 0.000) wants 4 groups for step 0: 0 ready")


def test_a_consumer_that_waits_for_an_acknowledgement_of_another_is_told_so():
    made = opened(size=1, batch=2)
    made.step(wanted(2, consumer="second"))
    complete(made, 0, 1)
    assert "2 groups" in made.why_waiting("second")
    assert fetched(made.step(BatchTrained(0))) == 2


def test_a_consumer_waits_once():
    made = opened(size=1, batch=2)
    made.step(wanted(1))
    assert delivered(complete(made, 0, 1)) == [(0,)]


def test_a_consumer_that_asks_again_keeps_its_place():
    made = opened(size=1, batch=1, staleness=3.0)
    made.step(wanted(1, consumer="second"), 1.0)
    made.step(wanted(1), 2.0)
    assert made.why_waiting("trainer").startswith("'trainer' (since 0.000)")
    assert [batch.consumer for batch in only(complete(made, 0, 1), DeliverBatch)] == ["trainer", "second"]


def test_a_lost_batch_is_handed_over_again_identical():
    made = opened(size=1, batch=2)
    first = only(complete(made, 0, 1), DeliverBatch)
    made.step(VersionPublished(1, loaded=True))
    assert made.step(wanted(2)) == first
    assert made.step(wanted(2)) == first


def test_a_larger_step_acknowledges_the_batches_before_it():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    assert made.step(wanted(2, step=1)) == [RetireBatch(0), FetchTask("train", "", 2)]
    assert made.ledgers["train"].groups.trained == 2


def test_a_larger_step_acknowledges_only_what_this_consumer_had():
    made = opened(size=1, batch=1, staleness=1.0)
    made.step(wanted(1, consumer="other", step=0))
    complete(made, 0, 1)
    made.step(wanted(1, step=1))
    assert [*made._books.batches] == [1]


def test_a_smaller_step_acknowledges_nothing():
    made = opened(size=1, batch=1, n=1, staleness=1.0)
    complete(made, 0)
    made.step(wanted(1, step=5))
    complete(made, 1)
    assert only(made.step(wanted(1, step=4)), RetireBatch) == []


def test_a_trained_batch_is_acknowledged():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    assert made.step(BatchTrained(0)) == [RetireBatch(0)]
    assert made.ledgers["train"].groups.trained == 2


def test_a_doubled_acknowledgement_is_harmless():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    made.step(BatchTrained(0))
    assert made.step(BatchTrained(0)) == []
    assert made.step(wanted(2, step=1)) == [FetchTask("train", "", 2)]


def test_an_acknowledged_step_that_is_asked_for_again_is_a_new_batch():
    made = opened(size=1, batch=1)
    complete(made, 0)
    made.step(BatchTrained(0))
    assert made.step(wanted(1)) == [FetchTask("train", "", 1)]
    feed(made, 1)
    assert only(complete(made, 1), DeliverBatch)[0].batch == 1


@pytest.mark.parametrize("number", [1, -1])
def test_a_batch_that_never_was_cannot_be_trained(number):
    made = opened(size=1, batch=1)
    complete(made, 0)
    with refusal(made, IllegalEvent, match=f"batch {number} was trained and never delivered"):
        made.step(BatchTrained(number), 1.0)


def test_a_withdrawn_want_is_not_served():
    made = opened(size=1, batch=2)
    assert made.step(WantWithdrawn("trainer")) == []
    assert made.step(WantWithdrawn("trainer")) == []
    assert complete(made, 0, 1) == []


def test_a_consumer_waits_in_one_mode():
    made = opened(size=1, batch=2)
    made.step(wanted(1, mode="val"))
    assert complete(made, 0, 1) == []
    assert made.why_waiting("trainer").startswith("'trainer' (since 0.000) wants 1 groups")


# the end of a source


def test_the_rest_goes_out_once_marked_last_and_then_nothing():
    made = opened(size=1, batch=2, tasks=1)
    made.step(ended(0, 0))
    batch = only(made.step(SourceEnded("train")), DeliverBatch)[0]
    assert (batch.groups, batch.last, batch.short) == ((0,), True, False)
    assert made.step(wanted(2, step=1)) == [RetireBatch(0), EndBatches("trainer", OVER)]
    assert made.step(wanted(2, step=1)) == [EndBatches("trainer", OVER)]


def test_the_last_group_may_still_play_when_the_source_ends():
    made = opened(size=1, batch=2, tasks=1)
    assert made.step(SourceEnded("train")) == []
    assert only(made.step(ended(0, 0)), DeliverBatch)[0].last


def test_a_full_batch_may_be_the_last():
    made = opened(size=1, batch=1)
    made.step(SourceEnded("train"))
    batch = only(made.step(ended(0, 0)), DeliverBatch)[0]
    assert (batch.groups, batch.last) == ((0,), True)


def test_a_batch_is_not_the_last_while_a_group_is_left():
    made = opened(size=1, batch=1, staleness=1.0)
    made.step(SourceEnded("train"))
    assert not only(made.step(ended(1, 0)), DeliverBatch)[0].last
    made.step(wanted(1, step=1))
    assert only(made.step(ended(0, 0)), DeliverBatch)[0].last


def test_the_last_group_may_be_dropped():
    made = opened(size=1, batch=2, env_retries=0)
    made.step(SourceEnded("train"))
    made.step(ended(0, 0))
    assert only(made.step(failed(1, 0)), DeliverBatch)[0].last


def test_a_source_without_tasks_ends_at_once():
    made = staffed()
    made.step(wanted(4))
    assert made.step(SourceEnded("train")) == [EndBatches("trainer", OVER)]


def test_a_source_may_end_before_anybody_asks():
    made = staffed()
    assert made.step(SourceEnded("train")) == []
    assert made.step(wanted(4)) == [EndBatches("trainer", OVER)]


def test_when_the_source_ends_the_second_consumer_gets_nothing():
    made = opened(size=1, batch=2, tasks=1)
    made.steps(wanted(2, consumer="second"), ended(0, 0))
    commands = made.step(SourceEnded("train"))
    assert [type(command) for command in commands] == [DeliverBatch, EndBatches]
    assert only(commands, EndBatches)[0].consumer == "second"


def test_everything_comes_when_the_source_has_ended_and_all_is_complete():
    made = opened(size=1, batch=1, slots=3, n=-1)
    assert delivered(complete(made, 0, 1, 2)) == []
    made.step(SourceEnded("train"))
    batch = only(complete(made, 3), DeliverBatch)[0]
    assert (batch.groups, batch.last) == ((0, 1, 2, 3), True)
    assert made.step(wanted(-1, step=1)) == [RetireBatch(0), EndBatches("trainer", OVER)]


def test_everything_is_handed_over_again_like_any_batch():
    made = opened(size=1, batch=1, slots=1, n=-1, tasks=1)
    made.step(SourceEnded("train"))
    first = only(complete(made, 0), DeliverBatch)
    assert made.step(wanted(-1)) == first


# hard bounds


def hard(on_stale: str, **rest):
    """The worked example of staleness.py with batches of two: two groups of version 0 play on, two of version 1 are
    complete, version 1 is current and the trainer waits."""
    made = opened(size=1, batch=2, staleness=1.0, on_stale=on_stale, **rest)
    complete(made, 0, 1)
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    feed(made, 2)
    return made, complete(made, 4, 5)


def test_wait_holds_a_batch_back_until_the_old_groups_are_complete():
    made, commands = hard("wait")
    assert delivered(commands) == []
    assert "older groups must be in this batch and are not complete" in made.why_waiting("trainer")
    assert delivered(complete(made, 3)) == []
    batch = only(complete(made, 2), DeliverBatch)[0]
    assert (batch.groups, batch.lags) == ((3, 2), (1, 1))


def test_wait_drops_nothing_and_the_next_batch_takes_the_younger_ones():
    made, _ = hard("wait")
    complete(made, 2, 3)
    assert only(made.step(VersionPublished(2, loaded=True)), DropGroup) == []
    batch = only(made.step(wanted(2, step=2)), DeliverBatch)[0]
    assert (batch.groups, batch.lags) == ((4, 5), (1, 1))
    assert made.ledgers["train"].groups.dropped == {}


def test_wait_delivers_a_batch_that_forces_nobody():
    """With bound 2 any two of the four may go as long as two of version 0 at most stay."""
    made = opened(size=1, batch=2, staleness=2.0, on_stale="wait", tasks=4)
    complete(made, 0, 1)
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    feed(made, 2)
    batch = only(complete(made, 4, 5), DeliverBatch)[0]
    assert (batch.groups, batch.lags) == ((4, 5), (0, 0))


@pytest.mark.parametrize("outcome", ["progress", "end"])
def test_a_batch_goes_out_when_a_report_shows_that_the_old_groups_are_younger(outcome):
    """Leases of version 0 whose first token was sampled under version 1."""
    made = opened(size=2, batch=4, staleness=1.0, on_stale="wait", slots=8)
    complete(made, 0, 1)
    made.steps(VersionPublished(1, loaded=True), wanted(4, step=1))
    feed(made, 2)
    complete(made, 4, 5)
    made.steps(*(progressed(g, i, 1, 1) for g, i in ((2, 0), (2, 1), (3, 0))))
    last = progressed(3, 1, 1, 1) if outcome == "progress" else ended(3, 1, version=1)
    assert delivered(made.step(last)) == [(4, 5)]


def test_a_batch_goes_out_when_the_filter_gets_a_group_that_is_younger_than_it_seemed():
    made = opened(size=1, batch=2, staleness=1.0, on_stale="wait", filter="external")
    complete(made, 0, 1)
    made.steps(GroupJudged(0, accepted=True), GroupJudged(1, accepted=True))
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    feed(made, 2)
    complete(made, 4, 5)
    made.steps(GroupJudged(4, accepted=True), GroupJudged(5, accepted=True))
    assert delivered(complete(made, 2, 3, version=1)) == [(4, 5)]


def test_a_batch_goes_out_when_the_old_groups_are_dropped():
    made, _ = hard("wait", env_retries=0)
    assert delivered(made.step(failed(2, 0))) == []
    assert delivered(made.step(failed(3, 0))) == [(4, 5)]


def test_drop_delivers_what_there_is_and_drops_what_grows_too_old():
    made, commands = hard("drop")
    assert delivered(commands) == [(4, 5)]
    commands = made.step(VersionPublished(2, loaded=True))
    assert only(commands, DropGroup) == [DropGroup(2, "stale"), DropGroup(3, "stale")]
    assert fetched(commands) == 2
    assert [cancel.attempt for cancel in only(commands, CancelAttempt)] == [AttemptId(2, 0), AttemptId(3, 0)]


def test_drop_drops_a_complete_group_too():
    made, _ = hard("drop")
    complete(made, 2)
    assert DropGroup(2, "stale") in made.step(VersionPublished(2, loaded=True))
    assert made._books.lanes["train"].num_ready == 0


def test_drop_leaves_delivered_groups_alone():
    made, _ = hard("drop")
    made.step(VersionPublished(5, loaded=True))
    assert made._books.groups[4].state == "delivered"


@pytest.mark.parametrize("on_stale", ["wait", "drop"])
@pytest.mark.parametrize("reported", [progressed(0, 0, 1, 0), ended(0, 0, version=0)])
def test_a_group_that_turns_out_to_be_too_old_is_dropped(on_stale, reported):
    """Granted under version 2, with a token of version 0 and a bound of one version."""
    made = opened(size=2, batch=2, staleness=1.0, on_stale=on_stale, tasks=0)
    made.step(VersionPublished(2, loaded=True))
    feed(made, 1)
    assert only(made.step(reported), DropGroup) == [DropGroup(0, "stale")]


def test_keep_keeps_what_is_old():
    made = opened(size=1, batch=2, staleness=1.0, on_stale="keep")
    complete(made, 0, 1)
    assert only(made.step(VersionPublished(3, loaded=True)), DropGroup) == []
    made.step(wanted(2, step=1))
    assert only(complete(made, 2, 3), DeliverBatch)[0].lags == (3, 3)
    assert made.ledgers["train"].lag_max == 3


def test_synchronous_drops_what_was_begun_under_the_last_version():
    made = opened(size=1, batch=2)
    made.step(ended(0, 0))
    dropped = only(made.step(VersionPublished(1, loaded=True)), DropGroup)
    assert dropped == [DropGroup(0, "stale"), DropGroup(1, "stale")]


def test_a_version_that_is_published_again_drops_nothing():
    made = opened(size=1, batch=2)
    assert made.step(VersionPublished(0, loaded=True)) == []


def test_several_small_batches_make_a_version():
    """Half a batch may leave as many old groups as the other half can still take."""
    made = opened(size=1, batch=2, staleness=1.0, on_stale="wait", n=1)
    assert delivered(complete(made, 1)) == [(1,)]
    made.step(wanted(1, step=1))
    assert delivered(complete(made, 2)) == [(2,)]


def test_after_half_a_batch_the_other_half_must_take_the_old_ones():
    made, _ = hard("wait")
    made.steps(WantWithdrawn("trainer"), wanted(1, step=1))
    assert delivered(complete(made, 2)) == [(2,)]
    assert delivered(made.step(wanted(1, step=2))) == []
    assert delivered(complete(made, 3)) == [(3,)]


# consumers that die


def test_what_a_lost_consumer_had_not_acknowledged_goes_to_another():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    assert delivered(made.steps(ConsumerLost("trainer"), wanted(2, consumer="heir"))) == [(0, 1)]
    assert made.ledgers["train"].groups.delivered == 2
    assert made.ledgers["train"].lags == 2


def test_a_consumer_that_comes_back_gets_its_groups_under_a_new_number():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    (batch,) = only(made.steps(ConsumerLost("trainer"), wanted(2)), DeliverBatch)
    assert (batch.batch, batch.groups) == (1, (0, 1))


def test_a_lost_consumer_no_longer_waits():
    made = opened(size=1, batch=2)
    assert made.step(ConsumerLost("trainer")) == []
    assert complete(made, 0, 1) == []


def test_the_batches_of_other_consumers_stay():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    assert made.step(ConsumerLost("other")) == []
    assert [*made._books.batches] == [0]


def test_what_was_taken_back_and_is_too_old_is_dropped_in_the_same_step():
    made = opened(size=1, batch=2, on_stale="wait")
    complete(made, 0, 1)
    made.step(VersionPublished(1, loaded=True))
    drops = only(made.step(ConsumerLost("trainer")), DropGroup)
    assert drops == [DropGroup(0, "stale"), DropGroup(1, "stale")]


def test_what_was_taken_back_is_delivered_with_its_age_of_then():
    made = opened(size=1, batch=1, staleness=2.0)
    complete(made, 0)
    made.steps(VersionPublished(1, loaded=True), ConsumerLost("trainer"))
    (batch,) = only(made.step(wanted(1)), DeliverBatch)
    assert (batch.groups, batch.lags) == ((0,), (1,))


def test_what_is_taken_back_time_and_again_may_grow_older_than_the_mean():
    made = opened(size=1, batch=2, staleness=1.0)
    complete(made, 0, 1)
    made.steps(BatchTrained(0), VersionPublished(1, loaded=True))
    complete(made, 2, 3)
    for version in range(2, 5):
        made.steps(wanted(2, step=version), VersionPublished(version, loaded=True), ConsumerLost("trainer"))
    assert made.status().lanes["train"].loose_versions > 0


def test_what_is_taken_back_after_a_shutdown_is_dropped():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    drops = made.steps(ShutdownWanted(), ConsumerLost("trainer"))
    assert drops == [DropGroup(0, "shutdown"), DropGroup(1, "shutdown")]


def test_what_was_taken_back_leaves_no_room_for_more():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    assert made.step(ConsumerLost("trainer")) == []
    assert fetched(made.steps(wanted(2), BatchTrained(1), wanted(2, step=1))) == 2


def test_a_batch_that_was_taken_back_is_trained_too_late():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    made.step(ConsumerLost("trainer"))
    assert made.step(BatchTrained(0)) == []
    assert made.ledgers["train"].groups.trained == 0


# sources that open again


def test_a_source_that_opens_again_is_asked():
    made = opened(size=1, batch=2, tasks=0)
    assert made.step(SourceEnded("train")) == [EndBatches("trainer", OVER)]
    assert made.step(SourceOpened("train")) == [FetchTask("train", "", 2)]


def test_after_a_source_has_opened_again_no_batch_is_the_last():
    made = opened(size=1, batch=1, tasks=1)
    made.steps(SourceEnded("train"), SourceOpened("train"))
    (batch,) = only(complete(made, 0), DeliverBatch)
    assert not batch.last


def test_opening_an_open_source_is_harmless():
    made = opened(size=1, batch=2)
    assert made.step(SourceOpened("train")) == []
