"""One request inside the engine: what is checked before it may come in, and what is known of it while it is there.

Promises: a request that cannot be served is refused here, by name, before it costs anything; whatever passes has a
prompt within the vocabulary and the context, and rules that can be carried out.
"""

from typing import Protocol

import numpy as np

from windrow.engines.torch.sampling import Numbers
from windrow.errors import EngineError, PromptTooLong
from windrow.requests import Chunk, Request
from windrow.text import Codec
from windrow.types import Value

STOP_SLACK = 8
"""Tokens looked at beyond the bytes of the longest stop text: some have no text of their own."""


class Sink(Protocol):
    """Where the answer to a request goes."""

    def put(self, item: Chunk | EngineError) -> None: ...


class Limits(Value, frozen=True, kw_only=True):
    """What an engine can take."""

    engine: str
    vocabulary: int
    context_tokens: int
    reads_text: bool
    """There is a codec, so stop texts can be found."""


class Turn:
    """A request that waits or is being sampled."""

    __slots__ = ("family", "follows", "follows_until", "request", "sink", "slot", "stop_window", "stops")

    def __init__(self, request: Request, sink: Sink, end_ids: tuple[int, ...]) -> None:
        self.request = request
        self.sink = sink
        self.stops: Numbers = np.unique(np.array([*request.sampling.stop_token_ids, *end_ids], dtype=np.int64))
        longest = max((len(text.encode()) for text in request.sampling.stop), default=0)
        self.stop_window = longest + STOP_SLACK if longest else 0
        self.family = hash(request.family) if request.family else 0  # only ever compared, in this process
        self.slot = -1
        self.follows: Turn | None = None  # a sibling that is computing what this one can copy soon
        self.follows_until = 0

    def says_stop(self, codec: Codec, said: np.ndarray) -> bool:
        """Whether the last token of what the turn has said completes one of its stop texts."""
        text = codec.decode(said[-self.stop_window :])
        return any(stop in text for stop in self.request.sampling.stop)


def check(request: Request, limits: Limits) -> None:
    """Refuse what cannot be served."""
    who = f"engine {limits.engine!r} request {request.id}"
    if request.prompt.ndim != 1 or request.prompt.size == 0:
        raise EngineError(f"{who} has a prompt of shape {request.prompt.shape}; send at least one token")
    if request.prompt.size >= limits.context_tokens:
        raise PromptTooLong(
            f"{who} has a prompt of {request.prompt.size} tokens and the context is {limits.context_tokens}; "
            "shorten the history or raise context_tokens"
        )
    if not 0 <= request.sampled <= request.prompt.size:
        raise EngineError(f"{who} has {request.sampled} sampled tokens in a prompt of {request.prompt.size}")
    for what, ids in (("prompt", request.prompt), ("allowed_token_ids", request.sampling.allowed_token_ids)):
        _check_ids(f"{who} {what}", np.asarray(ids), limits.vocabulary)
    if request.sampling.stop and not limits.reads_text:
        raise EngineError(f"{who} has stop texts and the engine no codec; give it one or use stop_token_ids")


def _check_ids(what: str, ids: np.ndarray, vocabulary: int) -> None:
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < vocabulary):
        return
    wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
    raise EngineError(f"{what} has token {wrong}; the vocabulary has 0 to {vocabulary - 1}")
