"""What may begin, and when: the staleness cap, lanes that do not collect ahead, refusals."""

import pytest
from tests.core.given import (
    complete,
    delivered,
    feed,
    fetched,
    machine,
    opened,
    played,
    refusal,
    serving,
    staffed,
    wanted,
)

from windrow.core.commands import CancelAttempt, DropGroup, FetchTask, RetireBatch
from windrow.core.events import BatchTrained, VersionPublished, WantWithdrawn, WorkerJoined
from windrow.errors import Refused
from windrow.types import AttemptId


@pytest.mark.parametrize(
    ("staleness", "on_stale", "groups"),
    [
        (0.0, None, 4),
        (0.5, "keep", 6),
        (0.3, "keep", 5),  # floor(1.3 · 4) = floor(5.2)
        (1.0, "keep", 8),
        (1.0, None, 8),
        (2.0, "keep", 12),
        (1.0, "wait", 8),
        (1.5, "wait", 8),  # a hard bound counts whole versions
        (0.9, "wait", 4),
        (1.5, "drop", 8),
        (2.0, "drop", 12),
    ],
)
def test_the_cap_is_the_bound_plus_one_in_batches(staleness, on_stale, groups):
    made = staffed(size=2, batch=8, staleness=staleness, on_stale=on_stale)
    assert made.step(wanted(8)) == [FetchTask("train", "", groups)]


@pytest.mark.parametrize("batch", [1, 3, 7, 10, 29])
def test_a_tenth_of_a_version_is_not_lost_to_rounding(batch):
    made = staffed(size=1, batch=10 * batch, staleness=0.1, on_stale="keep")
    assert fetched(made.step(wanted(10 * batch))) == 11 * batch


def test_nothing_begins_before_the_first_want():
    made = machine(staleness=1.0)
    assert made.steps(*serving("e0"), WorkerJoined("w0", 8), VersionPublished(1, loaded=True)) == []
    assert fetched(made.step(wanted(4))) == 4


def test_a_want_is_answered_without_workers_or_engines():
    assert machine().step(wanted(4)) == [FetchTask("train", "", 2)]


def test_delivered_groups_count_until_they_are_trained():
    made = opened(size=1, batch=2, staleness=0.5)
    complete(made, 0, 1)
    assert made.step(VersionPublished(1, loaded=True)) == []
    assert made.step(BatchTrained(0)) == [RetireBatch(0), FetchTask("train", "", 2)]


def test_trained_groups_count_until_they_have_led_to_a_new_version():
    """What would begin now would begin under weights that are about to be replaced."""
    made = opened(size=1, batch=2, staleness=0.5)
    complete(made, 0, 1)
    assert made.step(BatchTrained(0)) == [RetireBatch(0)]
    assert made.step(VersionPublished(1, loaded=True)) == [FetchTask("train", "", 2)]


def test_while_somebody_waits_trained_groups_do_not_count():
    """No new version may be coming."""
    made = opened(size=1, batch=2, staleness=0.5)
    complete(made, 0, 1)
    made.step(BatchTrained(0))
    assert made.step(wanted(2, step=1)) == [FetchTask("train", "", 2)]


def test_an_incomplete_group_does_not_make_room():
    made = opened(size=2, batch=4, staleness=1.0)
    assert fetched(complete(made, 0)) == 0


def test_spares_and_retries_do_not_count():
    assert fetched(staffed(size=2, batch=4, spares=3).step(wanted(4))) == 2


def test_a_larger_want_raises_the_batch_size_for_good():
    made = opened(size=1, batch=2, staleness=1.0)
    assert fetched(made.step(wanted(3))) == 2  # cap 6 instead of 4
    made.step(wanted(2))
    assert delivered(complete(made, 0, 1)) == [(0, 1)]
    assert fetched(made.steps(BatchTrained(0), VersionPublished(1, loaded=True))) == 2


def test_a_smaller_want_leaves_the_batch_size():
    made = staffed(size=1, batch=4)
    assert fetched(made.step(wanted(2))) == 4


def test_a_lane_that_does_not_collect_ahead_asks_for_what_is_wanted():
    made = staffed(size=2, batch=8, ahead=False, staleness=1.0)
    assert fetched(made.step(wanted(4))) == 2
    assert fetched(made.step(wanted(6, consumer="other"))) == 3


def test_a_lane_that_does_not_collect_ahead_begins_nothing_after_its_batch():
    made = opened(size=1, batch=2, ahead=False)
    assert delivered(complete(made, 0, 1)) == [(0, 1)]
    assert fetched(made.step(BatchTrained(0))) == 0
    assert fetched(made.step(wanted(2, step=1))) == 2


def test_a_lane_that_does_not_collect_ahead_uses_what_is_left_over():
    made = opened(size=1, batch=2, ahead=False)
    made.step(wanted(2, consumer="other"))
    complete(made, 1)
    made.step(WantWithdrawn("other"))
    assert delivered(made.step(wanted(1, step=1))) == [(1,)]  # of the two that were begun for two


def test_a_lane_that_does_not_collect_ahead_drops_what_nobody_waits_for():
    made = opened(size=1, batch=2, ahead=False)
    complete(made, 1)
    commands = made.step(WantWithdrawn("trainer"))
    assert commands == [
        CancelAttempt(AttemptId(0, 0), "w0", "cancelled"),
        DropGroup(0, "cancelled"),
        DropGroup(1, "cancelled"),
    ]


def test_a_lane_that_does_not_collect_ahead_drops_what_arrives_when_nobody_waits():
    made = opened(size=1, batch=2, ahead=False, tasks=0)
    made.step(WantWithdrawn("trainer"))
    assert feed(made, 1) == [DropGroup(0, "cancelled")]


def test_a_lane_that_does_not_collect_ahead_keeps_what_another_waits_for():
    made = opened(size=1, batch=2, ahead=False)
    made.step(wanted(2, consumer="other"))
    assert made.step(WantWithdrawn("trainer")) == []
    assert delivered(complete(made, 0, 1)) == [(0, 1)]


def test_withdrawing_a_want_that_nobody_has_drops_nothing():
    made = opened(size=1, batch=2, ahead=False)
    assert made.step(WantWithdrawn("other")) == []


def test_a_lane_that_collects_ahead_keeps_what_was_begun():
    made = opened(size=1, batch=2)
    assert made.step(WantWithdrawn("trainer")) == []
    assert len(made._books.groups) == 2


def test_everything_is_bounded_by_slots_alone():
    made = staffed(size=2, batch=2, slots=8)
    assert fetched(made.step(wanted(-1))) == 5  # 8 slots fill 4 groups, and one is at hand
    feed(made, 5)
    assert fetched(complete(made, 0)) == 1


def test_more_slots_let_more_of_everything_begin():
    made = staffed(size=2, batch=2, slots=2)
    assert fetched(made.step(wanted(-1))) == 2
    assert fetched(made.step(WorkerJoined("w1", 4))) == 2


def test_everything_without_workers_asks_for_one_group():
    assert fetched(machine(size=2).step(wanted(-1))) == 1


def test_withdrawing_a_want_for_everything_makes_room_for_the_usual_cap():
    made = opened(size=1, batch=8, slots=1, n=-1)
    assert made.step(WantWithdrawn("trainer")) == [FetchTask("train", "", 6)]


def test_no_more_play_than_there_are_slots():
    made = opened(size=4, batch=8, slots=3, tasks=1)
    assert made._books.running == 3
    assert played(feed(made, 1)) == []


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (0, r"multiple of the group size \(3\), got 0; nearest: 3"),
        (-5, r"got -5; nearest: 3"),
        (7, r"got 7; nearest: 6 or 9"),
        (2, r"got 2; nearest: 3"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_the_nearest_ones(n, message):
    made = opened(size=3, batch=6)
    with refusal(made, Refused, match=message):
        made.step(wanted(n, step=1), 1.0)


@pytest.mark.parametrize("on_stale", ["wait", "drop"])
def test_everything_is_refused_under_a_hard_bound(on_stale):
    made = staffed(staleness=1.0, on_stale=on_stale)
    with refusal(made, Refused, match=rf"needs staleness 0 or on_stale keep, got staleness 1.0 with {on_stale}"):
        made.step(wanted(-1), 1.0)


def test_another_size_for_a_delivered_step_is_refused():
    made = opened(size=1, batch=2)
    complete(made, 0, 1)
    with refusal(made, Refused, match=r"step 0 was delivered to 'trainer' as batch 0 of 2 .* got 1"):
        made.step(wanted(1), 1.0)


def test_a_refused_want_acknowledges_nothing():
    made = opened(size=2, batch=2)
    complete(made, 0)
    with refusal(made, Refused, match="got 3; nearest: 2 or 4"):
        made.step(wanted(3, step=1), 1.0)
    assert 0 in made._books.batches
