"""Which attempt a free slot plays next."""

from tests.core.given import ended, feed, machine, only, opened, played, queued, serving, staffed, wanted

from windrow.core.commands import GrantLease
from windrow.core.events import BatchTrained, TaskArrived, WorkerJoined
from windrow.core.ordering import REMEMBERED_TASKS


def test_synchronous_probes_every_group_before_any_sibling():
    made = staffed(size=2, batch=6, slots=3)
    made.step(wanted(6))
    assert played(feed(made, 3)) == ["g0.a0", "g0.a1", "g1.a0"]
    assert played(made.step(ended(0, 0), 1.0)) == ["g2.a0"]
    assert played(made.step(ended(0, 1), 2.0)) == ["g1.a1"]


def test_probes_come_first_when_all_tasks_are_there():
    made = queued(size=2, batch=6)
    assert played(made.step(WorkerJoined("w0", 6))) == ["g0.a0", "g1.a0", "g2.a0", "g0.a1", "g1.a1", "g2.a1"]


def test_an_unknown_length_counts_as_long():
    """One of three probes is back: its siblings are known to be short, those of the others may be long."""
    made = queued(size=2, batch=6)
    made.step(WorkerJoined("w0", 3))
    assert played(made.step(ended(0, 0), 1.0)) == ["g1.a1"]
    assert played(made.step(ended(1, 0), 5.0)) == ["g2.a1"]


def test_the_predicted_longest_plays_first():
    made = queued(size=3, batch=9)
    made.step(WorkerJoined("w0", 3))
    first = [played(made.step(ended(group, 0), 1.0 + group)) for group in (0, 1, 2)]
    assert first == [["g1.a1"], ["g2.a1"], ["g2.a2"]]  # unknown, unknown, 3 s
    assert played(made.step(ended(1, 1), 4.0)) == ["g1.a2"]  # (2 + 3) / 2 s before 1 s
    assert played(made.step(ended(2, 1), 5.0)) == ["g0.a1"]


def test_the_predicted_longest_plays_first_however_often_predictions_change():
    """Its episodes grow longer and longer, so the first group stays the longest until it is full."""
    made = queued(size=90, batch=540)
    made.step(WorkerJoined("w0", 1))
    for number in range(6):
        made.step(ended(number, 0), made.now + 6.0 - number)
    for index in range(1, 89):
        assert played(made.step(ended(0, index), made.now + 7.0 + index)) == [f"g0.a{index + 1}"]
    assert played(made.step(ended(0, 89), made.now + 7.0)) == ["g1.a1"]


def test_equal_lengths_play_in_order_of_age():
    made = queued(size=2, batch=4)
    made.step(WorkerJoined("w0", 2))
    assert played(made.steps(ended(1, 0), ended(0, 0), now=1.0)) == ["g0.a1", "g1.a1"]


def learnt(staleness: float = 0.0):
    """A machine that has seen task slow take 9 s and task quick 1 s, each once, and waits for the next batch."""
    made = staffed(size=1, batch=2, slots=2, staleness=staleness)
    made.step(wanted(2))
    made.steps(TaskArrived("train", 0, task="quick"), TaskArrived("train", 1, task="slow"))
    made.step(ended(0, 0), 1.0)
    made.step(ended(1, 0), 9.0)
    made.step(WorkerJoined("w1", 1))
    return made


def test_a_task_that_took_long_before_plays_first():
    made = learnt()
    made.steps(BatchTrained(0), wanted(4, step=1))
    busy = ["", "x", "quick", "slow"]  # three slots are taken by the first three
    for ordinal, task in enumerate(busy):
        made.step(TaskArrived("train", 2 + ordinal, task=task))
    made.step(wanted(6, step=1))
    made.steps(TaskArrived("train", 6, task="quick"), TaskArrived("train", 7))
    assert played(made.step(ended(2, 0), 9.0)) == ["g7.a0"]  # unknown
    assert played(made.step(ended(3, 0), 9.0)) == ["g5.a0"]  # slow
    assert played(made.step(ended(4, 0), 9.0)) == ["g6.a0"]  # quick


def test_only_the_last_time_of_a_task_counts():
    made = learnt()
    made.step(wanted(2, step=1))
    made.steps(TaskArrived("train", 2, task="slow"), TaskArrived("train", 3))
    made.step(ended(2, 0), 9.5)
    assert made._books.lengths.seconds == {"quick": 1.0, "slow": 0.5}


def test_a_task_without_a_name_leaves_no_history():
    made = opened(size=1, batch=1)
    made.step(ended(0, 0), 1.0)
    assert made._books.lengths.seconds == {}


def test_the_task_that_was_played_longest_ago_is_forgotten_first():
    made = learnt()
    known = made._books.lengths.seconds
    known.update((f"task {number}", 1.0) for number in range(REMEMBERED_TASKS - 3))
    made.step(wanted(2, step=1))
    made.steps(TaskArrived("train", 2, task="new"), TaskArrived("train", 3, task="newer"))
    made.step(ended(2, 0), 10.0)
    assert (len(known), "quick" in known) == (REMEMBERED_TASKS, True)
    made.step(ended(3, 0), 10.0)
    assert (len(known), "quick" in known, "slow" in known) == (REMEMBERED_TASKS, False, True)


def test_with_a_bound_begun_groups_come_before_new_ones():
    made = queued(size=3, batch=3, staleness=1.0)
    assert played(made.step(WorkerJoined("w0", 2))) == ["g0.a0", "g0.a1"]
    assert played(made.step(ended(0, 0), 1.0)) == ["g0.a2"]
    assert played(made.step(ended(0, 1), 1.0)) == ["g1.a0"]


def test_with_a_bound_the_longest_of_the_begun_plays_first():
    made = machine(size=3, batch=6, staleness=1.0)
    made.steps(*serving("e0"), wanted(6), WorkerJoined("w0", 1, ("maze",)), WorkerJoined("w1", 1, ("shop",)))
    feed(made, 1, kind="maze")
    feed(made, 1, kind="shop")
    made.step(ended(0, 0), 1.0)
    made.step(ended(1, 0), 5.0)
    feed(made, 1, kind="maze")
    assert played(made.step(WorkerJoined("w2", 3, ("maze", "shop")))) == ["g1.a2", "g0.a2", "g2.a0"]


def test_in_order_of_arrival_a_group_is_finished_before_the_next():
    made = queued(size=2, batch=4, order="arrival")
    assert played(made.step(WorkerJoined("w0", 4))) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]


def test_spares_come_last():
    made = queued(size=2, batch=4, spares=1)
    expected = ["g0.a0", "g1.a0", "g0.a1", "g1.a1", "g0.a2", "g1.a2"]
    assert played(made.step(WorkerJoined("w0", 6))) == expected


def test_spares_come_last_in_order_of_arrival_too():
    made = queued(size=2, batch=4, spares=1, order="arrival")
    expected = ["g0.a0", "g0.a1", "g1.a0", "g1.a1", "g0.a2", "g1.a2"]
    assert played(made.step(WorkerJoined("w0", 6))) == expected


def test_workers_are_filled_in_turn():
    made = machine(size=4, batch=4)
    made.steps(*serving("e0"), wanted(4), WorkerJoined("w0", 2), WorkerJoined("w1", 2))
    assert [lease.worker for lease in only(feed(made, 1), GrantLease)] == ["w0", "w1", "w0", "w1"]


def test_a_task_plays_only_where_its_kind_is_hosted():
    made = machine(size=1, batch=3)
    made.steps(*serving("e0"), wanted(3), WorkerJoined("w0", 9, ("maze",)), WorkerJoined("w1", 9, ("maze", "shop")))
    assert [lease.worker for lease in only(feed(made, 2, kind="shop"), GrantLease)] == ["w1", "w1"]
    assert feed(made, 1, kind="chess") == []
    assert "no free slot for kinds ['chess']" in made.why_waiting("trainer")


def test_a_kind_never_runs_more_than_its_limit():
    made = staffed(size=1, batch=4, kinds={"": 2})
    made.step(wanted(4))
    assert played(feed(made, 4)) == ["g0.a0", "g1.a0"]
    assert played(made.step(ended(0, 0))) == ["g2.a0"]


def test_the_best_of_all_kinds_plays_first():
    made = machine(size=2, batch=4)
    made.steps(*serving("e0"), wanted(4))
    feed(made, 1, kind="maze")
    feed(made, 1, kind="shop")
    slots = WorkerJoined("w0", 4, ("shop", "maze"))
    assert played(made.step(slots)) == ["g0.a0", "g1.a0", "g0.a1", "g1.a1"]
