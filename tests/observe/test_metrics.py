"""The one table of metrics."""

import pytest

from windrow.errors import InternalError
from windrow.observe.metrics import METRICS, Meter


def test_an_undeclared_name_is_an_error_that_suggests_the_nearest():
    with pytest.raises(
        InternalError, match=r"'batch/group_total' is not in the table; did you mean batch/groups_total\?"
    ):
        Meter().count("batch/group_total")


@pytest.mark.parametrize(
    "use",
    [
        lambda meter: meter.set("batch/groups_total", 1),
        lambda meter: meter.count("engine/serving"),
        lambda meter: meter.observe("engine/serving", [1.0]),
        lambda meter: meter.count("batch/wait_s"),
        lambda meter: meter.observe("episode/success", [1.0]),
        lambda meter: meter.judge("batch/wait_s", [True]),
        lambda meter: meter.count("group/dropped_total"),
        lambda meter: meter.count("batch/groups_total", part="why"),
    ],
)
def test_a_metric_is_used_as_it_was_declared(use):
    with pytest.raises(InternalError, match="used otherwise"):
        use(Meter())


def test_a_share_is_how_many_of_those_since_the_last_look_are_so():
    meter = Meter()
    meter.judge("episode/success", [True, False, False])
    meter.judge("episode/success", [False])
    meter.judge("episode/success_by_tag", [True], "maze")
    assert meter.look() == {"episode/success": 0.25, "episode/success_by_tag/maze": 1.0}
    meter.judge("episode/success", [True])
    assert meter.look() == {"episode/success": 1.0}


def test_a_counter_is_a_sum_since_the_last_look():
    meter = Meter()
    meter.count("batch/groups_total", 3)
    meter.count("batch/groups_total")
    meter.count("group/dropped_total", part="stale")
    assert meter.look() == {"batch/groups_total": 4, "group/dropped_total/stale": 1}
    assert meter.look() == {}


def test_a_spread_is_mean_and_maximum():
    meter = Meter()
    meter.observe("batch/wait_s", [1.0, 5.0])
    meter.observe("batch/wait_s", [3.0])
    meter.observe("episode/score", [])
    assert meter.look() == {"batch/wait_s/max": 5.0, "batch/wait_s/mean": 3.0}


def test_a_maximum_may_be_negative():
    meter = Meter()
    meter.observe("episode/score", [-3.0, -1.0])
    assert meter.look() == {"episode/score/max": -1.0, "episode/score/mean": -2.0}


def test_a_gauge_is_its_last_value():
    meter = Meter()
    meter.set("engine/serving", 3)
    meter.set("engine/serving", 2)
    assert meter.look() == {"engine/serving": 2}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_named_by_stage_and_says_what_it_is(name: str):
    stage, _, what = name.partition("/")
    assert stage in ("batch", "episode", "reward", "attempt", "group", "engine")
    assert what
    assert METRICS[name].what
    assert (METRICS[name].kind == "counter") == name.endswith("_total")
