"""Asking a server, and asking again where that is safe.

Promises: a question is asked again only if not one byte of an answer came, or if the server said to come later; a
bounded number of times, waiting longer each time or as long as the server wishes, never beyond the request's deadline.
"""

import asyncio
from typing import TYPE_CHECKING

from windrow.engines.openai import wire
from windrow.engines.openai.flight import Flight
from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.openai.wire import Unanswered, Words
from windrow.errors import EngineError

if TYPE_CHECKING:
    from windrow.engines.openai.http import Answer, Http

COME_LATER = (429, 503)


async def ask(http: "Http", flight: Flight, settings: OpenAISettings, words: Words) -> None:
    """Send a request until the server begins to answer it; a refusal is the request's error."""
    body = wire.body(flight.request, flight.limit, settings, words)
    for tries in range(settings.retries + 1):
        is_last = tries == settings.retries
        pause_s = settings.backoff_s * 2**tries
        try:
            answer = await flight.within(http.ask("/v1/completions", body, flight.request.id))
        except Unanswered:
            if is_last:
                raise
        else:
            if answer.status == 200:
                flight.answered(answer)
                return
            error = await _refusal(flight, answer)
            asked_s = answer.retry_after_s() if answer.status in COME_LATER else None
            if answer.status not in COME_LATER or is_last or not _fits(flight, asked_s):
                flight.fail(error)
                return
            pause_s = pause_s if asked_s is None else asked_s
        await flight.within(asyncio.sleep(pause_s))


async def _refusal(flight: Flight, answer: "Answer") -> EngineError:
    try:
        complaint = await flight.within(answer.complaint())
    finally:
        answer.close()
    return wire.fault(flight.request.id, answer.status, complaint)


def _fits(flight: Flight, wait_s: float | None) -> bool:
    """Whether the server's wish leaves time for an answer."""
    return wait_s is None or asyncio.get_running_loop().time() + wait_s < flight.deadline
