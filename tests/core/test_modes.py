"""Training and validation on one set of workers and engines."""

import pytest
from tests.core.given import Checked, complete, ended, feed, fetched, only, played, serving, wanted

from windrow.core.commands import DeliverBatch, DropGroup, GrantLease
from windrow.core.events import EngineAssigned, EngineJoined, SourceEnded, VersionPublished, WantWithdrawn, WorkerJoined
from windrow.core.settings import ModeSettings, Settings


def both(slots: int, train_weight: float = 1.0, val_weight: float = 1.0) -> Checked:
    """Ten training groups and ten validation groups of one attempt each wait for slots."""
    train = ModeSettings(group_size=1, batch_size=10, weight=train_weight)
    val = ModeSettings(group_size=1, batch_size=10, on_stale="keep", ahead=False, weight=val_weight)
    made = Checked(Settings(train=train, val=val))
    made.steps(*serving("e0"), wanted(10), wanted(10, consumer="judge", mode="val"))
    feed(made, 10)
    feed(made, 10, "val")
    made.step(WorkerJoined("w0", slots))
    return made


@pytest.mark.parametrize(
    ("train_weight", "val_weight", "train", "val"), [(1.0, 1.0, 4, 4), (3.0, 1.0, 6, 2), (1.0, 3.0, 2, 6)]
)
def test_slots_are_shared_by_weight(train_weight, val_weight, train, val):
    lanes = both(8, train_weight, val_weight)._books.lanes
    assert (lanes["train"].running, lanes["val"].running) == (train, val)


def test_a_validation_that_is_given_up_leaves_training_alone():
    made = both(4)
    complete(made, 10)
    drops = only(made.step(WantWithdrawn("judge")), DropGroup)
    assert [drop.group for drop in drops] == [*range(10, 20)]
    assert {drop.why for drop in drops} == {"cancelled"}
    assert made._books.lanes["train"].running == 4


def test_training_comes_first_when_both_have_their_share():
    lanes = both(3)._books.lanes
    assert (lanes["train"].running, lanes["val"].running) == (2, 1)


def test_a_free_slot_goes_to_the_mode_that_has_less_than_its_share():
    made = both(4)
    assert played(made.step(ended(0, 0))) == ["g2.a0"]
    assert played(made.step(ended(10, 0))) == ["g12.a0"]


def test_the_smaller_mode_does_not_starve():
    made = both(4, train_weight=9.0)
    running = made._books.lanes
    assert (running["train"].running, running["val"].running) == (3, 1)


def test_a_share_that_the_other_mode_cannot_use_is_lent():
    made = both(4)
    made.step(SourceEnded("val"))
    complete(made, 10, 11, 12, 13, 14, 15, 16, 17, 18)
    assert made._books.lanes["train"].running == 3
    complete(made, 19)
    assert made._books.lanes["train"].running == 4


def test_a_mode_without_an_engine_does_not_keep_the_other_from_playing():
    made = Checked(Settings(train=ModeSettings(group_size=1, batch_size=1)))
    made.steps(*serving("e0"), EngineAssigned("e0", "val"), WorkerJoined("w0", 2))
    made.steps(wanted(1), wanted(1, consumer="judge", mode="val"))
    feed(made, 1)
    assert played(feed(made, 1, "val")) == ["g1.a0"]


def test_a_mode_without_an_engine_plays_when_it_gets_one():
    made = Checked(Settings(train=ModeSettings(group_size=1, batch_size=1)))
    made.steps(*serving("e0"), EngineAssigned("e0", "val"), WorkerJoined("w0", 2), wanted(1))
    assert feed(made, 1) == []
    assert only(made.step(EngineAssigned("e0", None)), GrantLease)[0].engine == "e0"


def test_ledgers_are_separate():
    made = both(4)
    complete(made, 0, 1, 10)
    train, val = made.ledgers["train"], made.ledgers["val"]
    assert (train.groups.admitted, val.groups.admitted) == (10, 10)
    assert (train.attempts.admitted, val.attempts.admitted) == (4, 3)
    assert train.attempts.balance == val.attempts.balance == 0


def test_batches_of_both_modes_are_numbered_together_and_kept_apart():
    made = both(20)
    val = only(complete(made, *range(10, 20)), DeliverBatch)[0]
    train = only(complete(made, *range(10)), DeliverBatch)[0]
    assert (val.mode, val.batch, val.groups) == ("val", 0, tuple(range(10, 20)))
    assert (train.mode, train.batch, train.groups) == ("train", 1, tuple(range(10)))


def test_a_consumer_of_one_mode_does_not_acknowledge_the_other():
    made = both(20)
    complete(made, *range(10, 20))
    made.step(wanted(10, step=5, consumer="judge"))
    assert [*made._books.batches] == [0]


def test_validation_begins_when_it_is_asked_for_and_no_earlier():
    made = Checked(Settings())
    commands = made.steps(wanted(64, consumer="judge", mode="val"))
    assert fetched(commands) == 64
    assert {fetch.mode for fetch in commands} == {"val"}  # type: ignore[union-attr]


def test_a_new_version_leaves_validation_alone():
    made = both(20)
    dropped = {drop.group for drop in only(made.step(VersionPublished(1, loaded=True)), DropGroup)}
    assert dropped == set(range(10))


def test_an_engine_set_aside_for_validation_keeps_its_version():
    made = both(20)
    made.steps(EngineJoined("e1", 0), EngineAssigned("e1", "val"))
    made.step(VersionPublished(1, loaded=True))
    engines = made._books.engines.table
    assert (engines["e0"].version, engines["e1"].version) == (1, 0)
