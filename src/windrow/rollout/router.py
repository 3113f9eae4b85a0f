"""Where one attempt generates: a turn straight to its engine, and on to another one when it must.

Promises: a turn costs one request, and one more for each interruption; what has been sampled is never sampled again and
never lost once it was heard. Nobody is asked for permission: the gate is at the engine. What an engine answers is
checked before it is believed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing

import numpy as np

from windrow.engines.protocol import Engine
from windrow.errors import EngineError, EngineLost, blame
from windrow.requests import Chunk, FinishReason, Logprobs, Request, Sampling, Tokens
from windrow.rollout.supervision import is_stray
from windrow.trajectory import Segment
from windrow.types import AttemptId, Value

MOVE_GRACE_S = 5.0
"""How long an engine that is to be left may take to hand over what it has; then what was heard so far counts."""


AT_ONCE_S = 1e-3
ROUNDING = 1e-3
"""A log-probability may exceed 0 by so much."""
FIRST_NEGATIVE = 1 << 31
"""What -1, as a number without a sign, is not below."""
IN_VAIN = 100
"""Interruptions in a row, at once and without a token, after which an engine does not do its work."""


class Ask(Value, frozen=True, kw_only=True):
    """What a turn wants."""

    turn: int
    prompt: Tokens
    sampling: Sampling
    seed: int


class Answer(Value, frozen=True, kw_only=True):
    """What a turn got."""

    token_ids: Tokens
    logprobs: Logprobs
    segments: tuple[Segment, ...]
    finish: FinishReason
    requests: int


class Route:
    """The way of one attempt's requests."""

    def __init__(
        self, attempt: AttemptId, engine: str, engines: Mapping[str, Engine], lost: Callable[[str, str], None]
    ) -> None:
        self.engine = engine
        self.used: list[str] = []  # the engines that sampled for it, in order
        self.request = ""  # the one that is on its way, if any
        self._attempt = attempt
        self._engines = engines
        self._lost = lost
        self._changed = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the request that is on its way
        self._asked = ""  # the engine that has it

    @property
    def stage(self) -> str:
        """What it waits for."""
        if not self.engine:
            return "waiting for an engine"
        return f"generating on {self.engine}" if self.request else "idle"

    def move(self, engine: str) -> tuple[str, str] | None:
        """Go on elsewhere; says which engine must be told to interrupt which request, if one is on its way."""
        if engine == self.engine:
            return None
        self.engine = engine
        self._changed.set()
        if self._limit is None or self._limit.when() is not None:
            return None  # nothing is on its way, or it is being left already
        self._limit.reschedule(asyncio.get_running_loop().time() + MOVE_GRACE_S)
        return self._asked, self.request

    async def generate(self, ask: Ask) -> Answer:
        """One turn, however often it is interrupted."""
        heard = _Heard(ask)
        while True:
            engine = await self._find()
            request = self._request(ask, heard)
            try:
                await self._listen(engine, request, heard)
            except EngineLost as error:
                self._lost(engine.name, str(error))
                await self._leave(engine.name)
                continue
            if heard.finish not in (None, "interrupted"):
                return heard.answer()

    async def _find(self) -> Engine:
        """The engine to use; waits while there is none."""
        while not self.engine:
            self._changed.clear()
            await self._changed.wait()
        return self._engines[self.engine]

    async def _leave(self, engine: str) -> None:
        """Wait until it is sent away from an engine that is gone."""
        while self.engine == engine:
            self._changed.clear()
            await self._changed.wait()

    def _request(self, ask: Ask, heard: "_Heard") -> Request:
        heard.requests += 1
        return Request(
            id=f"{self._attempt}.t{ask.turn}.p{heard.requests - 1}",
            prompt=heard.so_far(),
            sampled=heard.tokens,
            sampling=ask.sampling,
            seed=ask.seed,
            family=f"g{self._attempt.group}",
        )

    async def _listen(self, engine: Engine, request: Request, heard: "_Heard") -> None:
        """Take in one answer; an engine that is left and does not let go in time is left behind."""
        self._asked, self.request = engine.name, request.id
        heard.finish = None
        try:
            async with asyncio.timeout(None) as limit:
                self._limit = limit
                with blame(EngineError, "engine", engine.name, "answers", request.id):
                    await self._take_all(engine, request, heard)
        except TimeoutError:
            heard.finish = "interrupted"
        finally:
            self.request = ""
            self._limit = None
        if not self.used or self.used[-1] != engine.name:
            self.used.append(engine.name)

    async def _take_all(self, engine: Engine, request: Request, heard: "_Heard") -> None:
        before, sent_at = heard.tokens, asyncio.get_running_loop().time()
        try:
            async with aclosing(engine.generate(request)) as chunks:
                async for chunk in chunks:
                    heard.take(chunk, request, engine)
        except asyncio.CancelledError:
            if is_stray():
                raise EngineError(f"engine {engine.name} cancelled {request.id} from inside") from None
            raise
        if heard.finish is None:
            raise EngineError(f"engine {engine.name} broke off {request.id} and did not say why")
        at_once = asyncio.get_running_loop().time() - sent_at < AT_ONCE_S
        heard.in_vain = heard.in_vain + 1 if at_once and heard.finish == "interrupted" and heard.tokens == before else 0
        if heard.in_vain > IN_VAIN:
            raise EngineError(f"engine {engine.name} interrupted {request.id} {heard.in_vain} times without a token")


class _Heard:
    """What a turn has got so far."""

    def __init__(self, ask: Ask) -> None:
        self.tokens = 0
        self.requests = 0
        self.in_vain = 0  # interruptions in a row that brought nothing
        self.finish: FinishReason | None = None  # of the last request
        self._ask = ask
        self._token_ids: list[Tokens] = []
        self._logprobs: list[Logprobs] = []
        self._segments: list[Segment] = []

    def take(self, chunk: Chunk, request: Request, engine: Engine) -> None:
        """Believe a chunk, if it makes sense."""
        self._check(chunk, request, engine)
        self.finish = chunk.finish
        count = len(chunk.token_ids)
        if not count:
            return
        self.tokens += count
        self._token_ids.append(chunk.token_ids)
        self._logprobs.append(chunk.logprobs)
        self._add_segment(count, chunk)

    def so_far(self) -> Tokens:
        """The prompt with everything heard behind it."""
        return np.concatenate([self._ask.prompt, *self._token_ids]) if self._token_ids else self._ask.prompt

    def answer(self) -> Answer:
        nothing = np.empty(0, np.int32)
        return Answer(
            token_ids=np.concatenate([nothing, *self._token_ids]),
            logprobs=np.concatenate([nothing.astype(np.float32), *self._logprobs]),
            segments=tuple(self._segments),
            finish=self.finish or "interrupted",
            requests=self.requests,
        )

    def _add_segment(self, count: int, chunk: Chunk) -> None:
        last = self._segments[-1] if self._segments else None
        if last is not None and (last.version, last.stale_cache) == (chunk.version, chunk.stale_cache):
            count += last.length
            self._segments.pop()
        self._segments.append(Segment("policy", count, chunk.version, chunk.stale_cache))

    def _check(self, chunk: Chunk, request: Request, engine: Engine) -> None:
        wrong = self._wrong(chunk, request, engine)
        if wrong:
            raise EngineError(f"engine {engine.name} answered {request.id} {wrong}")

    def _wrong(self, chunk: Chunk, request: Request, engine: Engine) -> str:
        """Why a chunk makes no sense; empty if it does. Few looks at each array: this happens at every turn."""
        ids, logprobs = chunk.token_ids, chunk.logprobs
        if self.finish is not None:
            return f"further, after it had said that it was over ({self.finish})"
        if ids.ndim != 1 or ids.dtype != np.int32:
            return f"with token ids of type {ids.dtype} in {ids.ndim} dimensions"
        most = request.sampling.max_tokens
        if self.tokens + len(ids) > most:
            return f"with {self.tokens + len(ids)} tokens, at most {most} were asked for"
        if len(logprobs) != len(ids):
            return f"with {len(ids)} tokens and {len(logprobs)} log-probabilities"
        if chunk.version < 0:
            return f"with version {chunk.version}; versions begin at 0"
        if not len(ids):
            return ""
        traits = engine.traits
        if ids.view(np.uint32).max() >= (traits.vocabulary or FIRST_NEGATIVE):
            return f"with token ids from {ids.min()} to {ids.max()}; there are {traits.vocabulary}"
        if traits.can_train and not (logprobs.max() <= ROUNDING and logprobs.min() > -np.inf):  # false for no number
            return "with a log-probability that is not a number of 0 or less"
        return ""
