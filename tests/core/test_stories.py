"""What happened to a group, and what a consumer waits for, in words."""

import pytest
from tests.core.given import complete, ended, failed, feed, opened, progressed, staffed, wanted

from windrow.core import stories
from windrow.core.events import (
    BatchTrained,
    EngineLost,
    EpisodeEnded,
    GroupJudged,
    ShutdownWanted,
    SuspendWanted,
    TimePassed,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from windrow.types import AttemptId


def test_a_group_and_its_attempts_are_told():
    made = opened(size=2, batch=2, staleness=1.0, slots=4)
    made.step(ended(0, 0, score=0.5, tokens=12), 1.5)
    made.step(progressed(0, 1, tokens=7), 2.0)
    made.step(VersionPublished(1, loaded=True), 2.0)
    group, *attempts = made.story(0).split("\n")
    assert group == (
        "g0 (train, ordinal 0, tag '', task '') is open; arrived at 0.000, now 2.000; "
        "1 of 2 finished, 1 playing, 0 resting; oldest version 0 of 1"
    )
    assert attempts == [
        "  g0.a0 granted at 0.000 under version 0 finished after 1.500 s: 12 tokens, score 0.5",
        "  g0.a1 granted at 0.000 under version 0 on worker w0 with engine e0 has played 2.000 s: 7 tokens",
    ]


def test_one_attempt_is_told():
    made = opened(size=2, batch=2)
    made.step(EngineLost("e0"))
    told = made.story(0, 1)
    assert told == (
        "  g0.a1 granted at 0.000 under version 0 on worker w0 with engine none, moved 1 times "
        "has played 0.000 s: 0 tokens"
    )


def test_failures_are_told():
    made = opened(size=2, batch=2)
    made.step(failed(0, 0, why="KeyError: 'door'"))
    assert made.story(0).split("; ")[-1].startswith("failures {'env': 1}, the last: g0.a0 env: KeyError: 'door'")
    assert made.story(0, 0) == "  g0.a0 is forgotten"


def test_a_group_that_has_not_begun_is_told():
    made = opened(size=1, batch=2, slots=1)
    assert made.story(1).endswith("0 of 1 finished, 0 playing, 0 resting")


@pytest.mark.parametrize(
    ("number", "index", "told"),
    [
        (0, None, "g0 is forgotten: it was trained on or dropped"),
        (0, 3, "g0 is forgotten: it was trained on or dropped"),
        (2, None, "g2 never was"),
        (-1, None, "g-1 never was"),
        (1, 4, "  g1.a4 never was"),
        (1, -1, "  g1.a-1 never was"),
    ],
)
def test_what_is_not_there_is_told_apart(number, index, told):
    made = opened(size=1, batch=1)
    complete(made, 0)
    made.step(wanted(1, step=1))
    feed(made, 1)
    assert made.story(number, index) == told


# step by step


def told(made, event, number, now=None):
    return list(stories.lines(event, made.step(event, now), made.now, number))


def test_each_step_says_what_it_meant_for_one_group():
    made = opened(size=1, batch=2, slots=1, spares=1, backoff_s=0.0, staleness=1.0)
    assert told(made, progressed(0, 0, tokens=4), 0, 1.0) == ["       1.000  g0.a0 has sampled 4 tokens"]
    assert told(made, failed(0, 0, why="broke"), 0, 2.0) == [
        "       2.000  g0.a0 failed, env: broke",
        "       2.000  g0.a1 granted to worker w0 with engine e0 under version 0",
    ]
    assert told(made, EngineLost("e0"), 0) == ["       2.000  g0.a1 moved to engine none"]
    assert told(made, TimePassed(), 0) == []


def test_an_attempt_that_waits_for_its_score_is_told():
    made = opened(size=1, batch=1)
    said = told(made, EpisodeEnded(AttemptId(0, 0), 9), 0, 2.0)
    assert said == ["       2.000  g0.a0 was played to its end, 9 tokens, and waits for its score"]
    made.step(TimePassed(), 5.0)
    assert made.story(0, 0) == (
        "  g0.a0 granted at 0.000 under version 0 played 2.000 s, waits for its score: 9 tokens"
    )


def test_the_end_of_a_group_is_told():
    made = opened(size=1, batch=1, spares=1, slots=2)
    first, *rest = told(made, ended(0, 0, score=1.0), 0)
    assert first.startswith("       0.000  g0.a0 finished: Finished(score=1.0")
    assert rest == [
        "       0.000  g0.a1 cancelled: spare",
        "       0.000  g0 delivered to trainer in batch 0, lag 0",
    ]


def test_a_group_that_is_set_aside_is_told():
    made = opened(size=1, batch=1, tail=1.0, slots=2)
    assert told(made, ended(0, 0), 1) == [
        "       0.000  g1 set aside, to be played again: tail",
        "       0.000  g1.a0 cancelled: tail",
    ]


def test_a_verdict_is_told():
    made = opened(size=1, batch=2, slots=2, filter="external")
    assert told(made, ended(0, 0), 0)[1:] == ["       0.000  g0 complete, given to the filter"]
    said, dropped = told(made, GroupJudged(0, accepted=False, why="easy"), 0)
    assert "GroupJudged(group=0, accepted=False, why='easy')" in said
    assert dropped == "       0.000  g0 dropped: filtered"


def test_other_groups_are_not_told():
    made = opened(size=1, batch=2, slots=1, spares=1, filter="external")
    assert told(made, ended(0, 0), 5) == []
    assert told(made, GroupJudged(0, accepted=False), 5) == []
    assert told(made, EngineLost("e0"), 5) == []
    assert told(made, ShutdownWanted(), 5) == []


def test_batches_and_rounds_of_others_are_not_told():
    made = opened(size=1, batch=1, tail=1.0, slots=2)
    assert told(made, ended(0, 0), 5) == []


# waiting


def test_who_does_not_wait_waits_for_nothing():
    assert opened().why_waiting("stranger") == ""


def test_a_waiting_consumer_is_told_what_is_there():
    made = opened(size=1, batch=3, slots=2)
    made.step(ended(0, 0), 1.0)
    assert made.why_waiting("trainer") == (
        "'trainer' (since 0.000) wants 3 groups for step 0: 1 ready; 2 incomplete with 2 attempts playing"
    )


def test_everything_is_named_as_such():
    made = opened(size=1, batch=3, slots=2, n=-1)
    assert "wants all groups until the source ends for step 0: 0 ready" in made.why_waiting("trainer")


def test_episodes_that_wait_for_their_score_are_counted():
    made = opened(size=1, batch=2, slots=2)
    made.step(EpisodeEnded(AttemptId(0, 0), 7))
    expected = "2 incomplete with 1 attempts playing; 1 played and waiting for their score"
    assert expected in made.why_waiting("trainer")


def test_groups_before_the_filter_are_counted():
    made = opened(size=1, batch=2, slots=2, filter="external")
    complete(made, 0)
    assert "1 incomplete with 1 attempts playing; 1 before the filter" in made.why_waiting("trainer")


@pytest.mark.parametrize(
    ("events", "obstacle"),
    [
        ([WorkerLost("w0")], "no worker has joined"),
        ([EngineLost("e0")], "no engine has joined"),
        ([VersionPublished(1)], "no engine serves with current weights"),
        ([SuspendWanted("user"), SuspendWanted("boss")], "engines are held by boss, user"),
        ([failed(0, 0)], "1 retries rest"),
    ],
)
def test_what_stands_in_the_way_is_named(events, obstacle):
    made = opened(size=1, batch=2, slots=2, staleness=1.0)
    made.steps(*events)
    assert obstacle in made.why_waiting("trainer").split("; ")


def test_tasks_that_have_not_arrived_are_named():
    made = staffed(size=1, batch=2)
    made.step(wanted(2))
    assert "2 tasks were asked for and have not arrived" in made.why_waiting("trainer")


def test_missing_slots_are_named():
    made = opened(size=1, batch=2, slots=1)
    assert "no free slot for kinds ['']" in made.why_waiting("trainer")


def test_missing_acknowledgements_are_named():
    made = opened(size=1, batch=1)
    complete(made, 0)
    made.steps(wanted(1, consumer="second"), WorkerJoined("w1", 1))
    assert "1 groups are delivered and not acknowledged" in made.why_waiting("second")
    made.step(BatchTrained(0))
    assert "not acknowledged" not in made.why_waiting("second")


def test_an_open_breaker_is_named():
    made = opened(size=1, batch=1, breaker_window=1)
    made.step(failed(0, 0))
    (obstacle,) = [o for o in stories.obstacles(made._books, made._books.lanes["train"]) if "breaker" in o]
    assert obstacle == "the breaker is open: 1 of the last 1 attempts failed; the first: g0.a0 env: broke"
