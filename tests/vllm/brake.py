"""A brake inside the vLLM server: while a file exists every step takes its time, so that tests meet requests alive.

Loaded by the server (`--logits-processors brake:Brake`), not by us. The API of a busy server may say nothing for
seconds; a request that a test wants to interrupt must not come to its end in the meantime.
"""

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]  # noqa: TID253 -- the server has it
    LogitsProcessor,
)

STEP_S = 0.05


class Brake(LogitsProcessor):  # type: ignore[misc]  # unknown where types are checked
    """Changes nothing but the time."""

    def __init__(self, _config: Any, _device: Any, _is_pinned: bool) -> None:
        self._file = Path(os.environ["WINDROW_VLLM_MODELS"]) / "brake"

    def apply(self, logits: Any) -> Any:
        if self._file.exists():
            time.sleep(STEP_S)
        return logits

    def is_argmax_invariant(self) -> bool:
        return False  # or greedy sampling would not call it

    def update_state(self, _update: Any) -> None:
        pass
