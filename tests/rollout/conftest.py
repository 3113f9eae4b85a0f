"""Where the tests of the rollout path have their engines, queue and players."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rollout import kit
from tests.rollout.ray.left_out import NOT_NEXT_DOOR, NOT_ON_RAY

IN_BOTH = (
    "test_contract_",
    "test_failures_",
    "test_passes",
    "test_pinned",
    "test_schedulers",
    "test_snapshots",
    "test_staleness",
    "test_stream",
)
"""How the names of files begin whose tests are played twice: in one process, and over hosts next door."""
ON_RAY = ("test_contract_", "test_passes", "test_pinned", "test_schedulers", "test_staleness", "test_stream")
"""The same for those that are played over real Ray actors as well."""
IN_BOTH_IF_THERE_IS_TIME = ("test_cancellation", "test_disturbance", "test_learning_sources", "test_rewards")
"""The same for those that take minutes."""
importlib.import_module("tensordict")  # takes seconds, so not in the middle of the first test
PLAYED_TWICE = IN_BOTH + (IN_BOTH_IF_THERE_IS_TIME if "WINDROW_SOAK" in os.environ else ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = metafunc.definition.path
    if file.parent == Path(__file__).parent and file.name.startswith(PLAYED_TWICE):
        name = metafunc.function.__name__
        places: list[object] = ["here"]
        if name not in NOT_NEXT_DOOR:
            places.append("next door")
        if file.name.startswith(ON_RAY) and name not in NOT_ON_RAY:
            places.append(pytest.param("on ray", marks=pytest.mark.ray))
        metafunc.parametrize("premises", places, indirect=True)


@pytest.fixture(autouse=True)
def premises(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where rigs live."""
    if getattr(request, "param", "here") == "here":
        yield
        return
    pytest.importorskip("ray")
    if request.param == "on ray":
        request.getfixturevalue("ray_session")
        from tests.rollout.ray.on_ray import on_ray

        with on_ray() as far:
            monkeypatch.setattr(kit, "premises", far)
            yield
        return
    from tests.rollout.ray.next_door import next_door  # not for those who have no Ray

    with next_door() as there:
        monkeypatch.setattr(kit, "premises", there)
        yield
