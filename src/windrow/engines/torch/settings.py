"""Everything about the embedded engine that a user may choose, and what it counts.

Promises: settings never change while an engine lives; a wrong one is refused when it is read or the engine is made.
"""

from typing import Annotated, Literal, TypedDict

import msgspec

from windrow.errors import ConfigError
from windrow.types import Meta, Record, Value

Dtype = Literal["float32", "bfloat16", "float16"]


class TorchSettings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one embedded engine works."""

    capacity: Annotated[int, Meta(ge=1, description="requests sampled at once; more wait in order")] = 32
    context_tokens: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="longest prompt and response together; default: as many as the model has positions"),
    ] = None
    device: Annotated[str, Meta(description="where the model lives: cpu, cuda:0")] = "cpu"
    dtype: Annotated[Dtype, Meta(description="of the weights and of the cache")] = "float32"
    deterministic: Annotated[
        bool,
        Meta(description="the same request gives the same bits whatever runs beside it; every forward has one shape"),
    ] = False
    keep_kv: Annotated[
        bool, Meta(description="after new weights go on with the old cache and mark what is sampled from it")
    ] = False
    stream_every: Annotated[int, Meta(ge=1, description="tokens per chunk; the last chunk comes at once")] = 16
    threads: Annotated[int, Meta(ge=1, description="cores that one forward may use; set in the engine's thread")] = 1
    seed: Annotated[int, Meta(description="of the random weights of a model that is made from its config")] = 0


class TorchOptions(TypedDict, total=False):
    """The same as keywords of the engine's constructor; they win over the settings given there."""

    capacity: int
    context_tokens: int | None
    device: str
    dtype: Dtype
    deterministic: bool
    keep_kv: bool
    stream_every: int
    threads: int
    seed: int


class Counters(Record, kw_only=True):
    """What an engine has done since it was made; for reading by people."""

    steps: int = 0
    """Forwards of the model."""
    sampled_tokens: int = 0
    prefill_tokens: int = 0
    """Tokens that were fed to the model and not sampled by the request that fed them."""
    prefix_tokens_reused: int = 0
    """Tokens of prompts that were in the cache already, in their own place or copied from another."""
    cache_tokens_dropped: int = 0
    """Cached tokens of running requests that new weights made worthless."""


def settled(settings: TorchSettings, options: TorchOptions) -> TorchSettings:
    """Settings and keywords in one, checked; settings made in Python were not."""
    try:
        return msgspec.convert({**msgspec.structs.asdict(settings), **options}, TorchSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"torch engine: {error}") from error
