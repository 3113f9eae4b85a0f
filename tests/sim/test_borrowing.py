"""Training that borrows devices of generation, on the virtual clock."""

from typing import Any

import pytest
from msgspec import ValidationError
from tests.sim.given import config, constant, turns

from windrow.core.events import AnyEvent, EngineReady, EngineReleased, ExpandWanted, ShrinkWanted
from windrow.core.machine import Machine
from windrow.errors import ConfigError
from windrow.sim.config import SimConfig
from windrow.sim.report import Report
from windrow.sim.world import World

Told = list[tuple[float, AnyEvent]]
PACE = {"base_tokens_per_s": 10.0, "peak_tokens_per_s": 10.0, "prefill_tokens_per_s": 1e9}
"""An engine that does one thing after the other: 10 tokens per second, however many ask."""


def lent(borrows: list[int], *, staleness: float = 0.0, **engines: Any) -> SimConfig:
    """Eight episodes of ten seconds' work on two engines; training takes a minute."""
    policy = {"group_size": 2, "batch_size": 8, "staleness": staleness}
    return config(
        slots=8,
        steps=4,
        episode=turns(1, 100),
        engines={"count": 2, "devices": 1, "capacity": 8, **PACE, **engines},
        trainer={"time_s": constant(60.0), "borrows": borrows},
        machine={"train": policy},
    )


def played(made: SimConfig) -> tuple[Report, Told]:
    told: Told = []
    return World(made, Machine(made.machine), record=lambda now, event: told.append((now, event))).run(), told


def times(told: Told, kind: type[AnyEvent]) -> list[float]:
    return [now for now, event in told if isinstance(event, kind)]


def test_generation_shrinks_before_training_and_grows_after_the_update():
    report, told = played(lent([1]))
    assert report.outcome == "done"
    shrunk, grown = times(told, ShrinkWanted), times(told, ExpandWanted)
    assert shrunk[:2] == pytest.approx([40.0, 140.0])
    assert grown[:2] == pytest.approx([100.0, 200.0])
    assert report.seconds == pytest.approx(400.0)  # 40 s of generation, 60 s of training, each time


def test_a_hand_over_costs_time_each_way():
    report, told = played(lent([1], hand_over_s=5.0))
    assert times(told, EngineReleased)[0] == pytest.approx(45.0)
    assert times(told, ExpandWanted)[0] == pytest.approx(105.0)
    assert times(told, EngineReady)[2] == pytest.approx(110.0)  # after the two that joined at the beginning
    assert report.seconds > 400.0


def test_where_training_borrows_everything_generation_pauses_and_loses_nothing():
    report, told = played(lent([0, 1], hand_over_s=1.0))
    assert report.outcome == "done"
    assert times(told, ShrinkWanted) == []
    assert report.seconds == pytest.approx(4 * (40.0 + 1.0 + 60.0) + 3 * 1.0)
    assert report.engines_active == pytest.approx(160.0 / report.seconds)


def test_with_a_bound_the_engines_that_remain_generate_while_training_works():
    apart, _ = played(lent([], staleness=1.0))
    some, _ = played(lent([1], staleness=1.0))
    everything, _ = played(lent([0, 1], staleness=1.0))
    assert apart.seconds < some.seconds < everything.seconds


@pytest.mark.parametrize(
    ("borrows", "engines", "says"),
    [
        ([2], {}, "trainer.borrows names devices .2., and there are 2"),
        ([0], {"devices": 2}, "takes a part of an engine; add devices .1."),
        ([0], {"mean_time_to_restart_s": 10.0}, "cannot be used with engines.mean_time_to_restart_s"),
    ],
)
def test_what_cannot_be_borrowed_is_refused(borrows: list[int], engines: dict[str, Any], says: str):
    with pytest.raises((ConfigError, ValidationError), match=says):
        lent(borrows, **engines)
