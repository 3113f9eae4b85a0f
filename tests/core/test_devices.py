"""Shrink and expand: whole or not at all."""

import pytest
from tests.core.given import complete, machine, only, opened, refusal, serving

from windrow.core.commands import GrantLease, LoadWeights, MoveAttempt, ReleaseEngine, RestoreEngine
from windrow.core.events import (
    EngineAssigned,
    EngineJoined,
    EngineLost,
    EngineReady,
    EngineReleased,
    ExpandWanted,
    ShrinkWanted,
    VersionPublished,
    WeightsLoaded,
)
from windrow.core.machine import Machine
from windrow.errors import Refused
from windrow.types import AttemptId


def test_a_shrink_moves_attempts_and_releases_the_engine():
    made = opened(size=1, batch=2, slots=2, engines=2)
    assert made.step(ShrinkWanted((0,))) == [MoveAttempt(AttemptId(0, 0), "w0", "e1"), ReleaseEngine("e0")]


def test_attempts_do_not_move_to_an_engine_that_goes_too():
    made = opened(size=1, batch=3, slots=3, engines=3)
    commands = made.step(ShrinkWanted((0, 1)))
    assert {move.engine for move in only(commands, MoveAttempt)} == {"e2"}
    assert only(commands, ReleaseEngine) == [ReleaseEngine("e0"), ReleaseEngine("e1")]


def test_a_released_engine_gets_nothing():
    made = opened(size=1, batch=4, slots=2, engines=2)
    made.steps(ShrinkWanted((0,)), EngineReleased("e0"))
    assert {lease.engine for lease in only(complete(made, 0, 1), GrantLease)} == {"e1"}


def test_one_device_takes_the_whole_engine():
    made = opened(size=1, batch=1)
    made.steps(*serving("wide", devices=(4, 5)))
    assert only(made.step(ShrinkWanted((5,))), ReleaseEngine) == [ReleaseEngine("wide")]


def test_a_shrink_that_would_leave_no_engine_is_refused_whole():
    made = opened(size=1, batch=2, slots=2, engines=2)
    with refusal(made, Refused, match=r"devices \[0, 1\] would leave no engine for train; .*: e0, e1"):
        made.step(ShrinkWanted((0, 1)), 1.0)


def test_a_shrink_that_would_leave_a_mode_without_an_engine_is_refused():
    made = opened(size=1, batch=2, engines=2)
    made.step(EngineAssigned("e0", "train"))
    with refusal(made, Refused, match=r"would leave no engine for val; .*: e1"):
        made.step(ShrinkWanted((1,)), 1.0)


def test_an_engine_that_is_not_warm_does_not_count_as_left():
    made = opened(size=1, batch=1)
    made.step(EngineJoined("e1", devices=(1,)))
    with refusal(made, Refused, match="would leave no engine for train; .*: e0"):
        made.step(ShrinkWanted((0,)), 1.0)


def test_engines_that_all_warm_up_cannot_all_go():
    made = machine()
    made.step(EngineJoined("e0", devices=(0,)))
    with refusal(made, Refused, match=r"devices \[0\] would leave no engine"):
        made.step(ShrinkWanted((0,)), 1.0)


def test_an_engine_that_warms_up_may_go_while_another_serves():
    made = opened(size=1, batch=1)
    made.step(EngineJoined("e1", devices=(1,)))
    assert made.step(ShrinkWanted((1,))) == [ReleaseEngine("e1")]


@pytest.mark.parametrize("event", [ShrinkWanted, ExpandWanted])
@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((), r"no engine has devices \[\]; known devices: \[0, 1\]"),
        ((7,), r"no engine has devices \[7\]; known devices: \[0, 1\]"),
        ((0, 7, 8), r"no engine has devices \[7, 8\]"),
    ],
)
def test_devices_that_nobody_has_are_refused_whole(event, devices, message):
    made = opened(engines=2)
    with refusal(made, Refused, match=message):
        made.step(event(devices), 1.0)


@pytest.mark.parametrize("event", [ShrinkWanted, ExpandWanted])
def test_devices_of_an_engine_that_died_are_known_and_free(event):
    made = opened(engines=3)
    made.step(EngineLost("e1", "fire"))
    assert only(made.step(ShrinkWanted((0, 1))), ReleaseEngine) == [ReleaseEngine("e0")]
    assert only(made.step(ExpandWanted((0, 1))), RestoreEngine) == [RestoreEngine("e0", load=True)]
    assert made.step(event((1,))) == []
    with refusal(made, Refused, match=r"no engine has devices \[7\]; known devices: \[0, 1, 2\]"):
        made.step(event((1, 7)), 1.0)


def test_a_restored_machine_knows_the_devices_of_an_engine_that_died():
    made = opened(engines=2)
    made.step(EngineLost("e1", "fire"))
    assert Machine.restore(made.snapshot()).step(ShrinkWanted((1,)), 1.0) == []


def test_a_shrink_after_which_only_dead_engines_remain_is_refused():
    made = opened(engines=2)
    made.step(EngineLost("e1", "fire"))
    with refusal(made, Refused, match="would leave no engine for train; .*: e0"):
        made.step(ShrinkWanted((0,)), 1.0)


def test_shrinking_twice_is_harmless():
    made = opened(engines=2)
    made.step(ShrinkWanted((0,)))
    assert made.step(ShrinkWanted((0,))) == []
    made.step(EngineReleased("e0"))
    assert made.step(ShrinkWanted((0,))) == []


def shrunk(**rest):
    """Two engines, of which e0 has given its device back; four attempts play on e1."""
    made = opened(size=1, batch=4, slots=4, engines=2, **rest)
    made.steps(ShrinkWanted((0,)), EngineReleased("e0"))
    return made


def test_an_expand_restores_the_engine_which_takes_its_share():
    made = shrunk()
    assert made.step(ExpandWanted((0,))) == [RestoreEngine("e0", load=True)]
    moves = made.step(EngineReady("e0"))
    assert [(str(m.attempt), m.engine) for m in only(moves, MoveAttempt)] == [("g3.a0", "e0"), ("g2.a0", "e0")]


def test_a_restored_engine_that_is_behind_loads_first():
    made = shrunk(staleness=1.0)
    made.steps(VersionPublished(1), WeightsLoaded("e1", 1), ExpandWanted((0,)))
    assert made.step(EngineReady("e0")) == [LoadWeights("e0", 1)]
    assert len(only(made.step(WeightsLoaded("e0", 1)), MoveAttempt)) == 2


def test_a_restored_engine_may_have_its_weights_already():
    made = shrunk(staleness=1.0)
    made.steps(VersionPublished(1), WeightsLoaded("e1", 1))
    assert made.step(ExpandWanted((0,), skip_load=True)) == [RestoreEngine("e0", load=False)]
    assert len(only(made.step(EngineReady("e0")), MoveAttempt)) == 2


def test_an_expand_may_overtake_the_release():
    made = opened(size=1, batch=2, slots=2, engines=2)
    made.step(ShrinkWanted((0,)))
    assert made.step(ExpandWanted((0,))) == [RestoreEngine("e0", load=True)]
    assert made.step(EngineReleased("e0")) == []
    assert made.late == 1
    assert len(made.step(EngineReady("e0"))) == 1


def test_a_ready_that_a_shrink_overtook_is_late():
    made = shrunk()
    assert made.step(EngineReady("e0")) == []
    assert made.late == 1


def test_part_of_an_engines_devices_is_refused_whole():
    made = opened(size=1, batch=1, engines=2)
    made.steps(*serving("wide", devices=(4, 5)), ShrinkWanted((0, 4)))
    with refusal(made, Refused, match=r"engine 'wide' needs devices \[4\] too; got \[0, 5\]"):
        made.step(ExpandWanted((0, 5)), 1.0)


def test_expanding_what_serves_is_harmless():
    assert opened(engines=2).step(ExpandWanted((0, 1))) == []


def test_an_engine_that_left_in_the_middle_of_loading_keeps_what_it_confirms():
    made = shrunk(staleness=1.0)
    made.steps(VersionPublished(1, loaded=False), WeightsLoaded("e0", 1))
    assert made._books.engines.table["e0"].version == 1
    assert made._books.engines.table["e0"].state == "away"
