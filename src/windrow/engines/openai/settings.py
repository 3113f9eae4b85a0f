"""What a user may choose about a server.

Promises: a wrong setting is refused when it is read. The key itself is no setting: it stays in the environment, and
only the name of the variable that holds it is written down.
"""

import os
from typing import Annotated, Literal

from windrow.errors import ConfigError
from windrow.types import Meta, Value

Flavour = Literal["openai", "vllm"]
"""`openai`: the published API and nothing else; `vllm`: a vLLM server, which can do much more."""

LogprobsMode = Literal["raw", "processed"]
"""`raw`: at temperature 1, over all tokens; `processed`: of the distribution that was drawn from."""


class OpenAISettings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server is and what may be expected of it."""

    base_url: Annotated[str, Meta(description="where the server is, such as http://127.0.0.1:8000")]
    model: Annotated[str, Meta(min_length=1, description="name under which it serves the model")]
    context_tokens: Annotated[int, Meta(ge=2, description="longest prompt and response together")]
    flavour: Annotated[Flavour, Meta(description="vllm can also freeze, load weights and sleep")] = "openai"
    capacity: Annotated[int, Meta(ge=1, description="requests sent to it at once; more wait here")] = 64
    require_training: Annotated[
        bool,
        Meta(description="refuse a server that gives no token ids or log-probs; if false, it serves for evaluation"),
    ] = True
    logprobs_mode: Annotated[
        LogprobsMode | None,
        Meta(description="what its log-probs mean; none = ask a vllm server, take any other for raw"),
    ] = None
    api_key_env: Annotated[str, Meta(description="environment variable that holds the key; empty = no key")] = ""
    request_timeout_s: Annotated[
        float, Meta(gt=0.0, description="longest time for one request, retries included, the gate not")
    ] = 600.0
    control_timeout_s: Annotated[float, Meta(gt=0.0, description="longest time to pause, load or sleep")] = 300.0
    retries: Annotated[
        int, Meta(ge=0, description="further tries of a request that got no answer, or was told to come later")
    ] = 3
    backoff_s: Annotated[float, Meta(ge=0.0, description="wait before the first further try; doubles with each")] = 0.5
    stream_every: Annotated[int, Meta(ge=1, description="tokens per chunk; vllm only")] = 8
    send_seed: Annotated[
        bool,
        Meta(description="give each request its seed; vllm on a CPU dies of one whose prompt is computed in parts"),
    ] = True
    allow_tied: Annotated[
        bool,
        Meta(description="load checkpoints with tied embeddings; vllm on a CPU keeps the old output head then"),
    ] = False

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://, got {self.base_url!r}")

    @property
    def root(self) -> str:
        """The base URL without the `/v1` that many people add."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def key(self) -> str:
        """The key from the environment; empty if none is wanted."""
        if not self.api_key_env:
            return ""
        key = os.environ.get(self.api_key_env, "")
        if not key:
            raise ConfigError(
                f"api_key_env names {self.api_key_env}, which is not set; export it or leave the name out"
            )
        return key
