"""Failures: budgets, back-off, quarantine and the breaker."""

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
    played,
    staffed,
    wanted,
)

from windrow.core.commands import CancelAttempt, DropGroup, FetchTask, Halt, RefuseBatch
from windrow.core.events import (
    BreakerReset,
    TaskArrived,
    TaskPardoned,
    TimePassed,
    WorkerJoined,
    WorkerLost,
)
from windrow.core.machine import Machine
from windrow.types import AttemptId


def test_a_failure_is_tried_again_after_its_rest():
    made = opened(size=1, batch=1, backoff_s=2.0)
    assert made.step(failed(0, 0), 1.0) == []
    assert made.step(TimePassed(), 2.9) == []
    assert played(made.step(TimePassed(), 3.0)) == ["g0.a1"]


def test_without_back_off_a_failure_is_tried_again_at_once():
    made = opened(size=1, batch=1, backoff_s=0.0)
    assert played(made.step(failed(0, 0))) == ["g0.a1"]


def test_a_failure_does_not_disturb_its_siblings():
    made = opened(size=2, batch=2)
    made.step(failed(0, 0))
    assert made.step(ended(0, 1)) == []
    made.step(TimePassed(), 1.0)
    assert delivered(made.step(ended(0, 2))) == [(0,)]


def test_rests_double_with_each_failure_of_a_group():
    made = opened(size=1, batch=1, backoff_s=1.0, engine_retries=8)
    rests = []
    for index in range(5):
        made.step(failed(0, index, "engine"))
        due = made.next_deadline
        assert due is not None
        rests.append(due - made.now)
        made.step(TimePassed(), due)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_no_rest_is_longer_than_five_minutes_however_often_it_failed():
    made = opened(size=1, batch=1, slots=1, engine_retries=2000, breaker_share=1.0)
    for index in range(1100):
        Machine.step(made, failed(0, index, "engine"), 301.0 * index)
        assert len(played(Machine.step(made, TimePassed(), 301.0 * (index + 1)))) == 1
    made.check()


def test_retries_that_rest_take_no_slot():
    made = opened(size=1, batch=2, slots=1)
    assert played(made.step(failed(0, 0))) == ["g1.a0"]


@pytest.mark.parametrize(
    ("blame", "why"),
    [("env", "poisoned"), ("reward", "poisoned"), ("engine", "failed"), ("worker", "failed")],
)
def test_each_blame_has_its_own_budget(blame, why):
    budget = {f"{blame}_retries": 1}
    made = opened(size=1, batch=1, backoff_s=0.0, **budget)
    assert played(made.step(failed(0, 0, blame))) == ["g0.a1"]
    assert made.step(failed(0, 1, blame)) == [DropGroup(0, why), FetchTask("train", "", 1)]


def test_one_budget_does_not_use_up_another():
    made = opened(size=1, batch=1, backoff_s=0.0, env_retries=1, reward_retries=1, engine_retries=1)
    made.steps(failed(0, 0, "env"), failed(0, 1, "reward"))
    assert played(made.step(failed(0, 2, "engine"))) == ["g0.a3"]


def test_a_tasks_own_fault_has_no_budget():
    made = opened(size=1, batch=1)
    assert DropGroup(0, "poisoned") in made.step(failed(0, 0, "task"))


def test_a_dropped_group_cancels_its_siblings_and_is_replaced_in_the_same_step():
    made = opened(size=2, batch=2, env_retries=0)
    cancel = CancelAttempt(AttemptId(0, 1), "w0", "poisoned")
    assert made.step(failed(0, 0)) == [cancel, DropGroup(0, "poisoned"), FetchTask("train", "", 1)]


# quarantine


def poisoned(task: str = "door"):
    """A task whose environment fails is in quarantine; another one is asked for."""
    made = opened(size=1, batch=1, env_retries=0, tasks=0)
    made.step(TaskArrived("train", 7, task=task))
    made.step(failed(0, 0, why="KeyError: 'door'", tokens=3), 5.0)
    return made


def test_a_poisonous_task_becomes_a_dead_letter():
    letter = poisoned().dead_letters[0]
    assert (letter.task, letter.tag, letter.ordinal, letter.at) == ("door", "", 7, 5.0)
    assert (letter.why, letter.failures, letter.refused) == ("g0.a0 env: KeyError: 'door'", 1, 0)


def test_a_poisonous_task_without_a_name_is_known_by_its_ordinal():
    assert poisoned(task="").dead_letters[0].task == "train:#7"


def test_a_group_dropped_for_its_machinery_is_no_dead_letter():
    made = opened(size=1, batch=1, engine_retries=0)
    made.step(failed(0, 0, "engine"))
    assert made.dead_letters == []


def test_a_quarantined_task_is_turned_away_and_replaced():
    made = poisoned()
    turned_away = made.step(TaskArrived("train", 8, task="door"))
    assert turned_away == [DropGroup(1, "poisoned"), FetchTask("train", "", 1)]
    assert made.dead_letters[0].refused == 1
    assert made.ledgers["train"].groups.dropped == {"poisoned": 2}


def twins(*tasks: str):
    """Groups of these tasks, all of which play."""
    made = opened(size=1, batch=len(tasks), env_retries=0, tasks=0)
    made.steps(*(TaskArrived("train", ordinal, task=task) for ordinal, task in enumerate(tasks)))
    return made


def test_other_groups_of_a_poisonous_task_are_dropped_with_it():
    made = twins("door", "window", "door")
    commands = made.step(failed(0, 0, why="KeyError"))
    assert {drop.group for drop in only(commands, DropGroup)} == {0, 2}
    assert only(commands, CancelAttempt) == [CancelAttempt(AttemptId(2, 0), "w0", "poisoned")]


def test_groups_without_a_name_are_not_alike():
    made = twins("", "")
    assert only(made.step(failed(0, 0)), DropGroup) == [DropGroup(0, "poisoned")]


def test_complete_groups_of_a_poisonous_task_are_used():
    made = twins("door", "window", "door")
    complete(made, 2)
    made.step(failed(0, 0))
    assert made._books.groups[2].state == "ready"


def test_other_tasks_are_not_turned_away():
    assert played(poisoned().step(TaskArrived("train", 8, task="window"))) == ["g1.a0"]


def test_a_pardoned_task_is_played_again():
    made = poisoned()
    assert made.step(TaskPardoned("door")) == []
    assert made.dead_letters == []
    assert played(made.step(TaskArrived("train", 8, task="door"))) == ["g1.a0"]


def test_pardoning_a_task_that_is_not_in_quarantine_is_harmless():
    made = poisoned()
    made.step(TaskPardoned("window"))
    assert len(made.dead_letters) == 1


# the breaker


def failing(times: int, **rest):
    """Four groups play; so many attempts have failed, in a window of four."""
    made = opened(size=1, batch=4, slots=4, breaker_window=4, breaker_share=0.75, backoff_s=0.0, **rest)
    for index in range(times):
        made.step(failed(0, index, why=f"fault {index}"))
    return made


def test_the_breaker_opens_with_the_first_cause():
    made = failing(3, env_retries=9)
    cause = "4 of the last 4 attempts failed; the first: g0.a0 env: fault 0"
    assert made.step(failed(1, 0, why="another")) == [Halt(cause), RefuseBatch("trainer", cause)]
    assert made.halted == cause


def test_the_breaker_stays_closed_until_its_window_is_full():
    made = failing(3, env_retries=9)
    assert made.halted == ""


def test_the_breaker_stays_closed_below_its_share():
    made = failing(2, env_retries=9)
    made.steps(ended(1, 0), ended(2, 0), failed(3, 0))
    assert made.halted == ""


def test_what_lies_beyond_the_window_does_not_count():
    made = failing(2, env_retries=9)
    made.steps(ended(1, 0), ended(2, 0), ended(3, 0))  # window: fault 1, and three successes
    assert made.halted == ""
    assert made._books.faults.failed == 1


def test_the_window_forgets_the_oldest_first():
    """Of ok, failed, ok, ok, failed the last three hold one failure."""
    made = opened(size=1, batch=6, slots=6, breaker_window=3, backoff_s=0.0)
    made.steps(ended(0, 0), failed(1, 0), ended(2, 0), ended(3, 0), failed(4, 0))
    assert made.halted == ""
    assert made._books.faults.failed == 1


def test_the_first_cause_is_the_oldest_in_the_window():
    made = opened(size=1, batch=6, slots=6, breaker_window=3, breaker_share=1.0 / 3.0, backoff_s=0.0, env_retries=9)
    made.steps(ended(0, 0), ended(1, 0), ended(2, 0), ended(3, 0))
    (halt,) = only(made.step(failed(4, 0, why="the first")), Halt)
    assert halt.cause == "1 of the last 3 attempts failed; the first: g4.a0 env: the first"


def test_a_success_never_opens_the_breaker():
    made = failing(3, env_retries=9)
    made.step(ended(1, 0))
    assert made.halted == ""
    assert [type(command) for command in made.step(failed(2, 0))] == [Halt, RefuseBatch]


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_share_of_zero_opens_at_the_first_failure_and_not_before(share):
    made = opened(size=1, batch=2, slots=2, breaker_window=1, breaker_share=share)
    made.step(ended(0, 0))
    assert made.halted == ""
    made.step(failed(1, 0))
    assert made.halted != ""


def test_a_share_of_one_never_opens():
    made = opened(size=1, batch=1, breaker_window=1, breaker_share=1.0, backoff_s=0.0)
    made.step(failed(0, 0))
    assert made.halted == ""


def test_losing_one_worker_is_no_systemic_fault():
    made = opened(size=1, batch=8, slots=4, breaker_window=4, backoff_s=0.0)
    complete(made, 0, 1, 2, 3)
    made.step(WorkerJoined("w1", 4))
    assert only(made.step(WorkerLost("w0")), Halt) == []


def open_breaker():
    made = failing(3, env_retries=9)
    made.step(failed(1, 0))
    return made


def test_an_open_breaker_starts_nothing_and_asks_for_nothing():
    made = open_breaker()
    assert made.steps(ended(2, 0), failed(3, 0), WorkerJoined("w1", 9)) == []


def test_an_open_breaker_refuses_whoever_asks():
    made = open_breaker()
    refused = made.step(wanted(4, step=1))
    assert refused == [RefuseBatch("trainer", made.halted)]


def test_an_open_breaker_refuses_all_consumers():
    made = failing(3, env_retries=9)
    made.steps(wanted(4, consumer="other"), wanted(1, consumer="judge", mode="val"))
    refused = only(made.step(failed(1, 0)), RefuseBatch)
    assert [refusal.consumer for refusal in refused] == ["trainer", "other", "judge"]


def test_an_open_breaker_opens_once():
    made = open_breaker()
    first = made.halted
    assert only(made.step(failed(2, 0)), Halt) == []
    assert made.halted == first


def test_a_reset_breaker_goes_on_where_it_stopped():
    made = open_breaker()
    assert played(made.step(BreakerReset())) == ["g1.a1"]
    assert made.halted == ""
    made.step(wanted(4, step=1))
    assert delivered(complete(made, 0, 1, 2, 3)) == [(0, 1, 2, 3)]


def test_a_reset_breaker_has_forgotten_what_opened_it():
    made = open_breaker()
    made.step(BreakerReset())
    made.steps(failed(2, 0), failed(3, 0))
    assert made.halted == ""


def test_a_reset_breaker_asks_for_what_is_missing():
    made = failing(3, env_retries=3)
    made.steps(failed(0, 3), ended(1, 0))
    assert made._books.groups.keys() == {1, 2, 3}
    assert fetched(made.step(BreakerReset())) == 1


def test_resetting_a_closed_breaker_is_harmless():
    made = staffed()
    assert made.step(BreakerReset()) == []
    made.step(wanted(4))
    assert len(played(feed(made, 2))) == 4
