"""The embedded engine: any Hugging Face causal language model, sampled in this process, on a thread of its own.

Promises: all of `windrow.engines.protocol`. Nothing here blocks the event loop for longer than it takes to hand over an
order; whatever is decided about a request is decided on the engine's thread (`batcher`, `running`). An engine lives as
long as the event loop that started it; one that is forgotten without being closed lets its thread end.

A model that is handed over belongs to the engine from then on. It may still be called by others between two forwards
(its attention is then the ordinary one), but whoever changes its weights without `load` makes the cache wrong.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TypeVar, Unpack

from windrow.engines.buckets import Shipment, received
from windrow.engines.protocol import Acknowledgement, Health, LoadReport, Traits, Weights
from windrow.engines.torch.batcher import Batcher
from windrow.engines.torch.letters import Answer, Stream
from windrow.engines.torch.models import Source, context, made, vocabulary
from windrow.engines.torch.settings import Counters, TorchOptions, TorchSettings, settled
from windrow.engines.torch.spells import Activity, Busy
from windrow.engines.torch.thread import Order, Worker
from windrow.engines.torch.turns import Limits, check
from windrow.errors import ConfigError, EngineError, EngineLost, WindrowError
from windrow.requests import Chunk, Request
from windrow.text import Codec
from windrow.types import How, but

T = TypeVar("T")

CLOSE_GRACE_S = 60.0
"""Longest wait for the forward that is running when an engine is closed."""


class TorchEngine:
    """Samples from a model that it holds itself; keywords win over `settings`."""

    def __init__(
        self,
        name: str,
        model: Source,
        codec: Codec | None = None,
        settings: TorchSettings | None = None,
        *,
        devices: tuple[int, ...] = (),
        version: int = 0,
        **options: Unpack[TorchOptions],
    ) -> None:
        self.name = name
        self.settings = settled(settings or TorchSettings(), options)
        self.model = made(model, self.settings)
        self._devices = devices
        self._limits = Limits(
            engine=name,
            vocabulary=vocabulary(self.model),
            context_tokens=context(self.model, self.settings),
            reads_text=codec is not None,
        )
        if codec is not None and codec.vocabulary > self._limits.vocabulary:
            raise ConfigError(
                f"engine {name!r} has a codec of {codec.vocabulary} tokens and a model of {self._limits.vocabulary}; "
                "give it the model's own tokenizer"
            )
        self._streams: dict[str, Stream] = {}  # all and only requests whose last word has not been listened to
        self._batcher = Batcher(self.model, codec, self.settings, self._limits, version)
        self._worker = Worker(name, self._batcher, self.settings.threads)
        self._guard = _while_the_loop_lives(self._worker)
        weakref.finalize(self, self._worker.end).atexit = False

    @property
    def traits(self) -> Traits:
        return Traits(
            capacity=self.settings.capacity,
            context_tokens=self._limits.context_tokens,
            devices=self._devices,
            vocabulary=self._limits.vocabulary,
            deterministic=self.settings.deterministic,
        )

    def counters(self) -> Counters:
        """What it has done so far."""
        return but(self._batcher.running.counters)

    def activity(self) -> Activity:
        """When it was at work, and what it did."""
        return self._batcher.activity()

    def busy(self) -> Busy:
        """How long it has computed."""
        return self._batcher.busy()

    async def start(self) -> Acknowledgement:
        """Start the thread; a second time it only says what it has."""
        if self._worker.started or self._worker.lost is not None:
            return await self._ask(self._batcher.acknowledge)
        self._worker.start()
        await anext(self._guard)
        try:
            return await self._ask(self._batcher.begin)
        except WindrowError:
            await self.close()
            raise
        except asyncio.CancelledError:
            self._worker.end()
            raise

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Answer a request; closing the iterator withdraws it."""
        if not self._worker.started:
            raise EngineLost(f"engine {self.name!r} was not started; await start() first")
        if request.id in self._streams:
            raise EngineError(f"engine {self.name!r} has a request {request.id} already; ids are used once")
        check(request, self._limits)
        stream = Stream(self._worker.outbox, request.room)
        self._streams[request.id] = stream
        try:
            self._worker.give(Order(partial(self._batcher.submit, request, stream), stream.put))
            while not stream.over or stream.has_more:
                yield await stream.next()
        finally:
            del self._streams[request.id]
            if not stream.over:
                self._worker.give(Order(partial(self._batcher.withdraw, stream), _nobody_asked))

    async def interrupt(self, requests: Sequence[str]) -> None:
        await self._ask(partial(self._batcher.interrupt, tuple(requests)))

    async def suspend(self, how: How) -> None:
        answer: Answer[None] = Answer(self._worker.outbox)

        def when_quiet(error: EngineError | None) -> None:
            answer.give(None) if error is None else answer.fail(error)

        self._worker.give(Order(partial(self._batcher.suspend, how, when_quiet), answer.fail))
        await answer.wait()

    async def resume(self) -> None:
        await self._ask(self._batcher.resume)

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        """Serve these weights from the next token on; raises Refused, and changes nothing, if they do not fit."""
        found = await received(weights) if isinstance(weights, Shipment) else weights
        return await self._ask(partial(self._batcher.load, version, found))

    async def release(self) -> None:
        await self._ask(self._batcher.release)

    async def restore(self) -> None:
        await self._ask(self._batcher.restore)

    async def health(self) -> Health:
        if self._worker.lost is not None:
            return Health(state="dead", why=str(self._worker.lost))
        if not self._worker.started:
            return Health(state="cold")
        return Health(state="released" if self._batcher.released else "up")

    async def load_report(self) -> LoadReport:
        """As of the last step; asks nobody, so a long forward does not delay it."""
        open_streams = [stream for stream in self._streams.values() if not stream.over]
        running = min(len(self._batcher.running), len(open_streams))
        return LoadReport(
            running=running,
            waiting=len(open_streams) - running,
            tokens_outstanding=sum(stream.room for stream in open_streams),
        )

    async def close(self) -> None:
        await self._guard.aclose()
        answer: Answer[None] = Answer(self._worker.outbox)
        self._worker.end(partial(answer.give, None))
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await answer.wait()
        except TimeoutError as error:
            raise EngineLost(f"engine {self.name!r} is still in a forward after {CLOSE_GRACE_S:g} s") from error
        self._worker.join()

    async def _ask(self, work: Callable[[], T]) -> T:
        """Have something done between two forwards."""
        answer: Answer[T] = Answer(self._worker.outbox)
        self._worker.give(Order(partial(_carry_out, work, answer), answer.fail))
        return await answer.wait()


async def _while_the_loop_lives(worker: Worker) -> AsyncGenerator[None, None]:
    """Ends the thread when the loop that started it is shut down; a thread that nobody ends would keep Python alive."""
    try:
        yield
    finally:
        worker.end()


def _carry_out(work: Callable[[], T], answer: Answer[T]) -> None:
    try:
        value = work()
    except WindrowError as error:
        answer.fail(error)
    else:
        answer.give(value)


def _nobody_asked(_lost: EngineLost) -> None:
    """A request that is withdrawn from an engine that is gone needs no answer."""
