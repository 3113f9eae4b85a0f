"""The server that `run.py` started, as the contract suite wants it."""

import os
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.engines.kits import Kit, Rig
from tests.vllm.models import CONTEXT

from windrow.engines.openai import OpenAIEngine, OpenAISettings

URL = os.environ.get("WINDROW_VLLM_URL", "")
MODELS = Path(os.environ.get("WINDROW_VLLM_MODELS", "."))


def vllm_settings(**changes: Any) -> OpenAISettings:
    asked: dict[str, Any] = {"base_url": URL, "model": "tiny", "context_tokens": CONTEXT, "flavour": "vllm"}
    return OpenAISettings(**{**asked, **changes})


@asynccontextmanager
async def vllm(folder: Path) -> AsyncIterator[Rig]:
    brake = MODELS / "brake"
    engine = OpenAIEngine("one", vllm_settings())
    try:
        yield Rig(
            engine,
            hold=brake.touch,
            let_go=lambda: brake.unlink(missing_ok=True),
            sampled=sampled,
            long=600,
        )
    finally:
        brake.unlink(missing_ok=True)
        await engine.close()


def weights(number: int, folder: Path) -> Path:
    """There are three, so that the higher numbers come again."""
    return MODELS / f"weights{number % 3}"


def sampled() -> int:
    """Tokens that the server has ever sampled, in its own words."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=30) as answer:  # noqa: S310 -- our own server
        found = re.search(r"^vllm:generation_tokens_total\{.*\} ([0-9.e+]+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


KIT = Kit("vllm", vllm, weights, load_ends_frozen=True)
