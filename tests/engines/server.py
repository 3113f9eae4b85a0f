"""A small real HTTP server that speaks the completions API, backed by any engine, and misbehaves when told to.

It answers what a vLLM server answers: events with token ids and log-probs, `abort` for what was interrupted, and the
calls that pause, load and put to sleep. Its misdeeds are switches that a test sets before it asks.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from windrow.engines.protocol import Engine
from windrow.errors import EngineError, PromptTooLong
from windrow.requests import Chunk, Request, Sampling, Tokens

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop_token_ids", "stop", "allowed_token_ids")
PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stream", "stop"}
FINISHES = {"stop": "stop", "length": "length", "interrupted": "abort"}


@dataclass
class Misdeeds:
    """What the server does wrong."""

    no_token_ids: bool = False
    no_logprobs: bool = False
    only_plain_words: bool = False  # 400 for anything that the published API does not know
    lose_a_logprob: bool = False
    logprob: float | None = 0.0  # None or a number that is no log-prob: in place of every one
    extra_tokens: int = 0  # more than were asked for
    disconnect_after: int | None = None  # tokens
    hang_after: int | None = None  # tokens; 0: before the first byte
    garbage: bytes = b""  # in place of the first event
    error_event: str = ""  # in place of the second event
    finish_reason: str = ""  # in place of the true one
    never_end: bool = False  # keep the stream open after its last event
    statuses: list[int] = field(default_factory=list)  # of the next requests; 0: reset the connection
    retry_after: str = ""
    longest_prompt: int = 0  # shorter than it says
    control_status: int = 0  # of every control call
    health_status: int = 200


class Server:
    """The server and what it saw."""

    def __init__(self, engine: Engine, decode: Callable[[Tokens], str] | None = None) -> None:
        self.engine = engine
        self.misdeeds = Misdeeds()
        self.url = ""
        self.models: list[dict[str, object]] = [{"id": "tiny", "max_model_len": engine.traits.context_tokens}]
        self.key = ""  # that a client must have
        self.asked: list[dict[str, Any]] = []  # bodies of all requests
        self.calls: list[str] = []  # control calls
        self.disconnects = 0  # clients that went away before the end
        self.has_controls = True
        self.processed = False  # log-probs are those of the allowed tokens
        self.stop = asyncio.Event()  # ends whatever hangs
        self._decode = decode or (lambda tokens: "".join(f"<{token}>" for token in tokens.tolist()))
        self._paused = False
        self._names = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        app.router.add_post("/{call}", self._control)
        return app

    # completions

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        said = await http.json()
        self.asked.append(said)
        if self.misdeeds.hang_after == 0:
            await self.stop.wait()
        if self.misdeeds.statuses:
            return self._refuse(http, self.misdeeds.statuses.pop(0))
        if not self._lets_in(http):
            return _error(401, "wrong key")
        foreign = sorted(set(said) - PLAIN) if self.misdeeds.only_plain_words else []
        if foreign:
            return _error(400, f"Unrecognized request argument supplied: {foreign[0]}")
        limit = self.misdeeds.longest_prompt or self.engine.traits.context_tokens
        if len(said["prompt"]) + said["max_tokens"] > limit:
            return _error(400, f"This model's maximum context length is {limit} tokens, you asked for more")
        return await self._stream(http, self._request(http, said))

    def _request(self, http: web.Request, said: dict[str, Any]) -> Request:
        self._names += 1
        name = http.headers.get("X-Request-Id", str(self._names))
        return Request(
            id=f"cmpl-{name}-0",
            prompt=np.array(said["prompt"], np.int32),
            sampling=Sampling(**{word: _frozen(said[word]) for word in SAMPLING if word in said}),
            seed=said.get("seed", 0),
        )

    async def _stream(self, http: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        sent = 0
        try:
            async with aclosing(self.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    await self._act(http, sent)
                    await response.write(self._event(request, chunk, sent))
                    sent += len(chunk.token_ids)
            await self._act(http, sent)
        except PromptTooLong as error:
            await response.write(_data({"error": {"message": str(error), "code": "context_length_exceeded"}}))
        except EngineError as error:
            await response.write(_data({"error": {"message": str(error)}}))
        except (asyncio.CancelledError, ConnectionResetError):
            self.disconnects += 1
            raise
        await response.write(b"data: [DONE]\n\n")
        if self.misdeeds.never_end:
            await self.stop.wait()
        return response

    async def _act(self, http: web.Request, sent: int) -> None:
        """Misbehave, if it is time to."""
        misdeeds = self.misdeeds
        if misdeeds.hang_after is not None and sent >= misdeeds.hang_after:
            await self.stop.wait()
        if misdeeds.disconnect_after is not None and sent >= misdeeds.disconnect_after:
            assert http.transport is not None
            http.transport.abort()
            await self.stop.wait()

    def _event(self, request: Request, chunk: Chunk, sent: int) -> bytes:
        misdeeds = self.misdeeds
        if misdeeds.garbage and not sent:
            return misdeeds.garbage
        if misdeeds.error_event and sent:
            return _data({"error": {"message": misdeeds.error_event, "code": 500}})
        ids = chunk.token_ids.tolist()
        logprobs: list[float | None] = [float(value) for value in chunk.logprobs]
        if chunk.finish is not None and misdeeds.extra_tokens:
            ids += [1] * misdeeds.extra_tokens
            logprobs += [-1.0] * misdeeds.extra_tokens
        if self.processed and len(request.sampling.allowed_token_ids) == 1:
            logprobs = [0.0] * len(logprobs)
        if misdeeds.logprob != 0.0:
            logprobs = [misdeeds.logprob] * len(logprobs)
        if misdeeds.lose_a_logprob:
            logprobs = logprobs[:-1]
        choice: dict[str, object] = {"index": 0, "text": self._decode(chunk.token_ids)}
        choice["finish_reason"] = misdeeds.finish_reason or (FINISHES[chunk.finish] if chunk.finish else None)
        if not misdeeds.no_logprobs and not misdeeds.only_plain_words:
            choice["logprobs"] = {"tokens": [str(token) for token in ids], "token_logprobs": logprobs}
        if not misdeeds.no_token_ids and not misdeeds.only_plain_words:
            choice["token_ids"] = ids
        return _data({"id": "cmpl", "object": "text_completion", "choices": [choice]})

    def _refuse(self, http: web.Request, status: int) -> web.StreamResponse:
        if status == 0:
            assert http.transport is not None
            http.transport.abort()
        response = _error(status or 500, f"told to answer {status}")
        if self.misdeeds.retry_after:
            response.headers["Retry-After"] = self.misdeeds.retry_after
        return response

    # the rest

    def _lets_in(self, http: web.Request) -> bool:
        return not self.key or http.headers.get("Authorization") == f"Bearer {self.key}"

    async def _models(self, http: web.Request) -> web.Response:
        if not self._lets_in(http):
            return _error(401, "wrong key")
        return web.json_response({"object": "list", "data": self.models}, status=self.misdeeds.health_status)

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response(status=self.misdeeds.health_status)

    async def _is_sleeping(self, http: web.Request) -> web.Response:
        if not self.has_controls:
            return _error(404, "not found")
        released = (await self.engine.health()).state == "released"
        return web.json_response({"is_sleeping": self._paused or released})

    async def _control(self, http: web.Request) -> web.Response:
        call = http.match_info["call"]
        if not self.has_controls:
            return _error(404, "not found")
        if self.misdeeds.control_status:
            return _error(self.misdeeds.control_status, f"told to refuse {call}")
        self.calls.append(f"{call} {http.query_string}".strip())
        body = await http.json() if http.can_read_body else {}
        try:
            await self._do(call, http.query.get("mode", ""), body)
        except EngineError as error:
            return _error(500, str(error))
        return web.json_response({"success": True})

    async def _do(self, call: str, mode: str, body: dict[str, Any]) -> None:
        match call:
            case "pause":
                self._paused = True
                await self.engine.suspend("freeze" if mode == "keep" else "interrupt")
            case "resume":
                self._paused = False
                await self.engine.resume()
            case "abort_requests":
                await self.engine.interrupt(body["request_ids"])
            case "collective_rpc":
                assert body["method"] == "reload_weights", body
                folder = Path(body["kwargs"]["weights_path"])
                await self.engine.load(len(self.calls), folder)
            case "sleep":
                await self.engine.release()
            case "wake_up":
                self._paused = False
                await self.engine.restore()
                await self.engine.resume()
            case _:
                assert call == "reset_prefix_cache", call


@asynccontextmanager
async def serving(engine: Engine, decode: Callable[[Tokens], str] | None = None) -> AsyncIterator[Server]:
    """A server on a free port, in this loop; the engine is started and closed with it."""
    await engine.start()
    server = Server(engine, decode)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.stop.set()
        try:
            await engine.close()
        finally:
            await runner.cleanup()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _data(event: dict[str, object]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "test", "code": status}}, status=status)
