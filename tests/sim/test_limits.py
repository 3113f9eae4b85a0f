"""The limits, worked by hand, and against all schedules there are."""

from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from tests.sim.given import LONG_TAIL, config, constant, turns

from windrow.errors import ConfigError
from windrow.sim.clairvoyant import (
    Clairvoyant,
    Order,
    begun_then_arrival,
    begun_then_longest,
    begun_then_shortest,
    longest,
)
from windrow.sim.config import SimConfig
from windrow.sim.limits import BOUNDS, Epoch, lifetime_s, limits, longest_first_s, sync_oracle_s
from windrow.sim.rivals import Barrier
from windrow.sim.world import World

ORDERS = (begun_then_longest, longest, begun_then_arrival, begun_then_shortest)
every_order = pytest.mark.parametrize("order", ORDERS)


def played(tasks: list[list[float]], *, slots: int, bound: int, order: Order, training_s: float = 1.0) -> float:
    """Seconds until the last task is trained on, one task per batch."""
    steps = len(tasks)
    made = Clairvoyant(tasks, [training_s] * steps, slots=slots, batch=1, bound=bound, order=order)
    return made.run() * steps


def long_tail(*, steps: int = 20) -> SimConfig:
    trainer = {"share_of_work": 0.3}
    return config(size=4, batch=32, episode=LONG_TAIL, steps=steps, slots=16, trainer=trainer)


# the synchronous oracle


def test_the_longest_attempts_are_played_first():
    assert longest_first_s([1, 2, 3, 4, 5], 2) == 8  # 5 2 1 | 4 3
    assert longest_first_s([7, 1, 1, 1], 2) == 7
    assert longest_first_s([1, 1], 3) == 1


def test_longest_first_is_near_the_best_of_all_schedules():
    """Within 7/6 of the best on two slots, as was proved by Graham, and never under it."""
    random = Random(0)
    for _ in range(200):
        times = [random.lognormvariate(2.0, 1.2) for _ in range(random.randint(1, 6))]
        whole = sum(times)
        shares = (
            sum(t for t, here in zip(times, on, strict=True) if here) for on in product((0, 1), repeat=len(times))
        )
        best = min(max(share, whole - share) for share in shares)
        assert best * (1 - 1e-9) <= longest_first_s(times, 2) <= best * 7 / 6 * (1 + 1e-9)


def test_the_oracle_plays_each_batch_by_itself():
    epoch = Epoch([[5.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]], [3.0, 1.0], 2, 2)
    assert sync_oracle_s(epoch) == ((5 + 3) + (4 + 1)) / 2


# the clairvoyant


@every_order
def test_a_batch_waits_for_the_old_task_that_it_would_force_over_the_bound(order: Order):
    """Task 1 goes out at 1, under version 0; task 2 begins under version 1 and ends at 3, but task 0 must go first."""
    assert played([[10.0], [1.0], [1.0]], slots=2, bound=1, order=order) == 12.0


@every_order
def test_a_wider_bound_lets_the_others_pass(order: Order):
    """Tasks 1 to 3 go out at 1, 2 and 3; task 0 ends at 10 under version 3, and task 4 follows it."""
    tasks = [[10.0], [1.0], [1.0], [1.0], [1.0]]
    assert played(tasks, slots=5, bound=3, order=order) == 12.0
    assert played(tasks, slots=5, bound=4, order=order) == 11.0


def test_no_more_tasks_are_admitted_than_the_bound_allows():
    """One task at a time, so its two attempts are played, it is trained, and the next begins."""
    assert played([[2.0, 3.0], [2.0, 3.0]], slots=4, bound=0, order=longest) == 8.0
    assert played([[2.0, 3.0], [2.0, 3.0]], slots=4, bound=1, order=longest) == 5.0


def test_orders_differ_in_what_they_begin():
    tasks = [[4.0, 1.0], [9.0, 3.0]]
    assert played(tasks, slots=1, bound=1, order=begun_then_longest) == 9 + 3 + 4 + 1 + 1
    assert played(tasks, slots=1, bound=1, order=longest) == 9 + 4 + 3 + 1 + 1
    assert first_trained(tasks, begun_then_longest) == 12.0
    assert first_trained(tasks, longest) == 16.0
    assert first_trained(tasks, begun_then_arrival) == 5.0
    assert first_trained([tasks[1], tasks[0]], begun_then_shortest) == 5.0


def first_trained(tasks: list[list[float]], order: Order) -> float:
    """When the first of two batches goes to a trainer that needs very long."""
    return played(tasks, slots=1, bound=1, order=order, training_s=1000.0) - 2000.0


def test_without_a_bound_to_spare_it_is_the_synchronous_oracle():
    random = Random(1)
    tasks = [[random.expovariate(0.1) for _ in range(4)] for _ in range(40)]
    epoch = Epoch(tasks, [5.0] * 10, 6, 4)
    made = Clairvoyant(tasks, epoch.training_s, slots=6, batch=4, bound=0, order=longest)
    assert made.run() == pytest.approx(sync_oracle_s(epoch))


@every_order
@pytest.mark.parametrize("bound", [0, 1, 2, 4])
def test_every_task_is_trained_on_within_the_bound(order: Order, bound: int):
    random = Random(bound)
    tasks = [[random.lognormvariate(2.0, 1.2) for _ in range(4)] for _ in range(80)]
    made = Watched(tasks, [5.0] * 20, slots=8, batch=4, bound=bound, order=order)
    made.lags = []
    made.run()
    assert made.version == 20
    assert 0 <= max(made.lags) <= bound


class Watched(Clairvoyant):
    """Keeps the lag of every task that is trained on."""

    lags: list[int]

    def _deliver(self) -> None:
        ready = {task.ordinal: task.version for task in self.ready}
        super()._deliver()
        left = {task.ordinal for task in self.ready}
        self.lags += [self.version - version for ordinal, version in ready.items() if ordinal not in left]


# all of them together


def test_limits_by_hand():
    """Eight attempts of 10 s on two slots in two steps, training 5 s."""
    made = limits(config(size=2, batch=4, slots=2, trainer={"time_s": constant(5)}), 0)
    assert (made.seed, made.steps, made.work_s_per_step, made.training_s) == (0, 2, 20.0, 5.0)
    assert (made.steps_per_s, made.sync_oracle_s, made.sync_oracle_steps_per_s) == (1 / 20, 25.0, 1 / 25)
    hard = made.hard[1]
    assert (hard.bound, hard.bound_s, hard.clairvoyant_s, hard.gathering_s) == (1, 20.0, 22.5, 22.5)
    assert (hard.bound_steps_per_s, hard.clairvoyant_steps_per_s) == (1 / 20, 1 / 22.5)


def test_a_slow_trainer_is_a_limit_too():
    made = limits(config(size=2, batch=4, slots=2, trainer={"time_s": constant(50)}), 0)
    assert (made.work_s_per_step, made.steps_per_s) == (20.0, 1 / 50)
    assert made.hard[4].bound_s == 50.0


def test_under_a_hard_bound_an_episode_lasts_no_longer_than_the_steps_it_may_see():
    assert lifetime_s(Epoch([[5.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 3.0]], [3.0, 1.0], 2, 2)) == 4.0 + 2.0


@pytest.mark.parametrize("seed", range(3))
def test_a_wider_bound_is_a_lower_limit_and_no_clairvoyant_passes_it(seed: int):
    made = limits(long_tail(), seed)
    assert made.sync_oracle_s > made.hard[1].clairvoyant_s > made.hard[2].clairvoyant_s > made.hard[4].clairvoyant_s
    assert list(made.hard) == list(BOUNDS)
    for hard in made.hard.values():
        assert hard.clairvoyant_s >= hard.bound_s >= made.work_s_per_step
        assert hard.gathering_s >= made.work_s_per_step


def test_the_barrier_is_slower_than_the_oracle():
    made = long_tail()
    report = World(made, Barrier(made.machine), seed=3).run()
    assert report.seconds / report.steps > limits(made, 3).sync_oracle_s


def test_training_takes_what_the_world_draws_and_the_update_of_the_engines():
    trainer = {"time_s": {"kind": "lognormal", "median": 20, "sigma": 0.5}}
    made = config(size=2, batch=4, slots=2, steps=4, trainer=trainer, engines={"count": 1, "update_s": 3})
    world = World(made, Barrier(made.machine), seed=2)
    assert limits(made, 2).training_s == pytest.approx(fmean(world.trainer.time_s(step) for step in range(4)) + 3)


def test_scoring_occupies_a_slot():
    made = config(size=2, batch=4, slots=2, reward={"time_s": constant(1)})
    assert limits(made, 0).work_s_per_step == 22.0


def test_a_recorded_trace_of_seconds_has_limits(tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text("task,seconds\na,4\na,2\nb,6\nb,8\n")
    made = config(size=2, batch=4, slots=2, episode={"kind": "trace", "path": str(file)})
    assert limits(made, 0).steps == 2


def test_a_source_that_ends_shortens_the_epoch():
    assert limits(config(size=2, batch=4, steps=10, source={"tasks": 7}), 0).steps == 3


def test_a_source_without_a_batch_has_no_limits():
    with pytest.raises(ConfigError, match=r"source.tasks must fill a batch \(2 groups\) for limits, got 1"):
        limits(config(size=2, batch=4, source={"tasks": 1}), 0)


def test_episodes_of_turns_have_no_limits():
    with pytest.raises(ConfigError, match="limits need episodes of known seconds, got turns"):
        limits(config(episode=turns(3, 100)), 0)


def test_no_time_at_all_is_no_rate():
    made = config(episode={"kind": "duration", "task": constant(0)})
    assert limits(made, 0).steps_per_s == 0.0
