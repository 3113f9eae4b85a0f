"""What is asked of an engine, and what comes back.

Promises: tokens go in and tokens come out; text is never turned into tokens twice. A request that was interrupted is
sent again with what it has so far at the end of its prompt (`sampled` says how much that is), so that whatever has been
sampled stays sampled, and the token at place `i` of a turn depends on the seed and on `i` alone, not on how often the
turn was interrupted.
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.types import Meta, Value

Tokens = NDArray[np.int32]
Logprobs = NDArray[np.float32]

FinishReason = Literal["stop", "length", "interrupted"]
"""`stop`: a stop token or string; `length`: `max_tokens` or the context is full; `interrupted`: send the rest again."""


class Sampling(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a token is drawn from what the model says."""

    temperature: Annotated[float, Meta(ge=0.0, description="0 takes the likeliest token")] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0, description="smallest set of tokens with so much probability")] = 1.0
    top_k: Annotated[int, Meta(ge=0, description="only the k likeliest tokens; 0 = all")] = 0
    min_p: Annotated[
        float, Meta(ge=0.0, le=1.0, description="only tokens at least so likely, as a share of the likeliest")
    ] = 0.0
    max_tokens: Annotated[int, Meta(ge=1, description="longest response of one turn, in tokens")] = 256
    stop_token_ids: Annotated[
        tuple[int, ...], Meta(description="tokens that end a response, beside the tokenizer's own end")
    ] = ()
    stop: Annotated[tuple[str, ...], Meta(description="text that ends a response")] = ()
    allowed_token_ids: Annotated[tuple[int, ...], Meta(description="only these tokens; none = all")] = ()


class Request(Value, frozen=True, kw_only=True):
    """One call to an engine."""

    id: str
    """Attempt, turn and part: `g3.a1.t0.p2`; used once."""
    prompt: Tokens
    """Everything before the next token, what this turn has sampled so far included."""
    sampled: int = 0
    """How many tokens at the end of `prompt` this turn has sampled already."""
    sampling: Sampling = Sampling()
    seed: int = 0
    """Of the turn; draws are a function of it and of the place in the turn."""
    family: str = ""
    """The group: requests of one family begin alike, so an engine may share what it computed for their prompts."""

    @property
    def room(self) -> int:
        """Tokens that may still be sampled in this turn."""
        return self.sampling.max_tokens - self.sampled


class Chunk(Value, frozen=True, kw_only=True):
    """Some tokens of an answer; the last chunk of a request says why it is the last."""

    token_ids: Tokens
    logprobs: Logprobs
    """Of each token under the model: logits ÷ temperature (1 if that is 0), allowed tokens only, nothing cut off by
    top-p, top-k or min-p."""
    version: int
    """The weights that sampled these tokens."""
    finish: FinishReason | None = None
    """None: more follow."""
    stale_cache: bool = False
    """Older weights computed part of what these tokens attend to (`keep_kv`)."""
