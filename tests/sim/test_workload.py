"""The workload is a function of the config and the seed, whoever plays it."""

import numpy as np
import pytest
from tests.sim.given import LONG_TAIL, config, fifo_world, turns

from windrow.sim.work import attempt_s
from windrow.sim.workload import Workload

SPOTS = [(ordinal, seat) for ordinal in (0, 5, 255, 256, 70_000) for seat in (0, 7, 8, 30)]


def seconds(workload: Workload, groups: int, size: int = 8) -> np.ndarray:
    return np.array([[workload.plan(task, seat).seconds for seat in range(size)] for task in range(groups)])


def test_plans_do_not_depend_on_the_order_of_asking():
    made = config(episode=LONG_TAIL)
    forwards, backwards = Workload(made, 3), Workload(made, 3)
    asked = {spot: forwards.plan(*spot) for spot in SPOTS}
    assert {spot: backwards.plan(*spot) for spot in reversed(SPOTS)} == asked


def test_a_dropped_block_is_drawn_again_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windrow.sim.blocks.BLOCKS_KEPT", 1)
    workload = Workload(config(episode=LONG_TAIL), 0)
    before = workload.plan(0, 0)
    workload.plan(1000, 0)
    assert workload.plan(0, 0) == before
    assert len(workload.blocks.kept) == 1


def test_another_seed_and_another_mode_are_other_workloads():
    made = config(episode=LONG_TAIL, validation={"every": 1, "tasks": 4})
    plans = [Workload(made, 0), Workload(made, 1), Workload(made, 0, "val")]
    assert len({workload.plan(0, 0).seconds for workload in plans}) == 3


def test_the_scheduler_settings_do_not_change_the_workload():
    small, large = config(episode=LONG_TAIL), config(size=8, batch=64, episode=LONG_TAIL, slots=99)
    assert Workload(small, 0).plan(7, 1) == Workload(large, 0).plan(7, 1)


def test_the_mean_length_is_the_expected_one():
    made = config(episode=LONG_TAIL)
    assert seconds(Workload(made, 0), 4000).mean() == pytest.approx(attempt_s(made), rel=0.05)


def test_siblings_are_alike():
    logs = np.log(seconds(Workload(config(episode=LONG_TAIL), 0), 4000))
    share = 0.9**2 / (0.9**2 + 0.85**2)
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] == pytest.approx(share, abs=0.05)


def test_a_task_share_of_one_gives_siblings_the_same_turns():
    episode = turns(1, 10, task_share=1.0, max_turns=50) | {"turns": {"kind": "exponential", "mean": 9}}
    workload = Workload(config(episode=episode), 0)
    drawn = [{workload.plan(task, seat).turns for seat in range(8)} for task in range(30)]
    assert all(len(of_task) == 1 for of_task in drawn)
    assert len(set.union(*drawn)) > 5


def test_who_tries_a_seat_again_meets_the_same_length_and_another_fate():
    workload = Workload(config(episode=LONG_TAIL, faults={"crash_share": 0.5}), 0)
    tries = [workload.plan(3, 1, index) for index in (1, 8, 9, 10, 11, 12)]
    assert len({(plan.seconds, plan.score) for plan in tries}) == 1
    assert {plan.fate for plan in tries} == {"ok", "crash"}


def test_a_task_that_comes_again_has_the_same_factor_and_name():
    episode = {"kind": "duration", "task": LONG_TAIL["task"]}
    workload = Workload(config(episode=episode, source={"epoch_tasks": 300}), 0)
    assert workload.plan(7, 0).seconds == workload.plan(307, 0).seconds != workload.plan(8, 0).seconds
    assert workload.task_name(7) == workload.task_name(307) == "t7"


def test_faults_come_as_often_as_configured():
    faults = {"crash_share": 0.1, "hang_share": 0.05, "poisonous_share": 0.02}
    workload = Workload(config(episode=LONG_TAIL, faults=faults), 0)
    fates = [workload.plan(task, seat).fate for task in range(2000) for seat in range(8)]
    assert fates.count("hang") / len(fates) == pytest.approx(0.05 * 0.98, abs=0.01)
    assert fates.count("crash") / len(fates) == pytest.approx(0.02 + 0.1 * 0.98, abs=0.02)


def test_kinds_come_in_their_shares():
    workload = Workload(config(source={"kinds": {"maze": 3, "shell": 1}}), 0)
    kinds = [workload.kind(ordinal) for ordinal in range(1000)]
    assert kinds.count("maze") / len(kinds) == pytest.approx(0.75, abs=0.05)


def test_two_schedulers_play_the_same_lengths():
    made = config(size=4, batch=32, episode=LONG_TAIL, slots=8, steps=5)
    reports = [
        (world.run(), world.ledger.lengths.drawn_length) for world in (fifo_world(made, ahead=n) for n in (1, 3))
    ]
    assert reports[0][0].seconds != reports[1][0].seconds
    assert reports[0][1] == pytest.approx(reports[1][1])
