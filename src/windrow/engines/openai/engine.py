"""An engine that is a server somewhere else: gate and books are here, the sampling is there.

Promises: everything of `protocol`. The gate is on this side: what comes to a closed one waits here. When `suspend`
returns, a plain server's connections are closed; a vLLM server has confirmed that it is paused. A request is sent again
only while not one byte of an answer has come; once there are tokens, whatever happens ends it as interrupted with them.
What a server cannot do is refused by name.

What it does not do: it starts no server, and it cannot see what a plain server does after a connection is closed.
A vLLM server belongs to one engine, which pauses it for everybody. Requests that are open while it loads weights end as
interrupted, even if they were frozen: which of their tokens came before the change could not be told otherwise.
For evaluation (`require_training: false`, `can_train` is false) a server may give no token ids; then they are those of
its text, cut into tokens piece by piece, which is not always how they were sampled, and log-probs are NaN.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from windrow.engines.openai import wire
from windrow.engines.openai.asking import ask
from windrow.engines.openai.checkpoint import checksum_of, is_tied
from windrow.engines.openai.control import Control
from windrow.engines.openai.flight import Flight
from windrow.engines.openai.gate import Gate
from windrow.engines.openai.probe import Found, find_out
from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.openai.wire import BrokenOff, Encode, Unanswered
from windrow.engines.protocol import Acknowledgement, Health, LoadReport, Traits, Weights
from windrow.errors import ConfigError, EngineError, EngineLost, PromptTooLong, Refused
from windrow.requests import Chunk, Request
from windrow.types import How

if TYPE_CHECKING:
    from windrow.engines.openai.http import Http

ABORT_GRACE_S = 5.0
"""How long the last words of an aborted request may take; they are on their way."""
END_GRACE_S = 1.0
"""How long the end of a stream may take after its last token; then its connection is not used again."""
HEALTH_S = 5.0
"""A server that says nothing for so long is not well."""
CLOSED = "it was closed"
CLOSE_GRACE_S = 5.0
"""How long a server that is left may take to go on."""


class OpenAIEngine:
    """Any OpenAI-compatible server."""

    def __init__(
        self,
        name: str,
        settings: OpenAISettings,
        *,
        devices: tuple[int, ...] = (),
        version: int = 0,
        encode: Encode | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._devices = devices
        self._encode = encode
        self._checksum = ""
        self._health = Health(state="cold")
        self._http: Http | None = None
        self._control: Control | None = None
        self._found: Found | None = None
        self._gate = Gate(settings.capacity, version=version, timeout_s=settings.request_timeout_s)
        self._paused = False  # the server is paused, by us
        self._order = asyncio.Lock()  # one call at a time changes the state of the server

    @property
    def version(self) -> int:
        """Of the weights that it samples with."""
        return self._gate.version

    @property
    def traits(self) -> Traits:
        """Before the start: what is expected of the server; then: what it can do."""
        found = self._found
        has_controls = self.settings.flavour == "vllm" if found is None else found.has_controls
        return Traits(
            capacity=self.settings.capacity,
            context_tokens=self.settings.context_tokens,
            devices=self._devices,
            can_train=self.settings.require_training,  # proved at the start
            can_freeze=has_controls,
            can_load=has_controls,
            deterministic=False,
        )

    async def start(self) -> Acknowledgement:
        if self._health.state == "dead":
            raise EngineLost(self._says(f"it is dead: {self._health.why}"))
        if self._health.state == "cold":
            http = _connect(self.settings)
            try:
                self._found = await find_out(self._says(), http, self.settings, can_encode=self._encode is not None)
            except BaseException:  # only to undo
                await http.close()
                raise
            self._http = http
            if self._found.has_controls:
                self._control = Control(self._says(), http, self.settings.control_timeout_s)
            self._health = Health(state="up")
        return self._acknowledge()

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        flight = self._admit(request)
        try:
            while True:
                while flight.outbox:
                    chunk = flight.outbox.popleft()
                    yield chunk
                    if chunk.finish is not None:
                        return
                if flight.error is not None:
                    raise flight.error
                await self._advance(flight)
        finally:
            flight.close()
            self._gate.leave(flight)

    async def interrupt(self, requests: Sequence[str]) -> None:
        waiting, running = self._gate.waiting, self._gate.running
        self._gate.cut(*[waiting[name] for name in requests if name in waiting])
        async with self._order:
            await self._stop([running[name] for name in requests if name in running])

    async def suspend(self, how: How) -> None:
        if how == "freeze" and not self.traits.can_freeze:
            raise Refused(self._says(f"it cannot freeze requests; suspend with interrupt or drain{self._hint}"))
        self._gate.suspended = True
        if how == "drain":
            await self._drain()
        async with self._order:
            if how == "freeze":
                await self._freeze()
            elif how == "interrupt" or self._is_drained:
                await self._stop_all()

    async def resume(self) -> None:
        async with self._order:
            await self._go_on()
            self._gate.open()

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        if weights is None:
            if version != self.version:
                self._gate.label(version)
                self._checksum = ""  # whoever changed the weights did not say what they are
            return self._acknowledge()
        folder = self._loadable(weights)
        checksum = await asyncio.to_thread(checksum_of, folder)
        async with self._order:
            if (version, checksum) != (self.version, self._checksum):
                await self._reload(folder, version, checksum)
        return self._acknowledge()

    async def release(self) -> None:
        async with self._order:
            if self._health.state == "up":
                self._health = Health(state="released")
                self._gate.cut_all()
                if self._control is not None:
                    await self._control.sleep()

    async def restore(self) -> None:
        async with self._order:
            if self._health.state != "released":
                return
            if self._control is not None:
                await self._control.wake()
                self._paused = False
                if self._gate.suspended:
                    await self._stop_all()
            self._health = Health(state="up")

    async def health(self) -> Health:
        if self._http is None or self._health.state == "dead":
            return self._health
        why = await self._unwell()
        return Health(state="dead", why=why) if why else self._health

    async def load_report(self) -> LoadReport:
        return self._gate.report()

    async def close(self) -> None:
        self._gate.cut_all()
        if self._health.why == CLOSED:
            return
        self._health = Health(state="dead", why=CLOSED)
        if self._control is not None and self._paused:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await self._control.resume()
        if self._http is not None:
            await self._http.close()

    # one request

    def _admit(self, request: Request) -> Flight:
        """Take a request in, or refuse it by name."""
        if self._health.state in ("cold", "dead") or self._found is None:
            raise EngineLost(self._says(f"it does not serve: {self._health.why or 'it was never started'}"))
        if self._health.state == "released":
            raise EngineError(self._says(f"it has released its devices; {request.id} must go elsewhere"))
        if self._gate.knows(request.id):
            raise EngineError(self._says(f"it has a request {request.id} already"))
        room = self.settings.context_tokens - len(request.prompt)
        if room <= 0:
            raise PromptTooLong(
                f"{request.id} has {len(request.prompt)} tokens, the model's context is {self.settings.context_tokens}"
            )
        limit = min(request.room, room)
        reader = wire.Reader(
            f"{request.id} on {self.name}", limit, trains=self._trains(request, self._found), encode=self._encode
        )
        flight = Flight(request, limit, reader)
        flight.version = self.version
        if limit <= 0:
            flight.end("length")
        else:
            self._gate.enter(flight)
        return flight

    def _trains(self, request: Request, found: Found) -> bool:
        """Whether log-probs of this request mean what they must; refuses what the server cannot do."""
        wire.refuse_unknown(request.sampling, self.settings.flavour)
        if not found.trains:
            return False
        why = wire.mismatch(request.sampling, found.mode)
        if why and self.settings.require_training:
            raise ConfigError(f"{request.id} on {self.name}: {why}")
        return not why

    async def _advance(self, flight: Flight) -> None:
        """Wait for the next thing that happens to a request."""
        try:
            match flight.phase:
                case "waiting":
                    await flight.wake.wait()
                case "connecting":
                    await self._ask(flight)
                case "streaming":
                    await self._read(flight)
                case _:
                    assert_never(flight.phase)
        except TimeoutError:
            self._time_out(flight)
        except Unanswered as error:
            await self._lose(flight, f"no answer: {error}")
        except BrokenOff as error:
            await self._lose(flight, f"the answer broke off after {flight.tokens} tokens: {error}")
        if flight.over:
            self._gate.leave(flight)

    async def _ask(self, flight: Flight) -> None:
        assert self._http is not None
        assert self._found is not None
        await ask(self._http, flight, self.settings, self._found.words)

    async def _read(self, flight: Flight) -> None:
        data = await flight.within(flight.answer.more())
        if not data:
            raise BrokenOff("the stream ended without a finish")
        flight.take(data)
        if flight.over and flight.error is None:
            with suppress(TimeoutError, BrokenOff):
                async with asyncio.timeout(END_GRACE_S):
                    while await flight.answer.more():
                        pass

    def _time_out(self, flight: Flight) -> None:
        """Its deadline has come, or somebody cut it."""
        flight.harvest()
        if flight.tokens or flight.ending:
            flight.end()
        flight.fail(
            EngineError(f"{flight.request.id} on {self.name}: no token within {self.settings.request_timeout_s:g} s")
        )

    async def _lose(self, flight: Flight, why: str) -> None:
        """Nothing more comes: because it was ended, because the server is gone, or by accident."""
        if flight.ending:
            flight.end()
        if flight.over:
            return
        words = f"{flight.request.id} on {self.name}: {why}"
        unwell = await self._unwell()
        if unwell:
            flight.fail(EngineLost(f"{words}; {unwell}"))
        elif flight.tokens:
            flight.end()
        else:
            flight.fail(EngineError(words))

    # the server

    async def _go_on(self) -> None:
        """Let the server sample again."""
        if self._paused and self._health.state == "up" and self._control is not None:
            await self._control.resume()
            self._paused = False
        self._gate.thaw()

    async def _drain(self) -> None:
        """Let what runs, or is frozen, come to its end."""
        if self._gate.frozen:
            async with self._order:
                await self._go_on()
        await self._gate.quiet.wait()

    @property
    def _is_drained(self) -> bool:
        """Still suspended, and what ran came to its end; the server may not know yet that clients went away."""
        return self._gate.suspended and not self._gate.frozen

    async def _stop(self, flights: Sequence[Flight], *, everything: bool = False) -> None:
        """End what runs with all that was sampled; the server is asked for it if it can answer, else left."""
        control = self._control
        asked = [flight for flight in flights if control is not None and flight.phase == "streaming"]
        self._gate.cut(*[flight for flight in flights if control is None or flight.phase != "streaming"])
        if control is None or not (asked or everything):
            return
        for flight in asked:
            flight.ending = True
        try:
            if everything:
                await control.pause("abort")
                self._paused = True
            else:
                await control.abort([flight.request.id for flight in asked])
        except EngineError:
            self._gate.cut(*asked)
            return
        for flight in asked:
            flight.end_by(_now() + ABORT_GRACE_S)
            self._gate.leave(flight)

    async def _stop_all(self) -> None:
        running = [*self._gate.running.values()]
        if running or not self._paused:
            await self._stop(running, everything=True)
        self._gate.frozen = False

    async def _freeze(self) -> None:
        if self._control is not None and not self._paused:
            await self._control.pause("keep")
            self._paused = True
            self._gate.freeze()

    async def _reload(self, folder: Path, version: int, checksum: str) -> None:
        """Change the weights while nothing is sampled; a server that failed to is not used until it succeeds."""
        assert self._control is not None
        self._gate.loading = True
        try:
            await self._stop_all()
            await self._control.reload(folder)
        except EngineError as error:
            self._health = Health(state="dead", why=f"version {version} could not be loaded: {error}")
            raise
        finally:
            self._gate.loading = False
        self._gate.label(version)
        self._checksum = checksum
        self._health = Health(state="up")
        if not self._gate.suspended:
            await self._control.resume()
            self._paused = False
        self._gate.seat()

    def _loadable(self, weights: Weights) -> Path:
        """The folder, if this server can load it."""
        if self._health.state == "cold" or self._health.why == CLOSED:
            raise EngineLost(self._says(f"it does not serve: {self._health.why or 'it was never started'}"))
        if not self.traits.can_load:
            raise Refused(
                self._says(
                    f"it cannot load weights; change them at the server and say so with load(version, None){self._hint}"
                )
            )
        if not isinstance(weights, Path):
            raise Refused(
                self._says("it loads folders, not tensors; save them as safetensors where the server can read")
            )
        if self._health.state == "released":
            raise Refused(self._says("it has released its devices; restore it before it loads"))
        if not self.settings.allow_tied and is_tied(weights):
            raise ConfigError(
                self._says(
                    f"{weights} has tied embeddings, of which a vLLM on a CPU keeps the old output head; "
                    f"save it untied, or set allow_tied: true for a server on GPUs"
                )
            )
        return weights.resolve()

    @property
    def _hint(self) -> str:
        return ", or start it with VLLM_SERVER_DEV_MODE=1" if self.settings.flavour == "vllm" else ""

    async def _unwell(self) -> str:
        """Why the server does not answer; empty if it does."""
        assert self._http is not None
        path = "/health" if self.settings.flavour == "vllm" else "/v1/models"
        try:
            async with asyncio.timeout(HEALTH_S):
                reply = await self._http.get(path)
        except Unanswered as error:
            return f"cannot reach {self.settings.root}: {error}"
        except TimeoutError:
            return f"{self.settings.root} says nothing for {HEALTH_S:g} s"
        return f"{self.settings.root} answers {reply.status} to {path}" if reply.status >= 500 else ""

    def _acknowledge(self) -> Acknowledgement:
        return Acknowledgement(version=self.version, checksum=self._checksum)

    def _says(self, words: str = "") -> str:
        return f"engine {self.name}: {words}" if words else f"engine {self.name}"


def _connect(settings: OpenAISettings) -> "Http":
    try:
        from windrow.engines.openai.http import Http
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise ConfigError("an openai engine needs aiohttp, which is missing; pip install 'windrow[openai]'") from error
    return Http(settings)


def _now() -> float:
    return asyncio.get_running_loop().time()
