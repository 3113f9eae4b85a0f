"""An engine on a tiny model, requests, and what a model says when it is asked plainly."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import torch
from tests.engines.kits import Endless
from tests.engines.tiny import Kind, tiny_model
from transformers import PreTrainedModel

from windrow.engines.torch import TorchEngine
from windrow.requests import Chunk, FinishReason, Request, Sampling
from windrow.types import but

CONTEXT = 256


class Heard:
    """What came of a request."""

    def __init__(self, asked: Request) -> None:
        self.asked = asked
        self.chunks: list[Chunk] = []
        self.began = asyncio.Event()

    @property
    def tokens(self) -> list[int]:
        return [int(token) for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [float(value) for chunk in self.chunks for value in chunk.logprobs]

    @property
    def versions(self) -> list[int]:
        return [chunk.version for chunk in self.chunks for _ in chunk.token_ids]

    @property
    def finish(self) -> FinishReason | None:
        return self.chunks[-1].finish if self.chunks else None

    def rest(self, name: str) -> Request:
        """What is sent after an interruption."""
        return but(
            self.asked,
            id=name,
            prompt=np.concatenate([self.asked.prompt, np.array(self.tokens, np.int32)]),
            sampled=self.asked.sampled + len(self.tokens),
        )


def made(kind: Kind = "qwen2", *, seed: int = 0, context: int = CONTEXT, **options: Any) -> TorchEngine:
    """An engine that is not started."""
    given: dict[str, Any] = {"codec": Endless(), "capacity": 8, **options}
    return TorchEngine("e0", tiny_model(kind, seed=seed, context=context), **given)


@asynccontextmanager
async def started(kind: Kind = "qwen2", **options: Any) -> AsyncIterator[TorchEngine]:
    engine = made(kind, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def prompt(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 250, size).astype(np.int32)


def request(number: int = 0, *, size: int = 10, max_tokens: int = 20, **changes: Any) -> Request:
    """A prompt of its own, unless told otherwise; sampling settings may be given by their names."""
    sampling = {name: changes.pop(name) for name in [*changes] if name in Sampling.__struct_fields__}
    given: dict[str, Any] = {"id": f"r{number}", "prompt": prompt(size, number), "seed": 1000 + number}
    return Request(**{**given, "sampling": Sampling(max_tokens=max_tokens, **sampling), **changes})


async def hear(engine: TorchEngine, asked: Request, heard: Heard | None = None) -> Heard:
    """Listen to the end."""
    heard = heard or Heard(asked)
    async with aclosing(engine.generate(asked)) as chunks:
        async for chunk in chunks:
            heard.chunks.append(chunk)
            heard.began.set()
    return heard


async def hear_all(engine: TorchEngine, many: Sequence[Request]) -> list[Heard]:
    async with asyncio.TaskGroup() as group:
        return [ask(group, engine, asked) for asked in many]


def ask(group: asyncio.TaskGroup, engine: TorchEngine, asked: Request) -> Heard:
    """Have somebody listen."""
    heard = Heard(asked)
    group.create_task(hear(engine, asked, heard), name=asked.id)
    return heard


async def begun(*many: Heard) -> None:
    """All of them have been answered in part."""
    for heard in many:
        await heard.began.wait()


def logprobs_of(model: PreTrainedModel, tokens: Sequence[int] | np.ndarray) -> torch.Tensor:
    """What the model says after each of these tokens, asked once and plainly: `[tokens, vocabulary]`."""
    with torch.inference_mode():
        logits = model(torch.tensor([int(token) for token in tokens])[None], use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=1)


def expected(model: PreTrainedModel, heard: Heard) -> np.ndarray:
    """Log-probabilities of a plain answer, teacher-forced."""
    whole = [*heard.asked.prompt, *heard.tokens]
    said = logprobs_of(model, whole)[len(heard.asked.prompt) - 1 : -1]
    chosen = said.gather(1, torch.tensor(heard.tokens)[:, None])[:, 0]
    return np.asarray(chosen.numpy())
