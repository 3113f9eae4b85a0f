"""The rivals: what each begins when, and what it delivers."""

from collections import deque

import pytest
from tests.sim.given import LONG_TAIL, config, constant, turns

from windrow.core.commands import (
    AnyCommand,
    CancelAttempt,
    DeliverBatch,
    DropGroup,
    EndBatches,
    FetchTask,
    GrantLease,
    LoadWeights,
    MoveAttempt,
    ResumeEngine,
    SuspendEngine,
)
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptProgressed,
    BatchTrained,
    BatchWanted,
    EngineJoined,
    EngineLost,
    EngineReady,
    ResumeWanted,
    SourceEnded,
    SuspendWanted,
    TaskArrived,
    TimePassed,
    VersionPublished,
    WantWithdrawn,
    WeightsLoaded,
    WorkerJoined,
    WorkerLost,
)
from windrow.core.settings import ModeSettings, Settings
from windrow.errors import ConfigError
from windrow.sim.rivals import Barrier, FixedQueues, GroupUnit
from windrow.sim.scheduler import Scheduler
from windrow.sim.world import World
from windrow.types import AttemptId, Failed, Finished

RIVALS = (Barrier, FixedQueues, GroupUnit)
every_rival = pytest.mark.parametrize("rival", RIVALS)


def settings(*, groups: int = 2, staleness: float = 0.0, **more: float) -> Settings:
    """Groups of two, so many in a batch."""
    train = ModeSettings(group_size=2, batch_size=2 * groups, staleness=staleness)
    return Settings(train=train, lease_s=more.get("lease_s", 1000.0), env_retries=int(more.get("env_retries", 2)))


class Stage:
    """A rival with an engine, slots and a source, waiting for its first batch."""

    def __init__(self, rival: Scheduler, slots: int, *, tasks: int = 1000) -> None:
        self.rival = rival
        self.tasks = tasks
        self.fetched = 0
        self.orders: list[AnyCommand] = []
        self.tell(EngineJoined("e0"), EngineReady("e0"), WorkerJoined("w0", slots))
        self.opening = self.tell(BatchWanted("trainer", "train", 1, 0))

    def tell(self, *events: AnyEvent, now: float = 0.0) -> list[AnyCommand]:
        """What is ordered, the fetching aside, which is answered at once."""
        told = deque(events)
        orders: list[AnyCommand] = []
        while told:
            for order in self.rival.step(told.popleft(), now):
                if isinstance(order, FetchTask):
                    told.extend(self._answers(order))
                else:
                    orders.append(order)
        self.orders += orders
        return orders

    def end(self, *names: str, now: float = 0.0) -> list[str]:
        """Attempts finish; says what begins."""
        return begun(self.tell(*(AttemptEnded(named(name), Finished(1.0, 10, 0)) for name in names), now=now))

    def fail(self, name: str) -> list[AnyCommand]:
        return self.tell(AttemptEnded(named(name), Failed("env", "crashed")))

    def train(self, step: int) -> list[str]:
        """A batch is trained on and the next is wanted; says what begins."""
        want = BatchWanted("trainer", "train", 1, step + 1)
        return begun(self.tell(VersionPublished(step + 1, loaded=True), BatchTrained(step), want))

    def next_deadline(self) -> float | None:
        return self.rival.next_deadline

    @property
    def batches(self) -> list[DeliverBatch]:
        return [order for order in self.orders if isinstance(order, DeliverBatch)]

    def _answers(self, order: FetchTask) -> list[AnyEvent]:
        first, self.fetched = self.fetched, self.fetched + order.count
        arrived: list[AnyEvent] = [TaskArrived("train", n) for n in range(first, min(self.tasks, self.fetched))]
        return arrived if self.fetched <= self.tasks else [*arrived, SourceEnded("train")]


def named(name: str) -> AttemptId:
    group, index = name[1:].split(".a")
    return AttemptId(int(group), int(index))


def begun(orders: list[AnyCommand]) -> list[str]:
    return [str(order.attempt) for order in orders if isinstance(order, GrantLease)]


# the barrier


def test_the_barrier_plays_in_order_of_arrival_and_begins_nothing_before_the_batch_is_trained():
    stage = Stage(Barrier(settings()), slots=3)
    assert begun(stage.opening) == ["g0.a0", "g0.a1", "g1.a0"]
    assert stage.end("g0.a0") == ["g1.a1"]
    assert stage.end("g0.a1", "g1.a1", "g1.a0") == []
    assert [batch.groups for batch in stage.batches] == [(0, 1)]
    assert begun(stage.tell(VersionPublished(1, loaded=True))) == []
    assert begun(stage.tell(BatchTrained(0))) == ["g2.a0", "g2.a1", "g3.a0"]


def test_a_batch_says_all_about_itself():
    stage = Stage(Barrier(settings(groups=1)), slots=2)
    stage.end("g0.a1", "g0.a0")
    attempts = (AttemptId(0, 0), AttemptId(0, 1))
    assert stage.batches == [DeliverBatch(0, "trainer", "train", 0, 0, (0,), attempts, (0,))]


def test_a_lease_says_all_about_itself():
    stage = Stage(Barrier(settings(groups=1)), slots=1)
    assert stage.opening == [GrantLease(AttemptId(0, 0), 0, "w0", "e0", 0, "", "train", 0, 1000.0)]


# groups as units


def test_a_group_keeps_its_slots_until_its_slowest_member_is_done():
    stage = Stage(GroupUnit(settings(groups=3)), slots=5)
    assert begun(stage.opening) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]
    assert stage.end("g0.a0", "g1.a1") == []
    assert stage.end("g0.a1") == ["g2.a0", "g2.a1"]
    assert stage.end("g1.a0", "g2.a0", "g2.a1") == []
    assert [batch.groups for batch in stage.batches] == [(0, 1, 2)]
    assert stage.train(0) == ["g3.a0", "g3.a1", "g4.a0", "g4.a1"]


def test_with_bound_one_another_batch_is_ahead_and_the_first_complete_groups_are_delivered():
    stage = Stage(GroupUnit(settings(groups=1), bound=1), slots=4)
    assert begun(stage.opening) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]
    assert stage.end("g1.a0", "g1.a1") == []
    assert stage.train(0) == ["g2.a0", "g2.a1"]
    stage.end("g0.a0", "g0.a1")
    assert [(batch.groups, batch.lags) for batch in stage.batches] == [((1,), (0,)), ((0,), (1,))]


def test_the_bound_of_group_units_is_the_staleness_of_the_settings_unless_it_is_given():
    assert GroupUnit(settings(groups=4, staleness=1.0)).window == 8
    assert GroupUnit(settings(groups=4, staleness=1.0), bound=0).window == 4


def test_a_group_that_lost_its_worker_waits_for_it_with_its_slots():
    stage = Stage(GroupUnit(settings(groups=3)), slots=2)
    stage.tell(WorkerJoined("w1", 2))
    assert stage.tell(WorkerLost("w0")) == []
    assert stage.end("g1.a0", "g1.a1") == ["g2.a0", "g2.a1"]
    assert begun(stage.tell(WorkerJoined("w0", 2))) == ["g0.a3", "g0.a2"]


def test_slots_of_a_lost_worker_return_to_the_pool_though_their_group_was_given_up_meanwhile():
    stage = Stage(GroupUnit(settings(groups=3, env_retries=0)), slots=3)
    assert begun(stage.tell(WorkerJoined("w1", 1))) == ["g1.a0", "g1.a1"]  # a slot of each worker
    stage.tell(WorkerLost("w0"))
    assert stage.fail("g1.a1") == [DropGroup(1, "poisoned")]
    assert begun(stage.tell(WorkerJoined("w0", 3))) == ["g0.a3", "g0.a2", "g2.a0", "g2.a1"]


def test_a_group_that_needs_more_slots_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"each member of a group \(2\), got 1 slots"):
        Stage(GroupUnit(settings()), slots=1)


# fixed queues


def test_environments_play_for_their_own_queue_and_may_take_two_seats_of_a_group():
    stage = Stage(FixedQueues(settings(groups=4)), slots=4)
    assert begun(stage.opening) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]
    assert stage.end("g0.a0") == ["g2.a0"]
    assert stage.end("g2.a0") == ["g2.a1"]
    assert stage.end("g2.a1", "g0.a1") == []  # the second queue has seats left, but not for these
    assert stage.end("g1.a0") == ["g3.a0"]


def test_the_first_step_makes_groups_for_all_the_steps_that_may_be_ahead():
    for ratio in (0, 1, 2):
        stage = Stage(FixedQueues(settings(groups=4, staleness=ratio)), slots=4)
        assert stage.fetched == 4 * (1 + ratio)
        stage.tell(BatchWanted("trainer", "train", 1, 1))
        assert stage.fetched == 4 * (2 + ratio)


def test_a_round_takes_one_group_of_every_queue_and_waits_for_the_oldest():
    stage = Stage(FixedQueues(settings(groups=4, staleness=1.0)), slots=4)
    stage.end("g0.a0", "g0.a1", "g2.a0", "g2.a1", "g4.a0", "g4.a1", "g6.a0", "g6.a1")
    assert stage.batches == []  # four groups are complete, all of one queue
    stage.end("g1.a0", "g3.a0", "g3.a1")
    assert stage.batches == []  # g3 is complete, and behind g1
    stage.end("g1.a1")
    assert [batch.groups for batch in stage.batches] == [(0, 1, 2, 3)]


def test_age_counts_from_the_step_in_which_a_group_was_made():
    stage = Stage(FixedQueues(settings(groups=1, staleness=1.0)), slots=2)
    stage.end("g0.a0", "g0.a1")
    assert stage.train(0) == []
    stage.end("g1.a0", "g1.a1")
    assert [(batch.groups, batch.lags) for batch in stage.batches] == [((0,), (0,)), ((1,), (1,))]


def test_old_groups_are_deleted_when_the_step_advances_and_their_environments_play_on():
    stage = Stage(FixedQueues(settings(groups=4)), slots=4)
    stage.end("g0.a0", "g0.a1")  # g2 plays in the first queue, g1 in the second, g3 has not begun
    orders = stage.tell(BatchWanted("trainer", "train", 1, 1))
    assert orders == [DropGroup(0, "stale"), DropGroup(3, "stale")]
    assert stage.end("g2.a0") == ["g4.a0"]  # only now is that slot free
    assert stage.tell(AttemptEnded(AttemptId(2, 1), Failed("env", "crashed")))[0] == DropGroup(2, "stale")
    assert stage.batches == []


def test_what_a_round_still_waits_for_is_taken_before_the_next_round():
    rival = FixedQueues(settings(groups=2))
    stage = Stage(rival, slots=4)
    stage.end("g0.a0", "g0.a1")
    assert rival.awaited == {1: None}
    stage.tell(WantWithdrawn("trainer"))
    stage.end("g1.a0", "g1.a1")
    assert stage.batches == []
    stage.tell(BatchWanted("trainer", "train", 1, 0))
    assert [batch.groups for batch in stage.batches] == [(0, 1)]


def test_a_poisonous_group_is_replaced_at_the_end_of_its_queue():
    stage = Stage(FixedQueues(settings(groups=2, env_retries=0)), slots=4)
    assert begun(stage.fail("g0.a0")) == ["g2.a0"]
    orders = stage.fail("g0.a1")  # its sibling has played on
    assert (orders[0], begun(orders)) == (DropGroup(0, "poisoned"), ["g2.a1"])
    stage.end("g1.a0", "g1.a1", "g2.a0", "g2.a1")
    assert [batch.groups for batch in stage.batches] == [(1, 2)]


@pytest.mark.parametrize("slots", [1, 6, 10])
def test_a_batch_that_cannot_be_shared_out_is_refused_with_its_numbers(slots: int):
    with pytest.raises(ConfigError, match=rf"\(4\).* \({slots} slots ÷ group_size 2 = {slots // 2}\)"):
        Stage(FixedQueues(settings(groups=4)), slots=slots)


def test_slots_beyond_the_last_queue_are_never_used():
    stage = Stage(FixedQueues(settings(groups=2)), slots=5)
    assert begun(stage.opening) == ["g0.a0", "g0.a1", "g1.a0", "g1.a1"]


# what they share


@every_rival
def test_a_failed_attempt_is_tried_again_at_once_on_the_same_seat(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1)), slots=2)
    again = stage.fail("g0.a1")
    assert begun(again) == ["g0.a3"]
    assert [order.seat for order in again if isinstance(order, GrantLease)] == [1]
    assert begun(stage.fail("g0.a3")) == ["g0.a5"]
    stage.end("g0.a0", "g0.a5")
    assert stage.batches[0].attempts == (AttemptId(0, 0), AttemptId(0, 5))


@every_rival
def test_a_group_that_fails_too_often_is_dropped_and_replaced(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1, env_retries=1)), slots=2)
    stage.fail("g0.a1")
    stage.fail("g0.a0")
    orders = stage.fail("g0.a3")
    assert orders[0] == DropGroup(0, "poisoned")
    assert stage.fetched == 2


@every_rival
def test_a_lease_that_ends_counts_as_a_failure(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1, lease_s=60.0)), slots=2)
    stage.end("g0.a0")
    assert stage.next_deadline() == 60.0
    orders = stage.tell(TimePassed(), now=60.0)
    assert orders[0] == CancelAttempt(AttemptId(0, 1), "w0", "failed")
    assert begun(orders) == ["g0.a3"]
    assert stage.next_deadline() == 120.0
    stage.end("g0.a3", "g0.a1")  # the last word of the cancelled one comes late
    assert stage.next_deadline() is None
    assert len(stage.batches) == 1


@every_rival
def test_what_a_lost_worker_played_is_tried_again_when_there_are_slots(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1, env_retries=0)), slots=2)
    assert stage.tell(WorkerLost("w0")) == []
    assert begun(stage.tell(WorkerJoined("w0", 2))) == ["g0.a3", "g0.a2"]


@every_rival
def test_engines_take_turns_and_a_dead_one_hands_its_attempts_over(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=2)), slots=2)
    stage.tell(EngineJoined("e1"), EngineReady("e1"))
    grants = [order for order in stage.opening if isinstance(order, GrantLease)]
    assert [grant.engine for grant in grants] == ["e0", "e0"]
    moves = stage.tell(EngineLost("e0"))
    assert moves == [MoveAttempt(AttemptId(0, n), "w0", "e1") for n in (0, 1)]
    assert stage.tell(EngineLost("e1")) == []
    assert stage.end("g0.a0") == []  # no engine, no grant
    joined = stage.tell(EngineJoined("e2"), EngineReady("e2"))
    assert joined[0] == MoveAttempt(AttemptId(0, 1), "w0", "e2")


@every_rival
def test_an_engine_that_comes_back_with_old_weights_serves_after_it_has_loaded_new_ones(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1)), slots=2)
    stage.tell(EngineLost("e0"), VersionPublished(3))
    assert stage.tell(EngineJoined("e0"), EngineReady("e0")) == [LoadWeights("e0", 3)]
    assert [type(order) for order in stage.tell(WeightsLoaded("e0", 3))] == [MoveAttempt, MoveAttempt]


@every_rival
def test_engines_are_held_and_let_go_as_somebody_wants(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1)), slots=2)
    assert stage.tell(SuspendWanted("update")) == [SuspendEngine("e0", "interrupt")]
    assert stage.tell(ResumeWanted("update")) == [ResumeEngine("e0")]


@every_rival
def test_progress_and_validation_are_none_of_its_business(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=1)), slots=2)
    want = BatchWanted("validation", "val", 1, 0)
    assert stage.tell(AttemptProgressed(AttemptId(0, 0), 5), want, TaskArrived("val", 0)) == []


@every_rival
def test_the_rest_is_delivered_as_the_last_batch_when_the_source_ends(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=2)), slots=4, tasks=3)
    stage.end("g0.a0", "g0.a1", "g1.a0", "g1.a1")
    stage.train(0)
    stage.end("g2.a0", "g2.a1")
    assert [(batch.groups, batch.last) for batch in stage.batches] == [((0, 1), False), ((2,), True)]


@every_rival
def test_batches_end_when_the_source_has_nothing_more(rival: type[Barrier]):
    stage = Stage(rival(settings(groups=2)), slots=4, tasks=2)
    stage.end("g0.a0", "g0.a1", "g1.a0", "g1.a1")
    stage.train(0)
    assert isinstance(stage.orders[-1], EndBatches)


# in the world


class Watched:
    """A rival whose orders and finished attempts are kept."""

    def __init__(self, rival: Scheduler) -> None:
        self.rival = rival
        self.finished: set[AttemptId] = set()
        self.delivered: list[AttemptId] = []

    @property
    def next_deadline(self) -> float | None:
        return self.rival.next_deadline

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        if isinstance(event, AttemptEnded) and isinstance(event.outcome, Finished):
            self.finished.add(event.attempt)
        orders = self.rival.step(event, now)
        batches = [order for order in orders if isinstance(order, DeliverBatch)]
        assert all(set(batch.attempts) <= self.finished for batch in batches)
        self.delivered += [attempt for batch in batches for attempt in batch.attempts]
        return orders


FAULTS = {"crash_share": 0.05, "poisonous_share": 0.05, "hang_share": 0.02, "worker_losses_per_hour": 5}
ENGINES = {"count": 3, "update_s": 2, "mean_time_to_restart_s": 1000, "restart_s": 20}
TURNS = turns(4, 100, step_s=constant(1))


@every_rival
@pytest.mark.parametrize("trouble", [{}, {"faults": FAULTS}, {"faults": FAULTS, "episode": TURNS, "engines": ENGINES}])
def test_every_attempt_of_every_batch_is_finished_and_delivered_once(rival: type[Barrier], trouble: dict[str, object]):
    wanted = {"episode": LONG_TAIL, "steps": 8, "slots": 16, "workers": 3, **trouble}
    made = config(size=4, batch=32, **wanted)
    watched = Watched(rival(made.machine))
    report = World(made, watched).run()
    assert (report.outcome, report.steps, report.trajectories) == ("done", 8, 256)
    assert len(set(watched.delivered)) == len(watched.delivered)
    assert report.waste.keys() <= {"failed", "lost"}


@every_rival
def test_a_synchronous_rival_delivers_nothing_old(rival: type[Barrier]):
    made = config(size=4, batch=32, episode=LONG_TAIL, steps=8, slots=16)
    report = World(made, rival(made.machine)).run()
    assert report.staleness == {0: 64}
    assert report.length_bias == pytest.approx(0.0)


def test_the_fixed_queues_keep_their_ratio_and_drop_nothing():
    made = config(size=4, batch=32, episode=LONG_TAIL, steps=20, slots=16)
    ahead = settings_of(made.machine, staleness=2.0)
    report = World(made, FixedQueues(ahead)).run()
    assert (report.staleness_max, report.groups_dropped) == (2, 0)


def settings_of(machine: Settings, *, staleness: float) -> Settings:
    train = ModeSettings(group_size=machine.train.group_size, batch_size=machine.train.batch_size, staleness=staleness)
    return Settings(train=train)


def test_tags_are_fetched_in_turn():
    train = ModeSettings(group_size=1, batch_size=4, tags={"a": 1.0, "b": 3.0})
    rival = Barrier(Settings(train=train))
    orders = rival.step(BatchWanted("trainer", "train", 4, 0), 0.0)
    assert orders == [FetchTask("train", tag, 1) for tag in ("a", "b", "a", "b")]
    assert rival.step(SourceEnded("train", "a"), 0.0) == [FetchTask("train", "b", 2)]
    assert rival.step(TaskArrived("train", 0, "a"), 0.0) == []  # it was on its way
    assert len(rival.groups) == 1
