"""Files for sources, written once."""

from pathlib import Path

import pytest
from tests.sources.kits import write_all


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("sources"))
