"""An engine that plays a script: deterministic, on the event loop's clock, told to fail, hang or die at will.

Promises: everything of `protocol`, exactly. A request's tokens follow from its seed alone; when they come follows from
the latency model and the loop's clock, so on virtual time a whole run is the same every time. It can be told to
misbehave in every way that a real engine does.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from math import floor, inf, ulp
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from windrow.engines.buckets import Shipment
from windrow.engines.protocol import Acknowledgement, Health, LoadReport, Traits, Weights
from windrow.errors import ConfigError, EngineError, EngineLost, PromptTooLong
from windrow.requests import Chunk, FinishReason, Logprobs, Request, Tokens
from windrow.text import Codec
from windrow.types import How, Meta, Record, Value

MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The two multipliers of the splitmix64 finaliser."""
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ROUNDING = 1e-9
"""Of a token, so that one that is due now counts."""

Script = Callable[[Request], Sequence[int]]
"""What a turn says, from its first token on; must depend on the request's seed and on what precedes the turn alone."""


class ScriptedSettings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a scripted engine behaves."""

    vocabulary: Annotated[int, Meta(ge=1, description="tokens to choose from")] = 256
    context_tokens: Annotated[int, Meta(ge=2, description="longest prompt and response together")] = 4096
    capacity: Annotated[int, Meta(ge=1, description="requests that it says it serves well at once")] = 64
    first_token_s: Annotated[float, Meta(ge=0.0, description="time to the first token of a request")] = 0.0
    token_s: Annotated[float, Meta(ge=0.0, description="time per token")] = 0.0
    release_s: Annotated[float, Meta(ge=0.0, description="time to give the devices back")] = 0.0
    restore_s: Annotated[float, Meta(ge=0.0, description="time to take them again")] = 0.0
    load_s: Annotated[float, Meta(ge=0.0, description="time to take new weights")] = 0.0
    stream_every: Annotated[int, Meta(ge=1, description="tokens per chunk")] = 16


class ScriptedEngine:
    """Says what it is told, when it is told."""

    def __init__(
        self,
        name: str,
        settings: ScriptedSettings | None = None,
        *,
        script: Script | None = None,
        devices: tuple[int, ...] = (),
        version: int = 0,
        codec: Codec | None = None,
    ) -> None:
        self.name = name
        self.settings = settings or ScriptedSettings()
        self.version = version
        self.sampled = 0  # tokens, ever
        self.refuses: dict[str, Exception] = {}  # by the name of a call: what it raises from now on
        self._script = script or self.by_seed
        self._codec = codec
        self._devices = devices
        self._runs: dict[str, _Run] = {}
        self._checksum = "initial"
        self._gate_closed = False
        self._state: Health = Health(state="cold")
        self._hangs = False
        self._hold_at = inf  # tokens of a turn after which everything pauses
        self._overrun = 0
        self._quiet = asyncio.Event()

    @property
    def traits(self) -> Traits:
        return Traits(
            capacity=self.settings.capacity,
            context_tokens=self.settings.context_tokens,
            devices=self._devices,
            vocabulary=self.settings.vocabulary if self._script == self.by_seed else 0,
            deterministic=True,
        )

    # what an engine does

    async def start(self) -> Acknowledgement:
        await self._take("start", 0.0)
        if self._state.state == "cold":
            self._state = Health(state="up")
        return self._acknowledge()

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        run = self._admit(request)
        try:
            while True:
                while run.outbox:
                    chunk = run.outbox.pop(0)
                    yield chunk
                    if chunk.finish is not None:
                        return
                if run.error is not None:
                    raise run.error
                await self._wait(run)
        finally:
            self._runs.pop(request.id, None)
            self._note_quiet()

    async def interrupt(self, requests: Sequence[str]) -> None:
        await self._take("interrupt", 0.0)
        for name in requests:
            if name in self._runs:
                self._end(self._runs[name])

    async def suspend(self, how: How) -> None:
        await self._take("suspend", 0.0)
        self._gate_closed = True
        for run in [*self._runs.values()]:
            if how == "interrupt" and run.state != "waiting":
                self._end(run)
            elif how == "freeze" and run.state == "running":
                self._harvest(run)
                run.banked_s = self._now - run.since
                run.state = "frozen"
            run.wake.set()
        self._note_quiet()
        await self._quiet.wait()

    async def resume(self) -> None:
        await self._take("resume", 0.0)
        self._gate_closed = False
        for run in self._runs.values():
            if run.state == "frozen":
                run.state = "running"
                run.since = self._now - run.banked_s
            run.wake.set()

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        await self._take("load", self.settings.load_s)
        for run in self._runs.values():
            self._harvest(run)  # what was sampled before carries the version before
        self.version = version
        if weights is not None:
            self._checksum = _checksum_of(weights)
        return self._acknowledge()

    async def release(self) -> None:
        await self._take("release", self.settings.release_s)
        self._state = Health(state="released")
        self._end_all()

    async def restore(self) -> None:
        await self._take("restore", self.settings.restore_s)
        self._state = Health(state="up")

    async def health(self) -> Health:
        await self._take("health", 0.0)
        return self._state

    async def load_report(self) -> LoadReport:
        waiting = sum(run.state == "waiting" for run in self._runs.values())
        return LoadReport(
            running=len(self._runs) - waiting,
            waiting=waiting,
            tokens_outstanding=sum(len(run.words) - run.place for run in self._runs.values()),
        )

    async def close(self) -> None:
        if self._state.state != "dead":
            self._state = Health(state="dead", why="it was closed")
        self._end_all()

    # what it can be told to do

    def die(self, why: str = "it was told to") -> None:
        """Lose everything that runs, and never answer again."""
        self._state = Health(state="dead", why=why)
        for run in self._runs.values():
            run.error = EngineLost(f"engine {self.name} died: {why}")
            run.wake.set()

    def hang(self) -> None:
        """Answer nothing from now on: no token, no call."""
        self._hangs = True

    def hold_at(self, tokens: float) -> None:
        """Let each turn come to so many tokens and wait there; `inf` lets all go on."""
        for run in self._runs.values():
            self._harvest(run)
            if run.place >= self._hold_at:
                run.since = self._now  # it did nothing while it was held
        self._hold_at = tokens

    def overrun(self, tokens: int) -> None:
        """Answer with so many more tokens than were asked for."""
        self._overrun = tokens

    def by_seed(self, request: Request) -> Sequence[int]:
        """The default script: tokens that look random and follow from the seed."""
        choice = request.sampling.allowed_token_ids or range(self.settings.vocabulary)
        places = range(request.sampling.max_tokens)
        return [choice[scramble(request.seed + GOLDEN * (place + 1)) % len(choice)] for place in places]

    # inside

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _take(self, call: str, seconds: float) -> None:
        """The time that a call takes; raises if it was told to."""
        if self._hangs:
            await asyncio.get_running_loop().create_future()
        if self._state.state == "dead" and call != "health":
            raise EngineLost(f"engine {self.name} is dead: {self._state.why}")
        if call in self.refuses:
            raise self.refuses[call]
        if seconds:
            await asyncio.sleep(seconds)

    def _admit(self, request: Request) -> "_Run":
        if self._state.state in ("dead", "cold"):
            why = self._state.why or "it was never started"
            raise EngineLost(f"engine {self.name} does not serve: {why}")
        if self._state.state == "released":
            raise EngineError(f"engine {self.name} has released its devices; {request.id} must go elsewhere")
        if "generate" in self.refuses:
            raise self.refuses["generate"]
        if request.id in self._runs:
            raise EngineError(f"engine {self.name} has a request {request.id} already")
        limit = self.settings.context_tokens
        if len(request.prompt) >= limit:
            raise PromptTooLong(f"{request.id} has {len(request.prompt)} tokens, the model's context is {limit}")
        words, ending = self._words(request)
        run = _Run(request, words, ending, request.sampled, asyncio.Event())
        self._runs[request.id] = run
        return run

    def _words(self, request: Request) -> tuple[Tokens, FinishReason]:
        """The whole turn, and why it ends."""
        before = len(request.prompt) - request.sampled
        room = min(request.sampling.max_tokens, self.settings.context_tokens - before)
        words = np.asarray(self._script(request), np.int32)
        stop = set(request.sampling.stop_token_ids)
        if self._codec is not None:
            stop.update(self._codec.stop_token_ids)
        ends = [place + 1 for place, word in enumerate(words.tolist()) if word in stop]
        cut = min(self._stop_text(request, words), ends[0] if ends else len(words))
        if cut <= room and (cut < len(words) or ends[:1] == [cut] or cut < room):
            return words[:cut], "stop"
        return words[: room + self._overrun], "length"

    def _stop_text(self, request: Request, words: Tokens) -> int:
        """Where the first stop string is complete."""
        if not request.sampling.stop:
            return len(words)
        if self._codec is None:
            raise ConfigError(f"engine {self.name} was given no codec, so it cannot find stop strings")
        for end in range(1, len(words) + 1):
            said = self._codec.decode(words[:end])
            if any(text in said for text in request.sampling.stop):
                return end
        return len(words)

    async def _wait(self, run: "_Run") -> None:
        """Until something happens to the run or its next chunk is due."""
        run.wake.clear()
        if run.state == "waiting" and not self._gate_closed:
            run.state = "running"
            run.since = self._now + self.settings.first_token_s
            self._note_quiet()
        due = self._due(run)
        if due is None:
            await run.wake.wait()
            return
        if due > self._now:
            try:
                async with asyncio.timeout_at(due):
                    await run.wake.wait()
            except TimeoutError:
                pass
            else:
                return
        self._harvest(run, at=due)

    def _due(self, run: "_Run") -> float | None:
        """When the next chunk is complete; None while nothing is sampled."""
        if self._hangs or run.state != "running":
            return None
        tokens = min(self.settings.stream_every, len(run.words) - run.place, self._hold_at - run.place)
        if tokens <= 0 and run.place < len(run.words):
            return None
        return run.since + max(0.0, tokens) * self.settings.token_s

    def _harvest(self, run: "_Run", *, at: float | None = None, end: bool = False) -> None:
        """Put what has been sampled by now into the outbox."""
        if run.over:
            return
        count = self._sampled_by(run, self._now if at is None else at)
        words = run.words[run.place : run.place + count]
        run.place += count
        run.since += count * self.settings.token_s
        self.sampled += count
        complete = run.place == len(run.words) and run.state != "waiting"
        run.over = complete or end
        if count or run.over:
            finish = run.ending if complete else "interrupted" if end else None
            run.outbox.append(
                Chunk(token_ids=words, logprobs=_logprobs(words), version=self.version, finish=finish),
            )
        run.wake.set()

    def _sampled_by(self, run: "_Run", now: float) -> int:
        if run.state != "running" or self._hangs or now < run.since:
            return 0
        most = min(float(len(run.words)), self._hold_at) - run.place
        token_s = self.settings.token_s
        elapsed = now - run.since + 4 * ulp(now)  # a clock that has gone for long tells no finer moments
        tokens = floor(elapsed / token_s + ROUNDING) if token_s else self.settings.stream_every
        return int(max(0.0, min(most, tokens)))

    def _end(self, run: "_Run") -> None:
        """Let a run end with what it has."""
        self._harvest(run, end=True)

    def _end_all(self) -> None:
        for run in self._runs.values():
            self._end(run)

    def _note_quiet(self) -> None:
        if any(run.state == "running" and not run.over for run in self._runs.values()):
            self._quiet.clear()
        else:
            self._quiet.set()

    def _acknowledge(self) -> Acknowledgement:
        return Acknowledgement(version=self.version, checksum=self._checksum)


class _Run(Record, gc=True):
    """A request on its way."""

    request: Request
    words: Tokens
    """The whole turn."""
    ending: FinishReason
    place: int
    """Tokens of the turn that have been sampled."""
    wake: asyncio.Event
    state: Literal["waiting", "running", "frozen"] = "waiting"
    since: float = 0.0
    """When the token at `place` began."""
    banked_s: float = 0.0
    """What it had spent on that token when it was frozen."""
    outbox: list[Chunk] = []
    over: bool = False
    """Its last chunk is in the outbox."""
    error: EngineError | None = None


def scramble(word: int) -> int:
    """64 bits that look random, from 64 bits that do not."""
    word &= WORD
    word = (word ^ (word >> 30)) * MIX[0] & WORD
    word = (word ^ (word >> 27)) * MIX[1] & WORD
    return word ^ (word >> 31)


def _logprobs(words: Tokens) -> Logprobs:
    """Made up, but always the same for the same token."""
    return (-(words % 7 + 1) / 8).astype(np.float32)


def _checksum_of(weights: Weights) -> str:
    """It has no weights; equal ones must still look equal."""
    if isinstance(weights, Shipment):
        return weights.checksum
    text = str(weights) if isinstance(weights, Path) else repr(sorted((k, str(v)) for k, v in weights.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
