"""Where the tests of the rollout path have their engines, queue and players."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rollout import kit

IN_BOTH = ("test_contract_",)
"""Files whose tests are played twice: in one process, and over hosts next door."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = Path(metafunc.definition.path)
    if file.parent == Path(__file__).parent and file.name.startswith(IN_BOTH):
        metafunc.parametrize("premises", ["here", "next door"], indirect=True)


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
