"""How a vLLM server is told to stop, go on, load and sleep; it must run with VLLM_SERVER_DEV_MODE=1.

Promises: a call returns when the server has confirmed it, or raises. Pausing keeps what the server computed for
prompts; loading forgets it. Nothing here knows which requests there are.

A server belongs to one engine: pausing it pauses it for everybody.

Two traps of vLLM 0.32 on a CPU, both measured: `reload_weights` leaves the output head of a tied checkpoint as it was
(refused, see `allow_tied`), and a request with a seed whose prompt is computed in parts kills the server (start it with
--no-enable-chunked-prefill, or set send_seed: false).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windrow.engines.openai.wire import Unanswered, fault
from windrow.errors import EngineError, EngineLost
from windrow.types import Value, from_json

if TYPE_CHECKING:
    from windrow.engines.openai.http import Http

PauseMode = Literal["abort", "keep"]
"""`abort`: what runs ends with its partial tokens; `keep`: it stays open and goes on later."""


class Control:
    """The administration of one vLLM server."""

    def __init__(self, who: str, http: "Http", timeout_s: float) -> None:
        self._who = who
        self._http = http
        self._timeout_s = timeout_s

    async def pause(self, mode: PauseMode) -> None:
        await self._tell(f"/pause?mode={mode}&clear_cache=false")

    async def resume(self) -> None:
        await self._tell("/resume")

    async def abort(self, requests: Sequence[str]) -> None:
        """End some requests with their partial tokens; unknown ones are ignored."""
        await self._tell("/abort_requests", {"request_ids": [f"cmpl-{request}-0" for request in requests]})

    async def reload(self, folder: Path) -> None:
        """Take the weights of a folder that the server can read; it must be paused."""
        await self._tell("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        answer = await self._tell("/reset_prefix_cache?reset_running_requests=true")
        if not from_json(answer, _Success).success:
            raise EngineError(f"{self._who}: the server could not forget what older weights computed")

    async def sleep(self) -> None:
        await self._tell("/sleep?level=1")

    async def wake(self) -> None:
        """Wakes the server; it is not paused any more then."""
        await self._tell("/wake_up")

    async def _tell(self, path: str, body: object = None) -> bytes:
        call = path.partition("?")[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._http.post(path, body)
        except Unanswered as error:
            raise EngineLost(f"{self._who}: no answer to {call}: {error}") from error
        except TimeoutError as error:
            raise EngineLost(f"{self._who}: no answer to {call} within {self._timeout_s:g} s") from error
        if reply.status != 200:
            raise fault(f"{self._who} {call}", reply.status, reply.content)
        return reply.content


class _Success(Value, frozen=True):
    success: bool = True
