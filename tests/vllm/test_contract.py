"""The promises of an engine, held by a real vLLM server."""

import pytest
from tests.engines.kits import Kit
from tests.engines.test_contract import *  # noqa: F403 -- the same suite, with another kit
from tests.vllm.given import KIT


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends, ends because the server ended it, not because we hung up."""
    monkeypatch.setattr("windrow.engines.openai.engine.ABORT_GRACE_S", 1e6)


@pytest.fixture  # type: ignore[no-redef]  # in place of the suite's own kits
def kit() -> Kit:
    return KIT
