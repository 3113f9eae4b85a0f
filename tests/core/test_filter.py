"""Which complete groups are used, what replaces the others, and when the filter has had enough rounds."""

import pytest
from tests.core.given import complete, delivered, ended, feed, fetched, only, opened, refusal, wanted

from windrow.core.commands import DeliverBatch, DropGroup, FetchTask, JudgeGroup, RefuseBatch
from windrow.core.events import GroupJudged, SourceEnded, VersionPublished
from windrow.errors import IllegalEvent
from windrow.types import AttemptId


def test_without_a_filter_equal_scores_are_used():
    assert delivered(complete(opened(size=2, batch=2), 0, score=0.0)) == [(0,)]


def test_equal_scores_are_dropped_and_replaced_in_the_same_step():
    made = opened(size=2, batch=4, filter="varied")
    made.step(ended(0, 0, score=1.0))
    assert made.step(ended(0, 1, score=1.0)) == [DropGroup(0, "filtered"), FetchTask("train", "", 1)]


def test_varied_scores_are_used():
    made = opened(size=2, batch=2, filter="varied")
    assert delivered(made.steps(ended(0, 0, score=1.0), ended(0, 1, score=0.0))) == [(0,)]


def external(**rest):
    """Two of two groups are before the user's filter."""
    made = opened(size=1, batch=2, filter="external", **rest)
    complete(made, 0, 1)
    return made


def test_a_complete_group_is_shown_to_the_filter():
    made = opened(size=2, batch=2, filter="external")
    made.step(ended(0, 1))
    assert made.step(ended(0, 0)) == [JudgeGroup(0, (AttemptId(0, 0), AttemptId(0, 1)))]


def test_an_accepted_group_is_used():
    made = external()
    assert made.step(GroupJudged(1, accepted=True)) == []
    assert delivered(made.step(GroupJudged(0, accepted=True))) == [(1, 0)]


def test_a_rejected_group_is_replaced_in_the_same_step():
    made = external()
    rejected = made.step(GroupJudged(0, accepted=False, why="too easy"))
    assert rejected == [DropGroup(0, "filtered"), FetchTask("train", "", 1)]


def test_a_doubled_verdict_is_late():
    made = external()
    made.steps(GroupJudged(0, accepted=True), GroupJudged(0, accepted=False), GroupJudged(0, accepted=True))
    assert made.late == 2
    assert made._books.lanes["train"].num_ready == 1


def test_a_verdict_on_a_dropped_group_is_late():
    made = external()
    made.steps(GroupJudged(0, accepted=False), GroupJudged(0, accepted=True))
    assert made.late == 1


def test_a_verdict_on_a_group_that_became_too_old_is_late():
    made = external()
    assert DropGroup(0, "stale") in made.step(VersionPublished(1, loaded=True))
    assert made.step(GroupJudged(0, accepted=True)) == []
    assert made.late == 1


def test_a_verdict_on_an_incomplete_group_is_late():
    made = opened(size=1, batch=2, filter="external")
    made.step(GroupJudged(0, accepted=False))
    assert made.late == 1
    assert made._books.groups[0].state == "open"


@pytest.mark.parametrize("number", [2, 99])
def test_a_verdict_on_a_group_that_never_was_is_illegal(number):
    made = external()
    with refusal(made, IllegalEvent, match=rf"g{number} was judged and never admitted\ng{number} never was"):
        made.step(GroupJudged(number, accepted=True), 1.0)


def exhausted(on_filter_exhausted: str, accepted: int):
    """Batches of two groups, two rounds: the fourth rejection is the last; before it some were accepted."""
    made = opened(
        size=1, batch=2, filter="external", max_filter_rounds=2, on_filter_exhausted=on_filter_exhausted, staleness=4.0
    )
    for number in range(accepted):
        complete(made, number)
        made.step(GroupJudged(number, accepted=True))
    for number in range(accepted, accepted + 3):
        complete(made, number)
        made.step(GroupJudged(number, accepted=False))
    complete(made, accepted + 3)
    return made, made.step(GroupJudged(accepted + 3, accepted=False))


def test_after_its_rounds_the_batch_goes_out_short():
    made, commands = exhausted("deliver", accepted=1)
    batch = only(commands, DeliverBatch)[0]
    assert (batch.groups, batch.short, batch.last) == ((0,), True, False)
    assert made.why_waiting("trainer") == ""


def test_after_its_rounds_there_may_be_nothing_to_deliver():
    _, commands = exhausted("deliver", accepted=0)
    assert only(commands, RefuseBatch)[0].why.startswith("the filter rejected 4 groups and accepted 0 of 2; widen the")


def test_after_its_rounds_the_batch_is_refused_if_so_configured():
    made, commands = exhausted("error", accepted=1)
    refused = only(commands, RefuseBatch)
    assert [r.consumer for r in refused] == ["trainer"]
    assert "rejected 4 groups and accepted 1 of 2" in refused[0].why
    assert "raise max_filter_rounds (2)" in refused[0].why
    assert delivered(commands) == []
    assert made._books.lanes["train"].num_ready == 1


def test_a_refused_consumer_may_ask_again_and_gets_new_rounds():
    made, _ = exhausted("error", accepted=1)
    assert delivered(made.step(wanted(2, step=0))) == []
    feed(made, 4)
    complete(made, 5)
    assert delivered(made.step(GroupJudged(5, accepted=True))) == [(0, 5)]


def test_rounds_are_counted_anew_for_each_batch():
    made = external(max_filter_rounds=1)
    made.steps(GroupJudged(0, accepted=False))
    feed(made, 1)
    complete(made, 2)
    assert delivered(made.steps(GroupJudged(1, accepted=True), GroupJudged(2, accepted=True))) == [(1, 2)]
    assert made._books.lanes["train"].rejected == 0


def test_a_short_batch_still_waits_for_groups_that_a_hard_bound_forces_in():
    """Two old groups are before the filter when its rounds are over; the new ones go out only with them or without
    a need for them."""
    made = opened(size=1, batch=2, filter="external", max_filter_rounds=1, staleness=1.0, on_stale="wait")
    complete(made, 0, 1)
    made.steps(GroupJudged(0, accepted=True), GroupJudged(1, accepted=True))
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    feed(made, 2)  # g2 and g3 are of version 0, g4 and g5 of version 1
    complete(made, 4, 5)
    made.step(GroupJudged(4, accepted=True))
    made.step(GroupJudged(5, accepted=False))
    feed(made, 1)
    complete(made, 6)
    assert delivered(made.step(GroupJudged(6, accepted=False))) == []
    complete(made, 2, 3)
    assert delivered(made.steps(GroupJudged(2, accepted=True), GroupJudged(3, accepted=True))) == [(2, 3)]


def test_everything_is_not_bounded_by_rounds():
    made = opened(size=1, batch=1, slots=1, filter="external", max_filter_rounds=1, n=-1)
    for number in range(5):
        complete(made, number)
        commands = made.step(GroupJudged(number, accepted=False))
        assert only(commands, RefuseBatch) == []
        feed(made, fetched(commands))
    made.step(SourceEnded("train"))
    complete(made, 5)
    made.step(GroupJudged(5, accepted=True))
    complete(made, 6)
    assert delivered(made.step(GroupJudged(6, accepted=False))) == [(5,)]
