"""Every environment that comes with Windrow passes its own check."""

import pytest

from windrow.checking.examining import examine
from windrow.checking.loading import load
from windrow.checking.settings import CheckSettings
from windrow.envs.shipped import SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_environment_passes(name: str):
    """With few tasks; `windrow env check NAME --tasks 1000` plays as many as one likes."""
    report, scripts = examine(load(name, {}), CheckSettings(tasks=30))
    assert report.findings == ()
    assert report.ok
    assert (report.solve_score, report.tasks) == (1.0, 30)
    assert report.random_score is not None
    assert report.random_score < 0.8
    assert scripts, "some of them are played again elsewhere"
