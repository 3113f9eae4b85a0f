"""`check` sees every broken promise: one book of a healthy machine is falsified at a time."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from tests.core.given import Checked, complete, ended, opened, staffed, wanted

from windrow.core.batches import Want
from windrow.core.books import Lane
from windrow.core.events import EngineLost, EpisodeEnded, WantWithdrawn
from windrow.core.groups import Attempt
from windrow.core.ledger import Waste
from windrow.errors import InternalError
from windrow.types import AttemptId

Falsify = Callable[[Checked], object]
NOBODY = AttemptId(9, 9)


def healthy() -> Checked:
    """g0 is delivered; in g1 one attempt has finished and one plays; g2 is ready; g3 waits for a slot beside g4."""
    made = opened(size=2, batch=2, staleness=3.0, slots=2)
    complete(made, 0)
    made.step(ended(1, 0, tokens=3), 1.0)
    made.step(ended(2, 0, tokens=3), 1.0)
    return made


def scored() -> Checked:
    """The same, and the attempt of g1 that played waits for its score."""
    made = healthy()
    made.step(EpisodeEnded(one_playing(made).id, 5), 2.0)
    return made


def ready() -> Checked:
    """Both groups of a batch are complete, and nobody waits for them."""
    made = opened(size=1, batch=2)
    made.step(WantWithdrawn("trainer"))
    complete(made, 0, 1)
    return made


def hard() -> Checked:
    """Two groups play under a hard bound of one version."""
    return opened(size=1, batch=1, staleness=1.0, on_stale="wait")


def everything() -> Checked:
    """Somebody waits for everything, and no task has come."""
    made = staffed(size=1, batch=1)
    made.step(wanted(-1))
    return made


def spacious() -> Checked:
    """Two attempts play on eight slots."""
    return opened(size=1, batch=2, slots=8)


class Case(NamedTuple):
    falsify: Falsify
    given: Callable[[], Checked]
    message: str


CASES: dict[str, Case] = {}


def broken(number: int, message: str, given: Callable[[], Checked] = healthy) -> Callable[[Falsify], Falsify]:
    """Falsifies a book, after which `check` must say so."""

    def listed(falsify: Falsify) -> Falsify:
        CASES[falsify.__name__] = Case(falsify, given, f"promise {number} is broken: {message}")
        return falsify

    return listed


def train(made: Checked) -> Lane:
    return made._books.lanes["train"]


def one_playing(made: Checked) -> Attempt:
    return next(a for g in made._books.groups.values() for a in g.attempts.values() if not a.finished)


@pytest.mark.parametrize("given", [healthy, scored, ready, hard, everything, spacious])
def test_a_healthy_machine_passes(given):
    given().check()


def test_the_healthy_machine_is_in_every_state():
    states = [group.state for group in healthy()._books.groups.values()]
    assert states[0] == "delivered"
    assert {"open", "delivered"} <= {*states}


# 1: conservation


@broken(1, "train groups do not balance")
def a_group_from_nowhere(made):
    train(made).ledger.groups.admitted += 1


@broken(1, "train attempts do not balance")
def an_attempt_trained_twice(made):
    train(made).ledger.attempts.trained += 1


@broken(1, "train groups alive: 4, 3")
def a_group_that_nobody_knows(made):
    train(made).ledger.groups.admitted += 1
    train(made).ledger.groups.alive += 1


@broken(1, "train attempts alive: ")
def an_attempt_that_nobody_knows(made):
    train(made).ledger.attempts.admitted += 1
    train(made).ledger.attempts.alive += 1


@broken(1, "train delivered groups")
def a_delivered_group_too_many(made):
    train(made).untrained += 1


@broken(1, "train delivered attempts")
def a_delivered_attempt_too_many(made):
    train(made).ledger.attempts.admitted += 1
    train(made).ledger.attempts.delivered += 1


@broken(1, "train waste ")
def waste_of_nothing(made):
    train(made).ledger.waste["spare"] = Waste(1, 0, 0.0)


@broken(1, "train in play: 4, counted 3")
def a_group_too_many_in_play(made):
    train(made).alive += 1


@broken(1, "train set aside")
def a_group_set_aside_that_is_not(made):
    train(made).aside[1] = None


# 2: attempts, groups, batches


@broken(2, r"playing attempts\ng1 \(train")
def a_group_that_plays_too_much(made):
    made._books.groups[1].running += 1


@broken(2, r"length 9.0\ng1 \(train")
def a_group_that_took_longer_than_its_attempts(made):
    made._books.groups[1].seconds = 9.0


@broken(2, r"tokens 4\ng1 \(train")
def a_group_with_a_token_too_many(made):
    made._books.groups[1].tokens += 1


@broken(2, r"finished attempts\ng3 \(train")
def a_group_that_has_finished_too_much(made):
    made._books.groups[3].finished += 1


@broken(2, r"more attempts than size and spares\ng1 ")
def a_group_that_rests_too_much(made):
    made._books.groups[1].resting.extend([7, 8])


@broken(2, r"an index from nowhere\ng1 ")
def an_index_that_was_never_given(made):
    made._books.groups[1].next_index = 1


@broken(2, r"two attempts on one seat\ng1 ")
def a_seat_taken_twice(made):
    made._books.groups[1].attempts[0].seat = made._books.groups[1].attempts[1].seat


@broken(2, r"a seat too many\ng1 ")
def a_seat_that_the_group_has_not(made):
    made._books.groups[1].attempts[0].seat = 2


@broken(2, "batch 0 has other attempts")
def a_batch_with_one_attempt_twice(made):
    made._books.batches[0].attempts = (AttemptId(0, 0), AttemptId(0, 0))


@broken(2, "batch 0 holds g1, which is not delivered")
def a_batch_with_a_group_that_lives(made):
    made._books.batches[0].groups = (1,)


@broken(2, "batch 0 holds g9, which is not delivered")
def a_batch_with_a_group_that_never_was(made):
    made._books.batches[0].groups = (9,)


@broken(2, r"a group in two batches: \[\(0, 2\)\]")
def a_group_in_two_batches(made):
    made._books.batches[1] = made._books.batches[0]


@broken(2, r"delivered without a batch: \[0\]")
def a_delivered_group_without_a_batch(made):
    made._books.batches.clear()


# 3: lag


@broken(3, "train begun ")
def a_group_that_began_under_no_version(made):
    train(made).begun[7] = 1


@broken(3, r"version 0\ng1 ")
def a_group_that_is_older_than_it_says(made):
    made._books.groups[1].attempts[0].version = -5


@broken(3, "mean lag 99/1 over 3.0")
def a_mean_over_the_bound(made):
    train(made).ledger.lag_sum = 99


@broken(3, "train delivered with lag 2 over 1", hard)
def a_lag_over_a_hard_bound(made):
    train(made).ledger.lag_max = 2


# 4: delivery


@broken(4, r"train ready \[0, 1\]", ready)
def ready_groups_that_are_not_listed(made):
    train(made).ready.clear()


@broken(4, r"train ready \[\]", ready)
def ready_groups_that_are_miscounted(made):
    train(made).num_ready += 1


@broken(4, "train ready at 1", ready)
def ready_groups_under_another_version(made):
    train(made).ready[1] = train(made).ready.pop(0)


@broken(4, "1 groups are usable and not delivered to 'other'", ready)
def a_consumer_that_was_forgotten(made):
    train(made).wants["other"] = Want("other", 1, 0, 0.0)


@broken(4, "everything is there for 'trainer' and is not delivered", everything)
def everything_that_was_forgotten(made):
    train(made).tags.table[""].ended = True


@broken(4, "somebody waits for a machine that was shut down", everything)
def a_consumer_left_behind_by_a_shutdown(made):
    made._books.closed = True


# 5: work-conserving


@broken(5, "train playing: 3")
def a_lane_that_plays_too_much(made):
    train(made).running += 1


@broken(5, "train queues")
def a_queue_that_is_miscounted(made):
    train(made).queues[""].size += 1


@broken(5, "train tags")
def a_tag_that_is_miscounted(made):
    train(made).tags.table[""].alive += 1


@broken(5, r"wants a slot and is not queued\ng3 ")
def a_group_that_is_not_queued(made):
    train(made).queues[""].remove(made._books.groups[3])


@broken(5, "1 train groups of kind '' wait beside a free slot")
def a_slot_that_is_left_idle(made):
    made._books.workers.free[""]["w0"] = None


@broken(5, "1 environments of kind '' run, counted 2")
def environments_that_are_miscounted(made):
    made._books.workers.running[""] = 1


@broken(5, "2 environments of kind '' run, limit 1")
def environments_over_their_limit(made):
    made._books.workers.limits[""] = 1


@broken(5, "1 free slots, counted 0")
def free_slots_that_are_miscounted(made):
    made._books.workers.vacant += 1


@broken(5, "worker w0 plays more than it has slots")
def a_worker_with_too_few_slots(made):
    made._books.workers.table["w0"].slots = 1
    made._books.workers.vacant -= 1


@broken(5, "worker w0 has 6 free slots", spacious)
def a_free_worker_that_is_not_listed(made):
    made._books.workers.free[""].clear()


# 6: nothing useless


@broken(6, r"too old and still alive\ng0 ", hard)
def a_group_that_can_never_be_delivered(made):
    made._books.version = 2


@broken(6, r"full and still open\ng1 ")
def a_full_group_that_is_open(made):
    made._books.groups[1].size = 1


@broken(6, r"plays on without need\ng1 ")
def a_complete_group_that_plays_on(made):
    made._books.groups[1].state = "judging"


# 7: owners and deadlines


@broken(7, r"g1.a1 has no worker\ng1 ")
def an_attempt_without_a_worker(made):
    del made._books.workers.table["w0"].leases[one_playing(made).id]


@broken(7, r"g1.a1 has no worker\ng1 ")
def an_attempt_whose_worker_is_gone(made):
    one_playing(made).worker = "w9"


@broken(7, r"g1.a1 has no deadline\ng1 ")
def an_attempt_without_a_deadline(made):
    made._books.leases.clear()


@broken(7, r"g1.a1 is lost between engines\ng1 ")
def an_attempt_whose_engine_is_gone(made):
    one_playing(made).engine = "e9"


@broken(7, r"g1.a1 is lost between engines\ng1 ")
def an_attempt_whose_engine_knows_nothing_of_it(made):
    made._books.engines.table["e0"].attempts.clear()


@broken(7, r"g1.a1 is lost between engines\ng1 ")
def an_attempt_that_waits_for_an_engine_unknown(made):
    one_playing(made).engine = ""


@broken(7, "3 playing, counted 2")
def attempts_that_are_miscounted(made):
    made._books.running += 1


@broken(7, "workers play 3 attempts, groups 2")
def a_worker_that_plays_nobodys_attempt(made):
    made._books.workers.table["w0"].leases[NOBODY] = None


@broken(7, "engines serve 2 of 2 attempts")
def a_homeless_attempt_that_never_was(made):
    made._books.homeless[NOBODY] = None


@broken(7, "engine e0 has work 99.0, counted ")
def an_engine_with_the_wrong_load(made):
    made._books.engines.table["e0"].work = 99.0


@broken(7, "capacity 2, counted 1")
def engines_with_a_capacity_that_none_has(made):
    made._books.engines.capacity += 1


@broken(7, "attempts that generate")
def an_attempt_too_many_that_generates(made):
    made._books.engines.attempts += 1


@broken(7, "1 scoring, counted 0")
def a_score_that_nobody_waits_for(made):
    made._books.scoring += 1


@broken(7, r"g1.a1 has no deadline\ng1 ", scored)
def an_attempt_that_waits_for_its_score_forever(made):
    made._books.leases.clear()


@broken(7, "g1.a1 has no engine and one is usable")
def an_attempt_that_waits_beside_an_engine(made):
    attempt, engine = one_playing(made), made._books.engines.table["e0"]
    attempt.engine = ""
    made._books.homeless[attempt.id] = None
    del engine.attempts[attempt.id]
    engine.work -= attempt.work
    made._books.engines.attempts -= 1


# 8: no silent stall


@broken(8, "train has room and asks for nothing")
def a_lane_that_asks_for_too_little(made):
    train(made).batch_groups += 1


@broken(8, r"\['other'\] wait for nothing", ready)
def a_consumer_whose_batch_cannot_come(made):
    train(made).wants["other"] = Want("other", 3, 0, 0.0)


@broken(8, "somebody waits for a machine that has halted")
def a_consumer_that_was_not_told_of_the_breaker(made):
    made._books.faults.halted = "by hand"
    train(made).wants["other"] = Want("other", 3, 0, 0.0)


# 9: whole or not at all


@broken(9, "engine e0 is listed as updating")
def an_engine_that_updates_without_need(made):
    made._books.engines.updating["e0"] = None


@broken(9, "engine e0 is listed as updating")
def an_engine_that_is_behind_and_not_listed(made):
    made._books.engines.table["e0"].version = -1


@broken(9, "engine e0 escaped the hold of 'user'")
def an_engine_that_escaped_a_hold(made):
    made._books.holds["user"] = "drain"


@pytest.mark.parametrize("name", CASES)
def test_it_is_seen(name):
    falsify, given, message = CASES[name]
    made = given()
    falsify(made)
    with pytest.raises(InternalError, match=message):
        made.check()


def test_an_attempt_that_waits_for_an_engine_is_accounted_for():
    made = healthy()
    made.step(EngineLost("e0"))
    assert len(made._books.homeless) == 2
