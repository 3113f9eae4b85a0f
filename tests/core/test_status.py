"""What a machine is doing, as a copy, and what it has ordered and not heard of since."""

import pytest
from tests.core.given import Checked, complete, failed, opened, progressed, serving, staffed, wanted

from windrow.core.commands import FetchTask, JudgeGroup, LoadWeights, ReleaseEngine, RestoreEngine
from windrow.core.events import (
    BreakerReset,
    EngineAssigned,
    EngineReady,
    EngineReleased,
    EpisodeEnded,
    ExpandWanted,
    GroupJudged,
    ShrinkWanted,
    ShutdownWanted,
    SuspendWanted,
    VersionPublished,
    WeightsLoaded,
)
from windrow.core.machine import Machine
from windrow.errors import Refused
from windrow.types import AttemptId


def busy() -> Checked:
    """g0 and g1 are delivered, g2 is ready, g3 plays, g4 waits for its score, three more are asked for."""
    made = opened(size=1, batch=2, staleness=3.0, tasks=5)
    complete(made, 0, 1, 2)
    made.step(EpisodeEnded(AttemptId(4, 0), 3), 5.0)
    made.step(wanted(2, step=1, consumer="other"))
    return made


def test_the_status_says_what_plays_and_who_waits():
    lane = busy().status().lanes["train"]
    assert (lane.groups_in_play, lane.groups_ready, lane.groups_untrained) == (2, 1, 2)
    assert (lane.attempts_playing, lane.tasks_asked, lane.cap) == (1, 3, 8)
    assert lane.begun == {0: 3}
    assert [(want.consumer, want.n) for want in lane.waiting] == [("other", 2)]


def test_the_status_says_how_the_run_is():
    status = busy().status()
    assert (status.now, status.version, status.late, status.halted, status.closed) == (5.0, 0, 0, "", False)
    assert (status.attempts_scoring, status.slots, status.slots_free) == (1, 8, 7)


def test_the_status_says_what_engines_are_for():
    made = staffed(engines=2)
    made.steps(EngineAssigned("e1", "val"), SuspendWanted("user", engines=("e1",)), VersionPublished(1))
    e0, e1 = made.status().engines
    assert (e0.engine, e0.state, e0.version, e0.usable_for, e0.holders) == ("e0", "serving", 0, (), ())
    assert (e1.usable_for, e1.holders, e1.attempts, e1.strikes) == (("val",), ("user",), 0, 0)


def test_the_status_lists_quarantined_tasks_and_the_end():
    made = opened(size=1, batch=1, env_retries=0)
    made.steps(failed(0, 0), ShutdownWanted())
    assert made.status().quarantined == ("train:#0",)
    assert made.status().closed


def test_the_status_is_a_copy():
    made = busy()
    before = made.status()
    made.step(progressed(3, 0, 9), 6.0)
    complete(made, 3)
    assert before == busy().status() != made.status()


# what was ordered and not answered


def test_tasks_that_were_asked_for_are_outstanding():
    made = opened(size=1, batch=4, tasks=1)
    assert made.outstanding() == [FetchTask("train", "", 3)]


def test_a_verdict_is_outstanding_until_it_comes():
    made = opened(size=1, batch=1, filter="external")
    complete(made, 0)
    assert made.outstanding() == [JudgeGroup(0, (AttemptId(0, 0),))]
    made.step(GroupJudged(0, accepted=True))
    assert made.outstanding() == []


def test_weights_are_outstanding_until_they_are_confirmed():
    made = staffed(engines=2)
    made.steps(VersionPublished(1), WeightsLoaded("e0", 1))
    assert made.outstanding() == [LoadWeights("e1", 1)]


def test_a_release_is_outstanding_until_it_is_done():
    made = staffed(engines=2)
    made.step(ShrinkWanted((1,)))
    assert made.outstanding() == [ReleaseEngine("e1")]
    made.step(EngineReleased("e1"))
    assert made.outstanding() == []


@pytest.mark.parametrize("skip_load", [False, True])
def test_a_restore_is_outstanding_until_the_engine_is_warm(skip_load):
    made = staffed(engines=2)
    made.steps(VersionPublished(1), WeightsLoaded("e0", 1), ShrinkWanted((1,)), ExpandWanted((1,), skip_load))
    assert made.outstanding() == [RestoreEngine("e1", load=not skip_load)]
    made.step(EngineReady("e1"))
    assert RestoreEngine("e1", load=not skip_load) not in made.outstanding()


def test_an_idle_machine_has_nothing_outstanding():
    made = staffed()
    made.steps(*serving("e1"), BreakerReset())
    assert made.outstanding() == []


def test_a_restored_machine_has_the_same_outstanding():
    made = busy()
    made.steps(VersionPublished(1), SuspendWanted("user"))
    again = Machine.restore(made.snapshot())
    assert again.outstanding() == made.outstanding() != []
    assert again.status() == made.status()


def test_the_number_of_the_next_group_is_known_before_its_task_arrives():
    made = opened(size=1, batch=2, staleness=3.0, tasks=3)
    assert made.next_group == 3
    assert "g2" in made.story(2)


def test_what_would_be_refused_can_be_asked_without_asking_for_it():
    made = busy()
    before = made.snapshot()
    made.check_want(wanted(2, step=2, consumer="other"))
    with pytest.raises(Refused, match="multiple of the group size"):
        made.check_want(wanted(0, step=2, consumer="other"))
    assert made.snapshot() == before


def test_the_status_names_the_workers():
    assert busy().status().workers == ("w0",)
