"""What the contract suite needs of each engine: how to make one, how to keep it busy, what it can be asked for."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from tests.engines.server import Server, serving

from windrow.engines.openai import OpenAIEngine, OpenAISettings
from windrow.engines.protocol import Engine
from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.requests import Chunk, FinishReason, Request, Sampling
from windrow.text import ByteCodec

SAFETY_S = 240.0
"""No test is judged by the clock; this only ends one that hangs."""
CONTEXT = 512
HELD = 24
"""Tokens at which a scripted engine is held while a test wants its requests to run."""
LONG = 240


class Endless(ByteCodec):
    """No token ends a message, so that requests end by their length."""

    stop_token_ids = ()  # type: ignore[assignment]  # none at all


def run_async(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test as a coroutine; it fails if it leaves a task behind."""

    @functools.wraps(test)
    def runs(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SAFETY_S):
                await test(*args, **kwargs)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return runs


@dataclass
class Rig:
    """An engine, not started yet, and what a test can do around it."""

    engine: Engine
    hold: Callable[[], None] = lambda: None
    """Let requests come to their first chunk and no further, if the engine can be told to."""
    let_go: Callable[[], None] = lambda: None
    sampled: Callable[[], int] | None = None
    """Tokens that were ever sampled; None if nobody counts them exactly."""
    long: int = LONG
    """Tokens of a request that is still running when a test comes to interrupt it."""

    def request(self, number: int = 0, **changes: Any) -> Request:
        """A long one, unless the changes say otherwise."""
        return request(number, **{"max_tokens": self.long, **changes})


@dataclass(frozen=True)
class Kit:
    """One implementation."""

    name: str
    rig: Callable[[Path], AbstractAsyncContextManager[Rig]]
    weights: Callable[[int, Path], object]
    """Weights number so-and-so, as this engine takes them."""
    refuses: frozenset[str] = frozenset()
    """Names of sampling settings that it cannot do."""
    vocabulary: int = 256
    is_script: bool = False
    """It says what it is told, whatever is allowed."""
    load_ends_frozen: bool = False
    """Requests that are frozen while weights change end as interrupted."""


@asynccontextmanager
async def scripted(folder: Path) -> AsyncIterator[Rig]:
    engine = ScriptedEngine("one", ScriptedSettings(context_tokens=CONTEXT, stream_every=8), codec=Endless())
    try:
        yield _rig(engine, engine)
    finally:
        await engine.close()


def _rig(engine: Engine, behind: ScriptedEngine, *, counts: bool = True) -> Rig:
    """A rig around a scripted engine, or around something that it is behind."""
    return Rig(
        engine,
        hold=lambda: behind.hold_at(HELD),
        let_go=lambda: _let_go(behind),
        sampled=(lambda: behind.sampled) if counts else None,
    )


def _let_go(engine: ScriptedEngine) -> None:
    engine.hold_at(inf)


@asynccontextmanager
async def torch(folder: Path) -> AsyncIterator[Rig]:
    from tests.engines.tiny import tiny_model

    from windrow.engines.torch import TorchEngine

    engine = TorchEngine("one", tiny_model(context=CONTEXT), Endless(), capacity=64, deterministic=True)
    try:
        yield Rig(engine, sampled=lambda: engine.counters().sampled_tokens)
    finally:
        await engine.close()


@asynccontextmanager
async def openai_over_torch(folder: Path) -> AsyncIterator[Rig]:
    """A real model over real HTTP, plain API."""
    async with torch(folder) as rig, serving(rig.engine, Endless().decode) as server:
        engine = OpenAIEngine("one", settings(server))
        try:
            yield Rig(engine)
        finally:
            await engine.close()


@asynccontextmanager
async def openai_over_script(folder: Path) -> AsyncIterator[Rig]:
    async with over_script() as (server, behind):
        engine = OpenAIEngine("one", settings(server))
        try:
            yield _rig(engine, behind, counts=False)
        finally:
            await engine.close()


@asynccontextmanager
async def vllm_over_script(folder: Path) -> AsyncIterator[Rig]:
    """The calls of a vLLM server, answered by a script."""
    async with over_script() as (server, behind):
        engine = OpenAIEngine("one", settings(server, flavour="vllm", logprobs_mode="processed"))
        try:
            yield _rig(engine, behind)
        finally:
            await engine.close()


@asynccontextmanager
async def over_script() -> AsyncIterator[tuple[Server, ScriptedEngine]]:
    """A server and the script behind it."""
    behind = ScriptedEngine("behind", ScriptedSettings(context_tokens=CONTEXT, stream_every=8), codec=Endless())
    async with serving(behind, Endless().decode) as server:
        yield server, behind


def settings(server: Server, **changes: Any) -> OpenAISettings:
    asked: dict[str, Any] = {"base_url": server.url, "model": "tiny", "context_tokens": CONTEXT, "backoff_s": 0.0}
    return OpenAISettings(**{**asked, **changes})


def tensors(number: int, folder: Path) -> Mapping[str, object]:
    from tests.engines.tiny import tiny_model

    return tiny_model(seed=number, context=CONTEXT).state_dict()


def checkpoint(number: int, folder: Path) -> Path:
    """A folder with an untied checkpoint of two small tensors."""
    from safetensors.numpy import save_file

    path = folder / f"weights{number}"
    path.mkdir(exist_ok=True)
    content = np.full((2, 2), number, np.float32)
    save_file({"embed.weight": content, "lm_head.weight": content + 1}, path / "model.safetensors")
    return path


PLAIN = frozenset({"top_k", "min_p", "stop_token_ids", "allowed_token_ids"})
"""What the published API has no word for."""

KITS = [
    Kit("scripted", scripted, tensors, is_script=True),
    Kit("torch", torch, tensors),
    Kit("openai over torch", openai_over_torch, tensors, refuses=PLAIN),
    Kit("openai over a script", openai_over_script, tensors, refuses=PLAIN),
    Kit("vllm over a script", vllm_over_script, checkpoint, is_script=True, load_ends_frozen=True),
]


# requests and those who listen to their answers


def request(number: int = 0, *, max_tokens: int = LONG, prompt: int = 5, **changes: Any) -> Request:
    """One that ends by its length alone: no token of it is a stop token."""
    sampling = {name: changes.pop(name) for name in [*changes] if name in Sampling.__struct_fields__}
    given: dict[str, Any] = {
        "id": f"g{number}.a0.t0.p0",
        "prompt": np.arange(1, prompt + 1, dtype=np.int32) % 100,
        "sampling": Sampling(max_tokens=max_tokens, **sampling),
        "seed": 1000 + number,
    }
    return Request(**{**given, **changes})


@dataclass
class Heard:
    """What came of a request."""

    request: Request
    chunks: list[Chunk] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids.tolist()]

    @property
    def logprobs(self) -> list[float]:
        return [value for chunk in self.chunks for value in chunk.logprobs.tolist()]

    @property
    def versions(self) -> list[int]:
        return [chunk.version for chunk in self.chunks for _ in chunk.token_ids]

    @property
    def finish(self) -> FinishReason | None:
        return self.chunks[-1].finish if self.chunks else None

    def rest(self) -> Request:
        """The request that asks for what is still missing."""
        asked = self.request
        head, _, part = asked.id.rpartition("p")
        return Request(
            id=f"{head}p{int(part) + 1}",
            prompt=np.concatenate([asked.prompt, np.array(self.tokens, np.int32)]),
            sampled=asked.sampled + len(self.tokens),
            sampling=asked.sampling,
            seed=asked.seed,
        )


async def hear(engine: Engine, asked: Request, heard: Heard | None = None) -> Heard:
    """Listen to the end."""
    heard = heard or Heard(asked)
    async with aclosing(engine.generate(asked)) as chunks:
        async for chunk in chunks:
            heard.chunks.append(chunk)
            heard.began.set()
    return heard


def ask(group: asyncio.TaskGroup, engine: Engine, asked: Request) -> Heard:
    """Have somebody listen."""
    heard = Heard(asked)
    group.create_task(hear(engine, asked, heard), name=asked.id)
    return heard


async def begun(many: list[Heard]) -> None:
    """All of them have been answered in part."""
    for heard in many:
        await heard.began.wait()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again; what is waited for takes no time but that of the loop and the engine."""
    while not await holds():  # noqa: ASYNC110 -- an engine tells nobody when its books change
        await asyncio.sleep(0)


async def load_is(engine: Engine, *, running: int | None = None, waiting: int | None = None) -> None:
    """The engine has so many requests."""

    async def holds() -> bool:
        report = await engine.load_report()
        return running in (None, report.running) and waiting in (None, report.waiting)

    await until(holds)


async def some_time(engine: Engine) -> None:
    """Time in which an engine that still sampled would be caught."""
    for _ in range(20):
        await asyncio.sleep(0)
        await engine.health()
