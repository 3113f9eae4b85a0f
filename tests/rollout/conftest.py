"""Where the tests of the rollout path have their engines, queue and players."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rollout import kit
from tests.rollout.ray.left_out import LEFT_OUT

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
IN_BOTH_IF_THERE_IS_TIME = ("test_cancellation", "test_disturbance", "test_learning_sources", "test_rewards")
"""The same for those that take minutes."""
PLAYED_TWICE = IN_BOTH + (IN_BOTH_IF_THERE_IS_TIME if "WINDROW_SOAK" in os.environ else ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = metafunc.definition.path
    if file.parent == Path(__file__).parent and file.name.startswith(PLAYED_TWICE):
        both = ["here", "next door"]
        metafunc.parametrize("premises", both[:1] if metafunc.function.__name__ in LEFT_OUT else both, indirect=True)


@pytest.fixture(autouse=True)
def premises(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where rigs live."""
    if getattr(request, "param", "here") == "here":
        yield
        return
    pytest.importorskip("ray")
    from tests.rollout.ray.next_door import next_door  # not for those who have no Ray

    with next_door() as there:
        monkeypatch.setattr(kit, "premises", there)
        yield
