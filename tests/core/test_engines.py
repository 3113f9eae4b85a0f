"""Engines: who serves, who is behind, who is chosen, and what happens to attempts when one goes."""

import pytest
from tests.core.given import (
    Checked,
    complete,
    ended,
    failed,
    feed,
    machine,
    only,
    opened,
    played,
    queued,
    serving,
    wanted,
)

from windrow.core.commands import GrantLease, LoadWeights, MoveAttempt
from windrow.core.events import (
    AnyEvent,
    EngineAssigned,
    EngineJoined,
    EngineLost,
    EngineReady,
    EngineReleased,
    ExpandWanted,
    ResumeWanted,
    ShrinkWanted,
    SuspendWanted,
    VersionPublished,
    WeightsLoaded,
    WorkerJoined,
)
from windrow.types import AttemptId


def engines_of(commands) -> list[str]:
    return [lease.engine for lease in only(commands, GrantLease)]


def moves(commands) -> list[tuple[str, str]]:
    return [(str(move.attempt), move.engine) for move in only(commands, MoveAttempt)]


def waiting(slots: int = 8, **rest) -> Checked:
    """A worker, a want and all tasks, but no engine."""
    made = machine(**rest)
    made.steps(WorkerJoined("w0", slots), wanted(made.settings.train.batch_size))
    feed(made, made._books.lanes["train"].tags.asked)
    return made


# coming


def test_a_warming_engine_gets_nothing():
    made = waiting(size=1, batch=1)
    assert "no engine has joined" in made.why_waiting("trainer")
    assert made.step(EngineJoined("e0")) == []
    assert "no engine serves with current weights" in made.why_waiting("trainer")
    assert engines_of(made.step(EngineReady("e0"))) == ["e0"]


def test_a_restarted_engine_is_stale_until_it_confirms_its_weights():
    made = waiting(size=1, batch=1)
    made.step(VersionPublished(3))
    assert made.steps(*serving("e0", version=1)) == [LoadWeights("e0", 3)]
    assert engines_of(made.step(WeightsLoaded("e0", 3))) == ["e0"]


def test_an_engine_that_loads_while_it_warms_up_serves_when_it_is_warm():
    made = waiting(size=1, batch=1)
    made.steps(VersionPublished(3), EngineJoined("e0", version=1))
    assert made.step(WeightsLoaded("e0", 3)) == []
    assert engines_of(made.step(EngineReady("e0"))) == ["e0"]


def test_an_engine_that_confirms_an_old_version_is_told_again():
    made = opened(size=1, batch=2, slots=1, staleness=1.0)
    assert made.step(VersionPublished(2)) == [LoadWeights("e0", 2)]
    assert made.step(WeightsLoaded("e0", 1)) == [LoadWeights("e0", 2)]
    made.step(WeightsLoaded("e0", 2))
    assert only(made.step(ended(0, 0)), GrantLease)[0].version == 2


def test_engines_are_behind_when_a_version_is_published():
    made = opened(size=1, batch=2, slots=1, staleness=1.0, engines=2)
    assert made.step(VersionPublished(1)) == [LoadWeights("e0", 1), LoadWeights("e1", 1)]
    assert played(made.step(ended(0, 0))) == []
    assert engines_of(made.step(WeightsLoaded("e1", 1))) == ["e1"]


def test_engines_with_shared_weights_are_never_behind():
    made = opened(size=1, batch=2, slots=1, staleness=1.0)
    assert made.step(VersionPublished(1, loaded=True)) == []
    assert only(made.step(ended(0, 0)), GrantLease)[0].version == 1


def test_an_engine_that_is_not_warm_is_not_told_to_load():
    made = machine()
    made.step(EngineJoined("e0"))
    assert made.step(VersionPublished(1)) == []


def test_running_attempts_stay_with_an_engine_that_is_behind():
    made = opened(size=1, batch=1, staleness=1.0, slots=1)
    assert made.step(VersionPublished(1)) == [LoadWeights("e0", 1)]
    assert made._books.groups[0].attempts[0].engine == "e0"


def test_weights_from_before_their_publication_count_as_published():
    made = waiting(size=1, batch=1)
    made.steps(*serving("e0", version=5))
    batch = complete(made, 0, version=5)[0]
    assert batch.lags == (0,)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "event", [EngineReady("e9"), WeightsLoaded("e9", 0), EngineReleased("e9"), EngineLost("e9"), EngineReady("e0")]
)
def test_news_of_an_engine_that_is_gone_or_warm_is_late(event):
    made = opened()
    assert made.step(event) == []
    assert made.late == 1


# held while they take new weights


def syncing(**rest) -> Checked:
    """A waiting trainer, a free slot, and engines that were held before version 1 was published."""
    made = opened(size=1, batch=8, staleness=2.0, tasks=0, **rest)
    made.steps(SuspendWanted("syncer"), VersionPublished(1))
    return made


def test_an_engine_that_is_held_to_take_new_weights_gets_new_work_under_the_new_version():
    (lease,) = only(feed(syncing(), 1), GrantLease)
    assert (lease.engine, lease.version) == ("e0", 1)


def test_an_engine_that_fell_behind_before_it_was_held_gets_work_in_that_step():
    made = opened(size=1, batch=8, staleness=2.0, tasks=0)
    made.step(VersionPublished(1))
    assert played(feed(made, 1)) == []
    assert engines_of(made.step(SuspendWanted("syncer"))) == ["e0"]


def test_a_held_engine_that_is_assigned_gets_new_work():
    made = syncing()
    made.step(EngineAssigned("e0", "train"))
    assert engines_of(feed(made, 1)) == ["e0"]


def test_an_engine_that_is_let_go_before_it_has_its_weights_gets_nothing():
    made = syncing()
    made.step(ResumeWanted("syncer"))
    assert engines_of(feed(made, 1)) == []
    assert engines_of(made.step(WeightsLoaded("e0", 1))) == ["e0"]


def test_a_held_engine_that_never_had_its_weights_gets_nothing():
    made = waiting(size=1, batch=1)
    made.steps(VersionPublished(1), SuspendWanted("syncer"))
    assert engines_of(made.steps(*serving("e0"))) == []
    assert engines_of(made.step(WeightsLoaded("e0", 1))) == ["e0"]


def test_an_engine_that_has_its_weights_comes_before_one_that_is_held():
    made = syncing(engines=2)
    made.steps(WeightsLoaded("e1", 1), ResumeWanted("syncer"), SuspendWanted("syncer", "drain", ("e0",)))
    assert engines_of(feed(made, 3)) == ["e1", "e1", "e1"]


def test_an_attempt_without_an_engine_goes_to_one_that_is_held():
    made = opened(size=1, batch=1, staleness=2.0, slots=1)
    made.steps(*serving("e1"), VersionPublished(1), EngineLost("e0"))
    assert moves(made.step(SuspendWanted("syncer"))) == [("g0.a0", "e1")]


def test_a_lease_has_the_version_of_an_engine_set_aside_for_validation():
    made = waiting(size=1, batch=1)
    made.steps(*serving("e0"), EngineAssigned("e0", "val"), VersionPublished(2), wanted(1, consumer="j", mode="val"))
    (lease,) = only(feed(made, 1, "val"), GrantLease)
    assert (lease.engine, lease.version) == ("e0", 0)


# shares, while others take new weights


def burst(ended_with: AnyEvent) -> list[str]:
    """Where a burst of twelve goes when one of four engines has its weights, and what follows from an event."""
    made = opened(size=1, batch=16, slots=16, engines=4, staleness=2.0, tasks=0)
    made.steps(VersionPublished(1), WeightsLoaded("e0", 1))
    assert engines_of(feed(made, 12)) == ["e0"] * 5
    return engines_of(made.step(ended_with))


def test_a_burst_does_not_pile_onto_the_first_engine_that_has_its_weights():
    assert burst(WeightsLoaded("e1", 1)) == ["e1"] * 5 + ["e0", "e1"]


@pytest.mark.parametrize("event", [EngineLost("e3"), ShrinkWanted((3,))])
def test_shares_grow_when_an_engine_no_longer_takes_part(event):
    assert "e0" in burst(event)


def test_a_held_engine_takes_whatever_comes():
    made = opened(size=1, batch=16, slots=16, engines=4, staleness=2.0, tasks=0)
    made.steps(SuspendWanted("syncer"), VersionPublished(1), WeightsLoaded("e0", 1))
    assert len(engines_of(feed(made, 12))) == 12


def test_when_no_engine_is_behind_there_are_no_shares():
    made = opened(size=1, batch=12, slots=12, tasks=0)
    assert engines_of(feed(made, 12)) == ["e0"] * 12


# engines that keep failing


def strikes(made: Checked) -> dict[str, int]:
    return {engine.engine: engine.strikes for engine in made.status().engines}


def one_sick(**rest) -> Checked:
    """Three attempts that e0 alone served failed by its fault; then e1 came."""
    made = opened(size=1, batch=9, slots=9, tasks=3, backoff_s=99.0, **rest)
    made.steps(failed(0, 0, "engine"), failed(1, 0, "engine"), failed(2, 0, "engine"))
    assert strikes(made) == {"e0": 3}
    return made


def test_an_engine_that_failed_three_times_in_a_row_gets_work_only_if_no_healthy_one_is_left():
    made = one_sick()
    made.steps(*serving("e1"))
    assert engines_of(feed(made, 3)) == ["e1"] * 3
    made.step(EngineLost("e1"))
    assert engines_of(feed(made, 1)) == ["e0"]


def test_two_failures_do_not_make_an_engine_sick():
    made = opened(size=1, batch=9, slots=9, tasks=2, backoff_s=99.0)
    made.steps(failed(0, 0, "engine"), failed(1, 0, "engine"), *serving("e1"))
    assert engines_of(feed(made, 2)) == ["e0", "e1"]


@pytest.mark.parametrize("blame", ["env", "reward", "worker"])
def test_an_engine_is_not_blamed_for_the_failures_of_others(blame):
    made = opened(size=1, batch=9, tasks=1)
    made.step(failed(0, 0, blame))
    assert strikes(made) == {"e0": 0}


def test_a_success_makes_an_engine_healthy():
    made = one_sick()
    feed(made, 1)
    complete(made, 3)
    assert strikes(made) == {"e0": 0}
    assert made._books.engines.table["e0"].load == 0.0


def test_new_weights_make_an_engine_healthy():
    made = one_sick()
    made.step(WeightsLoaded("e0", 0))
    assert strikes(made) == {"e0": 0}
    made.steps(*serving("e1"))
    assert engines_of(feed(made, 1)) == ["e0"]


def test_an_engine_is_healthy_from_the_moment_it_says_so_whatever_it_loaded():
    made = one_sick()
    made.steps(*serving("e1"), VersionPublished(2), WeightsLoaded("e0", 1), VersionPublished(3, loaded=True))
    assert made._books.engines.table["e0"].load == 0.0


def test_a_restart_makes_an_engine_healthy():
    made = one_sick(engines=1)
    made.steps(*serving("e1", devices=(1,)), ShrinkWanted((0,)), ExpandWanted((0,)), EngineReady("e0"))
    assert strikes(made) == {"e0": 0, "e1": 0}


@pytest.mark.parametrize(("blame", "engine"), [("env", "e0"), ("engine", "e1")])
def test_a_retry_after_an_engine_failure_does_not_stay_with_the_engine_that_knows_its_prompt(blame, engine):
    made = opened(size=2, batch=2, slots=2, backoff_s=0.0, engines=2)
    assert engines_of(made.step(failed(0, 0, blame))) == [engine]


# choosing


def test_the_engine_with_the_least_work_is_chosen():
    made = queued(size=1, batch=4)
    made.steps(*serving("e1"))
    assert engines_of(made.step(WorkerJoined("w0", 4))) == ["e0", "e1", "e0", "e1"]


def test_work_is_shared_by_capacity():
    made = queued(size=1, batch=4)
    made.steps(*serving("big", capacity=3))
    assert engines_of(made.step(WorkerJoined("w0", 4))) == ["e0", "big", "big", "big"]


def test_siblings_stay_with_the_engine_that_knows_their_prompt():
    made = queued(size=2, batch=4, order="arrival")
    made.steps(*serving("e1"))
    assert engines_of(made.step(WorkerJoined("w0", 4))) == ["e0", "e0", "e1", "e1"]


def test_siblings_leave_an_engine_that_is_much_busier():
    made = queued(size=4, batch=4)
    made.steps(*serving("e1"))
    assert engines_of(made.step(WorkerJoined("w0", 4))) == ["e0", "e0", "e1", "e1"]


def test_siblings_leave_an_engine_that_is_gone():
    made = opened(size=2, batch=2, slots=1, engines=2)
    assert made._books.groups[0].engine == "e0"
    made.step(EngineLost("e0"))
    assert engines_of(made.step(ended(0, 0))) == ["e1"]


def test_siblings_leave_an_engine_that_is_behind():
    made = opened(size=2, batch=2, slots=1, engines=2, staleness=1.0)
    made.steps(VersionPublished(1), WeightsLoaded("e1", 1))
    assert engines_of(made.step(ended(0, 0))) == ["e1"]


def test_a_held_engine_is_chosen_only_if_no_other_is_left():
    made = queued(size=1, batch=4)
    made.steps(*serving("e1"), SuspendWanted("updater", engines=("e0",)))
    assert engines_of(made.step(WorkerJoined("w0", 2))) == ["e1", "e1"]
    made.step(SuspendWanted("updater", engines=("e1",)))
    assert engines_of(made.step(WorkerJoined("w1", 2))) == ["e0", "e0"]


def test_an_engine_reserved_for_a_mode_is_preferred_when_it_has_less_to_do():
    made = queued(size=1, batch=4)
    made.steps(*serving("e1"), EngineAssigned("e1", "train"))
    assert engines_of(made.step(WorkerJoined("w0", 4))) == ["e0", "e1", "e0", "e1"]


def test_finished_attempts_make_their_engine_lighter():
    made = opened(size=1, batch=6, slots=4, engines=2)  # g0 and g2 on e0, g1 and g3 on e1
    assert engines_of(made.step(ended(1, 0, tokens=1))) == ["e1"]
    assert engines_of(made.step(ended(2, 0, tokens=1))) == ["e0"]


def test_attempts_that_seem_to_cost_nothing_are_spread_too():
    made = opened(size=1, batch=9, slots=1, engines=2)
    made.step(ended(0, 0, tokens=0))
    engines = engines_of(made.step(WorkerJoined("w1", 6)))
    assert sorted(engines) == ["e0", "e0", "e0", "e1", "e1", "e1"]


def test_expected_tokens_are_learnt_from_the_tag():
    made = opened(size=1, batch=2, slots=1)
    assert made._books.groups[0].attempts[0].work == 1.0
    made.step(ended(0, 0, tokens=100))
    assert made._books.groups[1].attempts[0].work == 100.0


def test_expected_tokens_are_learnt_from_siblings():
    made = opened(size=3, batch=3, slots=1)
    made.step(ended(0, 0, tokens=100))
    made.step(ended(0, 1, tokens=20))
    assert made._books.groups[0].attempts[2].work == 60.0


# going


def test_attempts_of_a_lost_engine_move_to_the_others():
    made = opened(size=1, batch=4, slots=4, engines=2)
    commands = made.step(EngineLost("e0", "out of memory"))
    assert commands == [MoveAttempt(AttemptId(0, 0), "w0", "e1"), MoveAttempt(AttemptId(2, 0), "w0", "e1")]


def test_attempts_spread_over_all_engines_that_are_left():
    made = opened(size=1, batch=6, slots=6, engines=3)
    assert moves(made.step(EngineLost("e0"))) == [("g0.a0", "e1"), ("g3.a0", "e2")]


def test_without_an_engine_attempts_wait_for_one():
    made = opened(size=1, batch=2)
    assert moves(made.step(EngineLost("e0"))) == [("g0.a0", ""), ("g1.a0", "")]
    assert moves(made.steps(*serving("e1"))) == [("g0.a0", "e1"), ("g1.a0", "e1")]
    assert made._books.groups[0].attempts[0].moves == 2


def test_an_attempt_without_an_engine_may_end():
    made = opened(size=1, batch=2)
    made.step(EngineLost("e0"))
    complete(made, 0)
    assert moves(made.steps(*serving("e1"))) == [("g1.a0", "e1")]


def test_attempts_without_an_engine_wait_until_one_is_current():
    made = opened(size=1, batch=1, staleness=1.0, slots=1)
    made.steps(EngineLost("e0"), VersionPublished(1))
    assert made.steps(*serving("e1")) == [LoadWeights("e1", 1)]
    assert moves(made.step(WeightsLoaded("e1", 1))) == [("g0.a0", "e1")]


def test_nothing_starts_without_an_engine():
    made = opened(size=1, batch=2, slots=1)
    made.step(EngineLost("e0"))
    assert played(made.step(ended(0, 0))) == []
    assert played(made.steps(*serving("e1"))) == ["g1.a0"]


def test_an_engine_that_joins_again_takes_its_share_over():
    made = opened(size=1, batch=4, slots=4, engines=2)
    made.step(EngineLost("e0"))
    assert moves(made.steps(*serving("e0"))) == [("g3.a0", "e0"), ("g2.a0", "e0")]


def test_an_engine_that_joins_takes_no_more_than_its_share():
    made = opened(size=1, batch=3, slots=3)
    assert moves(made.steps(*serving("e1"))) == [("g2.a0", "e1")]


def test_an_engine_that_joins_an_idle_fleet_takes_nothing():
    made = opened(size=1, batch=2, slots=8)
    complete(made, 0, 1)
    assert made.steps(*serving("e1")) == []


def test_an_engine_for_validation_takes_no_training_over():
    made = opened(size=1, batch=4, slots=4)
    made.steps(EngineJoined("e1"), EngineAssigned("e1", "val"))
    assert made.step(EngineReady("e1")) == []


def test_the_busiest_engine_gives_first():
    made = queued(size=1, batch=6)
    made.steps(*serving("e1", capacity=2))
    made.step(WorkerJoined("w0", 6))  # e0 plays 2, e1 plays 4
    made.step(SuspendWanted("updater", engines=("e0",)))
    assert moves(made.steps(*serving("e2")))[:2] == [("g3.a0", "e2"), ("g0.a0", "e2")]


# one mode only


def test_attempts_of_the_other_mode_leave_an_engine_that_is_assigned():
    made = opened(size=1, batch=2, slots=2, engines=2)
    assert moves(made.step(EngineAssigned("e0", "val"))) == [("g0.a0", "e1")]


def test_the_last_engine_of_a_mode_may_be_assigned_away():
    made = opened(size=1, batch=1, slots=1)
    assert moves(made.step(EngineAssigned("e0", "val"))) == [("g0.a0", "")]
    assert "no engine serves with current weights" in made.why_waiting("trainer")
    assert moves(made.step(EngineAssigned("e0", None))) == [("g0.a0", "e0")]


def test_an_engine_that_was_set_aside_loads_what_it_missed():
    made = opened(size=1, batch=1, slots=1, engines=2, staleness=1.0)
    made.steps(EngineAssigned("e1", "val"), VersionPublished(1, loaded=True))
    assert made.step(EngineAssigned("e1", None)) == [LoadWeights("e1", 1)]


def test_an_engine_that_is_assigned_while_it_warms_up_waits():
    made = opened(size=1, batch=1, slots=1)
    made.step(EngineJoined("e1"))
    assert made.step(EngineAssigned("e1", "val")) == []


def test_a_new_version_does_not_disturb_an_engine_set_aside_for_validation():
    made = opened(engines=2)
    made.step(EngineAssigned("e1", "val"))
    assert [load.engine for load in only(made.step(VersionPublished(1)), LoadWeights)] == ["e0"]


# growing


def test_the_list_of_engines_does_not_grow_with_the_work_done():
    made = opened(size=1, batch=151, slots=150, tasks=150)
    complete(made, *range(150))
    feed(made, 1)
    assert len(made._books.engines.heaps[None]) <= 2 * 1 + 64


def test_the_list_of_groups_does_not_grow_with_the_work_done():
    made = queued(size=100, batch=100)
    made.step(WorkerJoined("w0", 1))
    for index in range(90):
        made.step(ended(0, index), float(index + 1) ** 1.5)
    queue = made._books.lanes["train"].queues[""]
    assert len(queue.heap) <= 2 * queue.size + 64


def test_an_empty_queue_keeps_nothing():
    made = opened(size=1, batch=2, slots=2)
    complete(made, 0)
    assert made._books.lanes["train"].queues[""].size == 0
