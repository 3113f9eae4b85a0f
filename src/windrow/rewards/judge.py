"""A model that judges what another one said.

Promises: the same question is asked once, also when it is asked by many at the same time, as long as it is remembered;
never more than `at_once` are with the engine. An answer without a verdict is asked for again, with another seed, and
then a `JudgeError`, as is whatever happens to the engine: none of these ever becomes a score.

The engine is the judge's own, not the policy's: the judge starts it, when it is told to or with the first question, and
closes it. Use it as `async with Judge(…) as judge`, or call `close` in the end. It lives on one event loop.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from math import isfinite
from typing import Self

import numpy as np

from windrow.engines.protocol import Engine
from windrow.errors import ConfigError, EngineError, EngineLost, JudgeError, blame
from windrow.requests import FinishReason, Request, Sampling, Tokens
from windrow.rewards.protocol import Score
from windrow.rewards.verdicts import TEMPLATE, Parse, Template, out_of
from windrow.text import Codec, Message
from windrow.trajectory import Trajectory
from windrow.types import Value, but

TEN = out_of(10)
IN_VAIN = 100
"""Interruptions in a row without a token, after which an engine does not do its work."""
AGAIN_TEMPERATURE = 0.7
"""At least; whoever takes the likeliest token says the same again, whatever the seed."""
SHOWN = 300
"""Characters of a verdict's text that are kept with the trajectory."""


class Verdict(Value, frozen=True):
    """What a judge said, and what that means."""

    value: float
    text: str


class Judge:
    """Scores an episode by asking a model."""

    def __init__(  # noqa: PLR0913 -- settings, each with a default
        self,
        engine: Engine,
        codec: Codec,
        *,
        template: str = TEMPLATE,
        parse: Parse = TEN,
        sampling: Sampling | None = None,
        cache: int = 4096,
        at_once: int = 16,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> None:
        _check(cache=cache, at_once=at_once, retries=retries, timeout_s=timeout_s)
        sampling = sampling or Sampling(temperature=0.0, max_tokens=512)
        stops = tuple(sorted({*sampling.stop_token_ids, *codec.stop_token_ids}))
        self.asked = 0  # questions that went to the engine, those that were asked again included
        self.remembered = 0  # scores that needed no question
        self._engine = engine
        self._codec = codec
        self._template = Template(template)
        self._parse = parse
        self._sampling = but(sampling, stop_token_ids=stops)
        self._retries = retries
        self._timeout_s = timeout_s
        self._cache = _Memory(cache)
        self._places = asyncio.Semaphore(at_once)
        self._starting = asyncio.Lock()
        self._started = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine, unless that is done."""
        async with self._starting:
            self._check_open()
            if self._started:
                return
            with _filed(f"judge {self._engine.name} could not be started"):
                await self._engine.start()
            if self._closed:  # meanwhile, and what was closed then was not open yet
                await self._engine.close()
            self._check_open()
            self._started = True

    async def close(self) -> None:
        """Close the engine, for good; who still waits for a verdict gets none."""
        self._closed = True
        self._started = False
        await self._engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise JudgeError(f"judge {self._engine.name} is closed; make another one")

    async def score(self, trajectory: Trajectory) -> Score:
        verdict = await self._verdict(self._template.fill(trajectory), str(trajectory.attempt))
        return Score(verdict.value, note=verdict.text[-SHOWN:])

    async def _verdict(self, prompt: str, who: str) -> Verdict:
        """The verdict on a prompt, asked for only if nobody has."""
        async with self._cache.turn(prompt):
            known = self._cache.get(prompt)
            if known is not None:
                self.remembered += 1
                return known
            async with self._places:
                verdict = await self._ask(prompt, who)
            self._cache.put(prompt, verdict)
            return verdict

    async def _ask(self, prompt: str, who: str) -> Verdict:
        """Ask as often and as long as may be."""
        with _filed(f"judge {self._engine.name} was asked about {who}"):
            async with asyncio.timeout(self._timeout_s):
                await self.start()
                try:
                    return await self._persist(prompt)
                except EngineLost:
                    self._started = False  # should it come back
                    raise

    async def _persist(self, prompt: str) -> Verdict:
        """Ask until there is a verdict."""
        said = ""
        for attempt in range(self._retries + 1):
            said = await self._answer(prompt, attempt)
            value = self._read(said)
            if value is not None:
                return Verdict(value, said)
        raise EngineError(
            f"no verdict in {self._retries + 1} answers, the last was {said!r:.200}; "
            f"say in the template how to end the answer, or give a parse of your own"
        )

    def _read(self, said: str) -> float | None:
        value = self._parse(said) if said else None
        if value is not None and not (isfinite(value) and 0.0 <= value <= 1.0):
            raise JudgeError(f"parse read {value!r} from {said!r:.200}; it must give a number from 0 to 1, or None")
        return value

    async def _answer(self, prompt: str, attempt: int) -> str:
        """One whole answer, however often it is interrupted; empty if it was cut off."""
        self.asked += 1
        sampling = self._sampling
        if attempt:
            sampling = but(sampling, temperature=max(sampling.temperature, AGAIN_TEMPERATURE))
        heard = _Heard(self._codec.begin([Message("user", prompt)]), f"judge{self.asked}", sampling, attempt)
        while heard.finish in (None, "interrupted"):
            await self._listen(heard)
        return "" if heard.finish == "length" else self._codec.decode(heard.tokens())

    async def _listen(self, heard: "_Heard") -> None:
        """Take in one answer to one request."""
        before = heard.count
        async with aclosing(self._engine.generate(heard.ask())) as chunks:
            async for chunk in chunks:
                heard.take(chunk.token_ids, chunk.finish)
        if heard.finish is None:
            raise EngineError(f"engine {self._engine.name} broke off {heard.name} and did not say why")
        heard.in_vain = 0 if heard.count > before else heard.in_vain + 1
        if heard.in_vain > IN_VAIN:
            raise EngineError(f"engine {self._engine.name} interrupted {heard.name} {heard.in_vain} times for nothing")


@contextmanager
def _filed(words: str) -> Iterator[None]:
    """Whatever goes wrong inside is a judge's failure."""
    try:
        with blame(JudgeError, words):
            yield
    except EngineError as error:
        raise JudgeError(f"{words}: {error}") from error


class _Heard:
    """A question on its way, and what has come back."""

    def __init__(self, prompt: Tokens, name: str, sampling: Sampling, seed: int) -> None:
        self.name = name
        self.count = 0
        self.in_vain = 0  # interruptions in a row that brought nothing
        self.finish: FinishReason | None = None  # of the last request
        self._prompt = prompt
        self._sampling = sampling
        self._seed = seed
        self._parts: list[Tokens] = []
        self._requests = 0

    def ask(self) -> Request:
        """The next request: for the rest, if some has come back already."""
        self.finish = None
        self._requests += 1
        return Request(
            id=f"{self.name}.p{self._requests - 1}",
            prompt=np.concatenate([self._prompt, *self._parts]),
            sampled=self.count,
            sampling=self._sampling,
            seed=self._seed,
        )

    def take(self, tokens: Tokens, finish: FinishReason | None) -> None:
        self.count += len(tokens)
        self._parts.append(tokens)
        self.finish = finish

    def tokens(self) -> Tokens:
        return np.concatenate([np.empty(0, np.int32), *self._parts])


class _Memory:
    """The last verdicts, by prompt, and who is at it: one judge has one way of asking."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, Verdict] = OrderedDict()  # the one that was needed last is last
        self._locks: dict[str, asyncio.Lock] = {}  # all and only the prompts that somebody waits for
        self._waiting: Counter[str] = Counter()

    def get(self, prompt: str) -> Verdict | None:
        if prompt not in self._known:
            return None
        self._known.move_to_end(prompt)
        return self._known[prompt]

    def put(self, prompt: str, verdict: Verdict) -> None:
        if not self._most:
            return
        self._known[prompt] = verdict
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    @asynccontextmanager
    async def turn(self, prompt: str) -> AsyncIterator[None]:
        """One asks, the others wait; who is cancelled or fails leaves it to the next."""
        if not self._most:
            yield
            return
        lock = self._locks.setdefault(prompt, asyncio.Lock())
        self._waiting[prompt] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[prompt] -= 1
            if not self._waiting[prompt]:
                del self._waiting[prompt], self._locks[prompt]


def _check(*, cache: int, at_once: int, retries: int, timeout_s: float) -> None:
    least = {"cache": (cache, 0), "at_once": (at_once, 1), "retries": (retries, 0)}
    for name, (value, bound) in least.items():
        if value < bound:
            raise ConfigError(f"{name} of a judge must be {bound} or more, got {value}")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s of a judge must be above 0, got {timeout_s}")
