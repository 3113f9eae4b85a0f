"""What became of everything: waste by cause in attempts, tokens and seconds, and ledgers that balance."""

from tests.core.given import complete, ended, failed, only, opened, progressed, wanted

from windrow.core.commands import DeliverBatch
from windrow.core.events import BatchTrained, TimePassed, VersionPublished, WorkerLost
from windrow.core.ledger import Waste


def waste(made):
    return made.ledgers["train"].waste


def test_a_run_without_trouble_wastes_nothing():
    made = opened(size=2, batch=4)
    complete(made, 0, 1)
    assert waste(made) == {}


def test_spares():
    made = opened(size=1, batch=2, spares=1)
    made.step(progressed(0, 1, tokens=30), 1.0)
    made.step(ended(0, 0, tokens=100), 4.0)
    assert waste(made) == {"spare": Waste(1, 30, 4.0)}


def test_failures():
    made = opened(size=1, batch=1)
    made.step(progressed(0, 0, tokens=30), 1.0)
    made.step(failed(0, 0, tokens=50), 2.5)
    assert waste(made) == {"failed": Waste(1, 50, 2.5)}


def test_progress_that_comes_in_another_order_takes_nothing_back():
    made = opened(size=1, batch=1)
    made.steps(progressed(0, 0, tokens=50), progressed(0, 0, tokens=20))
    made.step(failed(0, 0))
    assert waste(made)["failed"].tokens == 50


def test_a_poisoned_group_with_its_siblings():
    """The one that failed after 2 s, its finished sibling of 1 s, and the one that still plays."""
    made = opened(size=3, batch=3, env_retries=0)
    made.step(ended(0, 0, tokens=10), 1.0)
    made.step(progressed(0, 1, tokens=20), 1.0)
    made.step(failed(0, 2, tokens=5), 2.0)
    assert waste(made) == {"failed": Waste(3, 35, 5.0)}
    assert made.ledgers["train"].attempts.dropped == {"failed": 1, "poisoned": 2}


def test_leases_that_ran_out():
    made = opened(size=1, batch=1, lease_s=60.0)
    made.step(TimePassed(), 61.0)
    assert waste(made) == {"failed": Waste(1, 0, 61.0)}


def test_lost_workers():
    made = opened(size=1, batch=2)
    made.step(progressed(1, 0, tokens=7))
    made.step(WorkerLost("w0"), 3.0)
    assert waste(made) == {"lost": Waste(2, 7, 6.0)}


def test_filtered_groups():
    made = opened(size=2, batch=2, filter="varied")
    made.step(ended(0, 0, tokens=10), 1.0)
    made.step(ended(0, 1, tokens=20), 3.0)
    assert waste(made) == {"filtered": Waste(2, 30, 4.0)}


def test_stale_groups():
    made = opened(size=2, batch=2)
    made.step(ended(0, 0, tokens=10), 1.0)
    made.step(VersionPublished(1, loaded=True), 5.0)
    assert waste(made) == {"stale": Waste(2, 10, 6.0)}


def test_groups_that_were_set_aside():
    made = opened(size=1, batch=1, tail=1.0, slots=2)
    made.step(progressed(1, 0, tokens=9))
    made.step(ended(0, 0), 2.0)
    assert waste(made) == {"tail": Waste(1, 9, 2.0)}


def test_ledgers_tell_what_became_of_each_group_and_attempt():
    made = opened(size=2, batch=2, spares=1, staleness=1.0, env_retries=0, slots=6)
    complete(made, 0)  # delivered, with one spare cancelled
    groups, attempts = made.ledgers["train"].groups, made.ledgers["train"].attempts
    assert (groups.admitted, groups.delivered, groups.alive, groups.trained) == (2, 1, 1, 0)
    assert (attempts.admitted, attempts.delivered, attempts.alive) == (6, 2, 3)
    made.step(BatchTrained(0))
    made.step(failed(1, 0))
    assert (groups.trained, groups.delivered, groups.alive, groups.dropped) == (1, 0, 0, {"poisoned": 1})
    assert (attempts.trained, attempts.dropped) == (2, {"spare": 1, "failed": 1, "poisoned": 2})
    assert groups.balance == attempts.balance == 0


def test_lags_of_delivered_groups_are_summed():
    made = opened(size=1, batch=2, staleness=1.0)
    complete(made, 0, 1)
    made.steps(VersionPublished(1, loaded=True), wanted(2, step=1))
    batch = only(complete(made, 2, 3), DeliverBatch)[0]
    ledger = made.ledgers["train"]
    assert batch.lags == (1, 1)
    assert (ledger.lag_sum, ledger.lag_max, ledger.lags) == (2, 1, 4)


def test_a_batch_that_is_handed_over_again_is_booked_once():
    made = opened(size=1, batch=1)
    complete(made, 0)
    made.step(wanted(1))
    assert made.ledgers["train"].groups.delivered == 1
    assert made.ledgers["train"].lags == 1
