"""What a server can do, found out by asking it.

Promises: a server that cannot be used is refused when the engine starts, with what is missing and the way out. Nothing
is believed because of a server's name.
"""

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from windrow.engines.openai import wire
from windrow.engines.openai.settings import LogprobsMode, OpenAISettings
from windrow.engines.openai.wire import BrokenOff, Seen, Unanswered, Words
from windrow.errors import ConfigError, EngineLost
from windrow.requests import Request, Sampling
from windrow.types import Value, from_json

if TYPE_CHECKING:
    from windrow.engines.openai.http import Http, Reply

PROMPT = np.zeros(1, np.int32)
"""Every vocabulary has a token 0."""
ALONE = ((0,), (1,))
"""The log-prob of the only allowed token is 0, unless it is that over all tokens; and no two tokens are certain."""


class Found(Value, frozen=True, kw_only=True):
    """What a server can do."""

    words: Words
    """What it understands."""
    mode: LogprobsMode
    has_controls: bool
    """It can be paused, loaded and put to sleep."""

    @property
    def trains(self) -> bool:
        return self.words.token_ids and self.words.logprobs


async def find_out(who: str, http: "Http", settings: OpenAISettings, *, can_encode: bool) -> Found:
    """Ask a server what it can do; raises ConfigError if that is not enough."""
    probe = _Probe(who, http, settings)
    try:
        async with asyncio.timeout(settings.control_timeout_s):
            await probe.find_model()
            has_controls = await probe.find_controls()
            words = await probe.find_words(can_encode=can_encode)
            mode = await probe.find_mode(words)
    except (Unanswered, BrokenOff) as error:
        raise EngineLost(
            f"{who}: cannot reach {settings.root}: {error}; start the server or correct base_url"
        ) from error
    except TimeoutError as error:
        raise EngineLost(
            f"{who}: {settings.root} did not answer within {settings.control_timeout_s:g} s; "
            f"look at the server or raise control_timeout_s"
        ) from error
    return Found(words=words, mode=mode, has_controls=has_controls)


class _Probe:
    def __init__(self, who: str, http: "Http", settings: OpenAISettings) -> None:
        self._who = who
        self._http = http
        self._settings = settings

    async def find_model(self) -> None:
        """Refuse a server that does not let us in, does not serve the model, or serves it with less context."""
        reply = await self._http.get("/v1/models")
        if reply.status in (401, 403):
            raise ConfigError(f"{self._who}: {self._settings.root} wants another key; set api_key_env")
        models = {model.id: model for model in _models(reply)}
        if not models:
            return  # a server need not list them
        model = models.get(self._settings.model)
        if model is None:
            names = ", ".join(sorted(models))
            raise ConfigError(f"{self._who}: the server has no model {self._settings.model!r}, it serves {names}")
        if model.max_model_len is not None and model.max_model_len < self._settings.context_tokens:
            raise ConfigError(
                f"{self._who}: context_tokens is {self._settings.context_tokens}, "
                f"the server's is {model.max_model_len}; lower it or start the server with --max-model-len"
            )

    async def find_controls(self) -> bool:
        """Whether it can be paused; one that somebody left asleep or paused is woken."""
        if self._settings.flavour != "vllm":
            return False
        reply = await self._http.get("/is_sleeping")
        if reply.status != 200:
            return False
        if from_json(reply.content, _Sleep).is_sleeping:
            await self._http.post("/wake_up")
        return True

    async def find_words(self, *, can_encode: bool) -> Words:
        """Whether token ids and log-probs come back."""
        seen = await self._seen(Words())
        if seen is None:  # it refuses words that it does not know
            seen = await self._seen(Words(token_ids=False, logprobs=False)) or Seen()
        missing = [
            what for what, is_there in (("token ids", seen.token_ids), ("log-probs", seen.logprobs)) if not is_there
        ]
        if missing and self._settings.require_training:
            raise ConfigError(
                f"{self._who}: {self._settings.root} returns no {' and no '.join(missing)}, so what it samples cannot "
                f"be trained on; use a vLLM server, or set require_training: false to evaluate with this one"
            )
        if not seen.token_ids and not can_encode:
            raise ConfigError(
                f"{self._who}: {self._settings.root} returns no token ids; give the engine a tokenizer (encode=…)"
            )
        return Words(token_ids=seen.token_ids, logprobs=seen.logprobs)

    async def find_mode(self, words: Words) -> LogprobsMode:
        """What its log-probs mean."""
        if self._settings.logprobs_mode is not None:
            return self._settings.logprobs_mode
        if self._settings.flavour != "vllm" or not words.logprobs:
            return "raw"
        for allowed in ALONE:
            seen = await self._seen(words, Sampling(max_tokens=1, allowed_token_ids=allowed))
            if seen is None or seen.first_logprob != 0.0:
                return "raw"
        return "processed"

    async def _seen(self, words: Words, sampling: Sampling | None = None) -> Seen | None:
        """What comes back for one token; None if the server refuses the question."""
        request = Request(id="probe", prompt=PROMPT, sampling=sampling or Sampling(max_tokens=1))
        asked = wire.body(request, 1, self._settings, words)
        answer = await self._http.ask("/v1/completions", asked, f"probe-{id(self)}")
        try:
            if answer.status in (400, 422) and words.token_ids:
                return None
            if answer.status != 200:
                raise wire.fault(self._who, answer.status, await answer.complaint())
            data = b""
            while more := await answer.more():
                data += more
            return wire.seen(self._who, data)
        finally:
            answer.close()


class _Model(Value, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(Value, frozen=True, gc=True):
    data: list[_Model] = []


class _Sleep(Value, frozen=True):
    is_sleeping: bool = False


def _models(reply: "Reply") -> list[_Model]:
    if reply.status != 200:
        return []
    try:
        return from_json(reply.content, _Models).data
    except ValueError:
        return []
