"""A machine restored from a snapshot goes on exactly like the one it was taken from."""

import pytest
from tests.core.given import Checked, complete, ended, failed, feed, opened, queued, serving, wanted

from windrow.core.events import (
    BatchTrained,
    BreakerReset,
    ConsumerLost,
    EngineAssigned,
    EngineLost,
    EngineReleased,
    EpisodeEnded,
    GroupJudged,
    ResumeWanted,
    ShrinkWanted,
    SourceEnded,
    SuspendWanted,
    TaskArrived,
    TimePassed,
    VersionPublished,
    WorkerBeat,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from windrow.errors import ConfigError, WindrowError
from windrow.types import AttemptId, from_bytes, to_bytes


def playing():
    return opened(size=2, batch=4, spares=1, slots=4, engines=2)


def resting():
    made = opened(size=2, batch=4, slots=4, beat_s=50.0)
    made.step(failed(0, 0), 1.0)
    made.step(failed(1, 0, "engine"), 2.0)
    return made


def homeless():
    made = opened(size=1, batch=4, slots=2)
    made.step(EngineLost("e0"))
    return made


def judging():
    made = opened(size=1, batch=4, slots=8, filter="external", staleness=1.0)
    complete(made, 0, 1, 2)
    made.step(GroupJudged(1, accepted=True))
    return made


def delivered():
    made = opened(size=1, batch=2, slots=8, staleness=1.0, on_stale="wait")
    complete(made, 0, 1)
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    return made


def trained():
    made = opened(size=1, batch=2, slots=8, staleness=1.0)
    complete(made, 0, 1)
    made.step(BatchTrained(0))
    return made


def aside():
    made = opened(size=1, batch=2, tail=1.0, slots=3)
    complete(made, 0, 1)
    return made


def halted():
    made = opened(size=1, batch=4, slots=3, breaker_window=2, env_retries=0)
    made.steps(failed(0, 0), failed(1, 0))
    return made


def shrunk_and_held():
    made = opened(size=1, batch=4, slots=3, engines=3)
    made.steps(ShrinkWanted((1,)), SuspendWanted("user", "drain"), EngineAssigned("e2", "train"))
    return made


def leaving():
    made = opened(size=1, batch=4, slots=2, kinds={"": 3})
    made.steps(WorkerJoined("w1", 2), WorkerLeft("w0"))
    return made


def scoring():
    made = opened(size=1, batch=4, slots=3, lease_s=60.0)
    made.step(EpisodeEnded(AttemptId(2, 0), 5), 1.0)
    return made


def syncing():
    made = opened(size=1, batch=4, slots=6, engines=3, staleness=1.0, backoff_s=0.0, lease_s=60.0)
    made.steps(failed(0, 0, "engine"), failed(0, 1, "engine"), SuspendWanted("user"), VersionPublished(1))
    made.step(TimePassed(), 60.0)
    return made


def taken_back():
    made = delivered()
    made.step(ConsumerLost("trainer"))
    return made


SITUATIONS = [
    playing, resting, homeless, judging, delivered, trained, aside, halted, shrunk_and_held, leaving, scoring, syncing,
    taken_back,
]  # fmt: skip

FUTURE = [
    BreakerReset(), *serving("e9"), WorkerJoined("w9", 3), WorkerBeat("w9"), EngineReleased("e1"),
    ended(2, 0, tokens=3), ended(3, 0, tokens=5), GroupJudged(0, accepted=True), failed(2, 0), WorkerLost("w0"),
    TimePassed(), ResumeWanted("user"), BatchTrained(0), wanted(2, 2), wanted(-1, 0, "judge", "val"),
    VersionPublished(2, loaded=True), SourceEnded("train"), SourceEnded("val"), TimePassed(),
]  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_restored_machine_has_the_same_future(situation):
    made = situation()
    twin = Checked.restore(made.snapshot())
    assert isinstance(twin, Checked)
    for count, event in enumerate(FUTURE):
        now = made.now + 10.0 * count
        assert outcome(twin, event, now) == outcome(made, event, now)
        assert twin.next_deadline == made.next_deadline
        assert twin.snapshot() == made.snapshot()


def outcome(made, event, now):
    """What a step gives, or what it raises."""
    try:
        return made.step(event, now)
    except WindrowError as error:
        return repr(error)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_snapshot_of_a_restored_machine_is_the_same_bytes(situation):
    data = situation().snapshot()
    assert Checked.restore(data).snapshot() == data


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_restored_machine_keeps_its_promises(situation):
    Checked.restore(situation().snapshot()).check()


def test_taking_a_snapshot_changes_nothing():
    made = playing()
    assert made.snapshot() == made.snapshot()
    made.check()


def test_a_restored_machine_shares_nothing_with_the_first():
    made = playing()
    data = made.snapshot()
    twin = Checked.restore(data)
    made.steps(ended(0, 0), ended(0, 1))
    assert twin.snapshot() == data


def test_a_restored_machine_knows_its_engines():
    made = queued(size=1, batch=4)
    made.steps(*serving("e1", capacity=3), *serving("e2"), EngineAssigned("e2", "train"))
    twin = Checked.restore(made.snapshot())
    leases = made.step(WorkerJoined("w0", 4))
    assert len(leases) == 4
    assert twin.step(WorkerJoined("w0", 4), 0.0) == leases


def test_what_was_learnt_is_restored():
    made = opened(size=1, batch=1, tasks=0, env_retries=0)
    made.step(TaskArrived("train", 0, task="slow"))
    made.step(ended(0, 0, tokens=7), 9.0)
    made.step(wanted(1, step=1))
    feed(made, 1)
    made.step(failed(1, 0), 10.0)
    twin = Checked.restore(made.snapshot())
    assert twin._books.lengths == made._books.lengths
    assert twin.dead_letters == made.dead_letters != []
    assert twin._books.faults.failed == 1


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80", to_bytes([1, 2]), to_bytes({"format": 1})])
def test_a_snapshot_that_cannot_be_read_restores_nothing(data):
    with pytest.raises(ConfigError, match="the snapshot cannot be read: "):
        Checked.restore(data)


def test_a_snapshot_that_was_cut_off_restores_nothing():
    with pytest.raises(ConfigError, match="the snapshot cannot be read: "):
        Checked.restore(playing().snapshot()[:-1])


def test_another_format_is_refused_by_its_number_whatever_else_it_has():
    state = from_bytes(playing().snapshot(), dict)
    state["format"] = 2
    state["unheard_of"] = state.pop("groups")
    with pytest.raises(ConfigError, match="the snapshot has format 2; this version reads format 1"):
        Checked.restore(to_bytes(state))
