"""The world on its virtual clock, with the simplest scheduler and with the machine."""

from pathlib import Path
from typing import Any

import pytest
from tests.sim.given import LONG_TAIL, Told, config, constant, fifo_world, turns

from windrow.config import load
from windrow.core.commands import AnyCommand, Halt
from windrow.core.events import AnyEvent, BatchTrained, BatchWanted, TimePassed, VersionPublished
from windrow.core.machine import Machine
from windrow.errors import ConfigError, InternalError
from windrow.sim.config import SimConfig
from windrow.sim.world import Progress, World

EXAMPLES = Path(__file__).parents[2] / "examples" / "sim"


class Alarm:
    """Wants to be told at fixed times, and does nothing; or stops everything."""

    def __init__(self, *times: float, order: AnyCommand | None = None) -> None:
        self.times = [*times]
        self.order = order
        self.for_ever: list[float] = []

    @property
    def next_deadline(self) -> float | None:
        return self.times[0] if self.times else None

    def step(self, event: AnyEvent, now: float) -> list[AnyCommand]:
        if isinstance(event, TimePassed):
            self.times = self.times[1:] or self.for_ever
        return [self.order] if self.order else []


def test_the_same_seed_gives_the_same_events_and_another_one_others():
    made = config(size=4, batch=16, episode=LONG_TAIL, slots=8)
    runs: list[Told] = [[], [], []]
    fifo_world(made, runs[0]).run()
    fifo_world(made, runs[1]).run()
    fifo_world(config(size=4, batch=16, episode=LONG_TAIL, slots=8, seed=1), runs[2]).run()
    assert runs[0] == runs[1] != runs[2]


def test_a_version_is_published_before_its_batch_counts_as_trained():
    told: Told = []
    fifo_world(config(trainer={"time_s": constant(5)}), told).run()
    steps = [(now, event) for now, event in told if isinstance(event, VersionPublished | BatchTrained | BatchWanted)]
    assert steps[:4] == [
        (0.0, BatchWanted("trainer", "train", 2, 0)),
        (25.0, VersionPublished(1, loaded=True)),
        (25.0, BatchTrained(1)),
        (25.0, BatchWanted("trainer", "train", 2, 1)),
    ]


def test_a_weight_update_suspends_confirms_and_resumes():
    engines = {"count": 2, "update_s": 3}
    told: Told = []
    made = config(episode=turns(1, 60), engines=engines, slots=2, trainer={"time_s": constant(5)})
    World(made, Machine(made.machine), record=lambda now, event: told.append((now, event))).run()
    names = [type(event).__name__ for _, event in told]
    begin = names.index("SuspendWanted")
    assert names[begin : begin + 2] == ["SuspendWanted", "VersionPublished"]
    after = [name for name in names[begin:] if name in {"WeightsLoaded", "ResumeWanted", "BatchTrained"}]
    assert after[:4] == ["WeightsLoaded", "WeightsLoaded", "ResumeWanted", "BatchTrained"]


def test_the_report_of_a_run_worked_out_by_hand():
    """One slot plays two attempts of 10 s, the trainer takes 5 s, twice: 50 s in all."""
    report = fifo_world(config(trainer={"time_s": constant(5)})).run()
    assert (report.outcome, report.seconds, report.steps, report.trajectories) == ("done", 50.0, 2, 4)
    assert [report.slots_busy, report.envs_busy, report.trainer_busy] == pytest.approx([0.8, 0.8, 0.2])
    assert (report.steps_per_s, report.trajectories_per_s) == (0.04, 0.08)
    assert (report.batch_wait_mean_s, report.batch_wait_p90_s, report.batch_wait_max_s) == (20.0, 20.0, 20.0)
    assert (report.staleness, report.groups_delivered, report.groups_dropped) == ({0: 2}, 2, 0)
    assert (report.waste, report.length_bias, report.groups_settled) == ({}, 0.0, 2)
    assert report.bottleneck == "trainer"
    assert report.because == (
        "20% of slot-seconds were idle while it worked, for a staleness of 0 lets no more groups begin"
    )


def test_training_time_can_be_a_share_of_the_work():
    """2 attempts of 10 s on one slot are 20 s of work."""
    assert fifo_world(config(trainer={"share_of_work": 0.3})).run().seconds == pytest.approx(2 * (20 + 6))


def test_a_deadline_is_told_exactly_when_it_is_due():
    told: Told = []
    made = config(machine={"lease_s": 10, "train": {"group_size": 1, "batch_size": 1}})
    World(made, Alarm(2.5, 4.0), record=lambda now, event: told.append((now, event))).run()
    assert [now for now, event in told if event == TimePassed()] == [2.5, 4.0]


def test_a_scheduler_whose_deadline_never_moves_is_refused():
    stuck = Alarm(5.0)
    stuck.for_ever = [5.0]
    with pytest.raises(InternalError, match="next_deadline stays at"):
        World(config(), stuck).run()


def test_a_run_in_which_nothing_happens_any_more_has_stalled():
    assert World(config(), Alarm()).run().outcome == "stalled"
    beating = config(machine={"beat_s": 60, "train": {"group_size": 1, "batch_size": 1}})
    assert World(beating, Alarm()).run().outcome == "stalled"


def test_a_halt_ends_the_run_with_its_cause():
    assert World(config(), Alarm(order=Halt("disk full"))).run().outcome == "halted: disk full"


def test_a_source_that_ends_ends_the_run():
    made = config(size=2, batch=4, slots=4, steps=50, source={"tasks": 7})
    report = World(made, Machine(made.machine)).run()
    assert (report.outcome, report.trajectories, report.bottleneck) == ("source ended", 14, "source")


def test_a_source_that_ends_after_the_last_step_does_no_harm():
    made = config(size=2, batch=4, slots=4, steps=2, source={"tasks": 4})
    report = World(made, Machine(made.machine)).run()
    assert (report.outcome, report.steps, report.groups_settled) == ("done", 2, 4)


def test_a_report_can_be_taken_at_any_moment():
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    world = fifo_world(config(size=8, batch=64, episode=LONG_TAIL, slots=16, steps=5000))
    with pytest.raises(KeyboardInterrupt):
        world.run(interrupt)
    report = world.report()
    assert report.outcome == "interrupted"
    assert 0 < report.steps < 5000
    assert 0.0 < report.slots_busy <= 1.0


def test_groups_of_timed_steps_are_settled_before_lengths_are_compared():
    made = config(size=8, batch=64, episode=LONG_TAIL, slots=64, steps=10)
    report = fifo_world(made, ahead=3).run()
    assert report.groups_settled == 80
    assert report.length_bias == pytest.approx(0.0)


def test_dropping_what_is_slow_shows_as_waste_and_as_length_bias():
    policy = {"group_size": 8, "batch_size": 64, "staleness": 1, "on_stale": "drop"}
    made = config(episode=LONG_TAIL, slots=32, steps=20, machine={"train": policy})
    report = World(made, Machine(made.machine)).run()
    assert report.dropped["stale"] == report.groups_dropped > 0
    assert report.waste["stale"] > 0.1
    assert report.length_bias < -0.1


def test_faults_cost_work_and_lose_no_group():
    faults = {"crash_share": 0.05, "hang_share": 0.02, "hang_s": 30, "worker_losses_per_hour": 4, "rejoin_s": 30}
    made = config(size=8, batch=64, episode=LONG_TAIL, slots=32, workers=4, steps=20, faults=faults)
    report = World(made, Machine(made.machine)).run()
    assert (report.outcome, report.trajectories) == ("done", 20 * 64)
    assert {"failed", "lost"} <= set(report.waste)


def test_engines_that_die_come_back_and_the_run_goes_on():
    engines = {"count": 3, "update_s": 2, "mean_time_to_restart_s": 100, "restart_s": 20}
    made = config(size=4, batch=16, episode=turns(4, 200), slots=16, engines=engines, steps=30)
    told: Told = []
    report = World(made, Machine(made.machine), record=lambda now, event: told.append((now, event))).run()
    names = [type(event).__name__ for _, event in told]
    assert (report.outcome, report.steps) == ("done", 30)
    assert names.count("EngineLost") > 3
    assert names.count("EngineJoined") > 6


def test_an_external_filter_accepts_its_share():
    policy = {"group_size": 2, "batch_size": 8, "filter": "external"}
    made = config(slots=8, steps=50, reward={"accepted_share": 0.5}, machine={"train": policy})
    report = World(made, Machine(made.machine)).run()
    assert report.dropped["filtered"] / (report.groups_delivered + report.groups_dropped) == pytest.approx(0.5, abs=0.1)


def test_validation_is_played_beside_training():
    told: Told = []
    val = {"group_size": 1, "batch_size": 4, "on_stale": "keep", "ahead": False}
    machine = {"train": {"group_size": 2, "batch_size": 4}, "val": val}
    made = config(slots=4, steps=6, validation={"every": 2, "tasks": 4}, machine=machine)
    World(made, Machine(made.machine), record=lambda now, event: told.append((now, event))).run()
    wanted = [event.step for _, event in told if isinstance(event, BatchWanted) and event.mode == "val"]
    assert wanted[:3] == [0, 1, 2]


@pytest.mark.parametrize("name", ["long_tail", "agentic", "trace"])
def test_every_example_runs(name: str):
    path = EXAMPLES / f"{name}.yaml"
    made = load(path, ["steps=2"], SimConfig).value.located(path.parent)
    report = World(made, Machine(made.machine)).run()
    assert (report.outcome, report.steps) == ("done", 2)


def test_the_large_example_runs_when_it_is_small():
    small = ["slots=200", "engines.count=20", "machine.train.batch_size=64", "steps=2"]
    made = load(EXAMPLES / "ten_thousand_engines.yaml", small, SimConfig).value
    assert World(made, Machine(made.machine)).run().outcome == "done"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"workers": 2}, "workers must not exceed slots (1), got 2"),
        ({"engines": {"peak_tokens_per_s": 1}}, "peak_tokens_per_s must be at least base_tokens_per_s (60), got 1"),
        ({"faults": {"crash_share": 0.6, "hang_share": 0.6}}, "crash_share and hang_share must not exceed 1 together"),
        ({"trainer": {"time_s": constant(1), "share_of_work": 1}}, "share_of_work cannot be used with time_s, got 1"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(setting: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        config(**setting)
    assert message in str(error.value)


def test_slots_are_spread_evenly_over_workers():
    assert config(slots=10, workers=4).worker_slots == [3, 3, 2, 2]
    assert config(slots=130).worker_slots == [44, 43, 43]
