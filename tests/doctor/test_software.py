"""What is said about software, from versions."""

import pytest

from windrow.doctor import software
from windrow.doctor.findings import Finding


@pytest.mark.parametrize(
    ("finding", "state", "says"),
    [
        (software.python((3, 10)), "bad", "3.11 or newer"),
        (software.python((3, 12)), "ok", ""),
        (software.needed({"numpy": None}), "bad", "pip install windrow"),
        (software.models({"torch": None}), "warn", "windrow[torch]"),
        (software.models({"torch": "2.6"}), "ok", ""),
        (software.extras({"envs": ["gymnasium"], "data": []}), "ok", "pip install 'windrow[NAME]'"),
        (software.extras({"envs": []}), "ok", ""),
        (software.devices(0), "ok", ""),
        (software.devices(None), "ok", ""),
        (software.devices(8), "ok", "engine.device"),
        (software.sandbox(None, "no Linux"), "warn", "cannot be run"),
        (software.sandbox("limits", ""), "warn", "Landlock"),
        (software.sandbox("namespaces", ""), "ok", ""),
    ],
)
def test_a_state_comes_with_what_to_do(finding: Finding, state: str, says: str):
    assert finding.state == state
    assert says in finding.advice


def test_everything_is_looked_at_here():
    names = [finding.name for finding in software.findings()]
    assert names == ["python", "packages", "models", "extras", "devices", "sandbox"]
