"""Suspension, counted by holder."""

import pytest
from tests.core.given import complete, only, opened, played, refusal, serving

from windrow.core.commands import GrantLease, MoveAttempt, ResumeEngine, SuspendEngine
from windrow.core.events import EngineJoined, EngineLost, EngineReady, ResumeWanted, SuspendWanted, WorkerJoined
from windrow.errors import IllegalEvent


def test_a_hold_suspends_every_engine():
    made = opened(engines=2)
    assert made.step(SuspendWanted("user")) == [SuspendEngine("e0", "interrupt"), SuspendEngine("e1", "interrupt")]


def test_a_hold_may_name_its_engines():
    made = opened(engines=2)
    assert made.step(SuspendWanted("updater", "freeze", ("e1",))) == [SuspendEngine("e1", "freeze")]
    assert made.step(ResumeWanted("updater")) == [ResumeEngine("e1")]


def test_two_holders_cannot_undo_each_other():
    made = opened()
    made.steps(SuspendWanted("user"), SuspendWanted("updater"))
    assert made.step(ResumeWanted("user")) == []
    assert made.step(ResumeWanted("updater")) == [ResumeEngine("e0")]


def test_holding_twice_is_holding_once():
    made = opened()
    made.step(SuspendWanted("user"))
    assert made.step(SuspendWanted("user")) == []
    assert made.step(ResumeWanted("user")) == [ResumeEngine("e0")]
    assert made.step(ResumeWanted("user")) == []


@pytest.mark.parametrize("holder", ["user", "updater"])
def test_drain_becomes_interrupt_when_anybody_asks_for_it(holder):
    made = opened()
    assert made.step(SuspendWanted("user", "drain")) == [SuspendEngine("e0", "drain")]
    assert made.step(SuspendWanted(holder, "interrupt")) == [SuspendEngine("e0", "interrupt")]


@pytest.mark.parametrize("how", ["drain", "freeze", "interrupt"])
def test_interrupt_stays_interrupt(how):
    made = opened()
    made.step(SuspendWanted("user", "interrupt"))
    assert made.step(SuspendWanted("updater", how)) == []


def test_an_engine_that_joins_during_a_hold_is_held():
    made = opened()
    made.step(SuspendWanted("user", "drain"))
    assert made.step(EngineJoined("e1")) == [SuspendEngine("e1", "drain")]
    assert made.step(ResumeWanted("user")) == [ResumeEngine("e0"), ResumeEngine("e1")]


def test_an_engine_that_joins_during_several_holds_takes_the_strictest():
    made = opened()
    made.steps(SuspendWanted("user", "drain"), SuspendWanted("updater", "interrupt"))
    assert made.step(EngineJoined("e1")) == [SuspendEngine("e1", "interrupt")]


def test_a_hold_before_any_engine_holds_the_first():
    made = opened(engines=0)
    assert made.step(SuspendWanted("user")) == []
    assert made.step(EngineJoined("e0")) == [SuspendEngine("e0", "interrupt")]


def test_a_hold_on_some_engines_does_not_hold_those_that_join():
    made = opened()
    made.step(SuspendWanted("updater", engines=("e0",)))
    assert made.step(EngineJoined("e1")) == []


def test_a_restarted_engine_is_held_again():
    made = opened()
    made.steps(SuspendWanted("user"), EngineLost("e0"))
    assert made.step(EngineJoined("e0")) == [SuspendEngine("e0", "interrupt")]


def test_a_stranger_cannot_resume():
    made = opened(engines=2)
    made.step(SuspendWanted("user"))
    before = made.snapshot()
    assert made.step(ResumeWanted("stranger")) == []
    assert made.snapshot() == before


def test_environments_start_while_engines_are_held():
    made = opened(size=1, batch=4, slots=1)
    made.step(SuspendWanted("user"))
    assert "engines are held by user" in made.why_waiting("trainer")
    assert played(made.step(WorkerJoined("w1", 2))) == ["g1.a0", "g2.a0"]


def test_a_resumed_engine_is_as_good_as_any():
    made = opened(size=1, batch=4, slots=1)
    made.steps(*serving("e1"), SuspendWanted("updater", engines=("e1",)), ResumeWanted("updater"))
    assert [lease.engine for lease in only(made.step(WorkerJoined("w1", 1)), GrantLease)] == ["e1"]


def test_an_engine_that_begins_to_serve_takes_over_what_a_held_one_keeps_waiting():
    made = opened(size=1, batch=3, slots=3)
    made.step(SuspendWanted("updater", engines=("e0",)))
    moves = only(made.steps(*serving("e1")), MoveAttempt)
    assert [move.engine for move in moves] == ["e1", "e1", "e1"]


def test_an_engine_that_joins_held_shares_with_the_others():
    made = opened(size=1, batch=4, slots=4)
    made.steps(SuspendWanted("user"), EngineJoined("e1"))
    assert len(made.step(EngineReady("e1"))) == 2


def test_an_unknown_engine_cannot_be_held():
    made = opened(engines=2)
    with refusal(made, IllegalEvent, match="unknown engine 'e7'; known: e0, e1"):
        made.step(SuspendWanted("user", engines=("e0", "e7")), 1.0)


def test_attempts_end_while_their_engine_is_held():
    made = opened(size=1, batch=2, slots=2)
    made.step(SuspendWanted("user"))
    assert len(complete(made, 0, 1)) == 1
