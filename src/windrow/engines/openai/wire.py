"""The words of the completions API: what is asked, what comes back, and what each kind of server cannot do.

Promises: nothing here waits or does anything. What a server cannot do is refused by name, never left out in silence;
a log-probability that would not mean what `Chunk.logprobs` says is refused, too. What comes back is checked before it
is believed: as many log-probabilities as tokens, all of them finite, never more tokens than were asked for.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np

from windrow.engines.openai.settings import Flavour, LogprobsMode, OpenAISettings
from windrow.errors import ConfigError, EngineError, PromptTooLong
from windrow.requests import FinishReason, Logprobs, Request, Sampling, Tokens
from windrow.types import Meta, Value, from_json

Encode = Callable[[str], Sequence[int]]
"""A tokenizer: text in, tokens out."""

LONGEST_LINE = 1 << 20
"""Bytes of one event; a server that sends more without a line break sends garbage."""
SHOWN = 120
"""Characters of a server's words that fit into a message."""
IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity, which JSON cannot say."""
ROUNDING = 1e-3
"""A log-prob may come out as slightly more than 0; more than this is a logit."""
FINISHES: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "interrupted"}

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Piece(Value, frozen=True, kw_only=True):
    """What one event says."""

    token_ids: Tokens
    logprobs: Logprobs
    finish: FinishReason | None


# what is asked


class Words(Value, frozen=True, kw_only=True):
    """Which words beyond the plainest a server understands."""

    token_ids: bool = True
    logprobs: bool = True


def body(request: Request, limit: int, settings: OpenAISettings, words: Words) -> dict[str, object]:
    """The JSON of a request for at most `limit` tokens."""
    asked = request.sampling
    said: dict[str, object] = {
        "model": settings.model,
        "prompt": request.prompt.tolist(),
        "max_tokens": limit,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stream": True,
    }
    if settings.send_seed:
        said["seed"] = seed_of(request)
    if words.logprobs:
        said["logprobs"] = 0 if settings.flavour == "vllm" else 1  # 0: of the sampled token alone
    if words.token_ids:
        said["return_token_ids"] = True
    if asked.stop:
        said["stop"] = list(asked.stop)
    if settings.flavour == "vllm":
        said |= _vllm_words(asked, settings.stream_every)
    return said


def _vllm_words(asked: Sampling, stream_every: int) -> dict[str, object]:
    """All of them are said: what is left out, vLLM takes from the model's generation_config.json."""
    said: dict[str, object] = {
        "top_k": asked.top_k,
        "min_p": asked.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(asked.stop_token_ids),
        "stream_interval": stream_every,
    }
    if asked.allowed_token_ids:
        said["allowed_token_ids"] = list(asked.allowed_token_ids)
    return said


def seed_of(request: Request) -> int:
    """31 bits from the turn's seed and the place in it, so that a continued turn does not repeat its draws."""
    words = f"{request.seed}:{request.sampled}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=4).digest(), "big") >> 1


def refuse_unknown(asked: Sampling, flavour: Flavour) -> None:
    """Raise if a server of this flavour cannot do what is asked."""
    if flavour == "vllm":
        return
    wanted = {
        "top_k": asked.top_k != 0,
        "min_p": asked.min_p != 0.0,
        "allowed_token_ids": bool(asked.allowed_token_ids),
        "stop_token_ids": bool(asked.stop_token_ids),
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    if names:
        raise ConfigError(
            f"sampling.{', sampling.'.join(names)}: a plain OpenAI server cannot do that; "
            f"leave it out, or set flavour: vllm if it is a vLLM server"
        )


def mismatch(asked: Sampling, mode: LogprobsMode) -> str:
    """Why this server's log-probs would not be those of the model at this temperature; empty if they are."""
    if mode == "raw":
        if asked.temperature not in (0.0, 1.0):
            return (
                f"temperature is {asked.temperature:g} and the server's log-probs are those of temperature 1; "
                f"start it with --logprobs-mode processed_logprobs and set logprobs_mode: processed"
            )
        if asked.allowed_token_ids:
            return (
                "allowed_token_ids is set and the server's log-probs are those over all tokens; "
                "start it with --logprobs-mode processed_logprobs and set logprobs_mode: processed"
            )
        return ""
    cuts = {"top_p": asked.top_p != 1.0, "top_k": asked.top_k != 0, "min_p": asked.min_p != 0.0}
    names = [name for name, cut in cuts.items() if cut]
    if names and asked.temperature > 0.0:
        return (
            f"{', '.join(names)} cuts tokens off and the server's log-probs are those of what is left; "
            f"leave it out, or use temperature 1 and a server with raw log-probs"
        )
    return ""


# what comes back


class Reader:
    """Turns the bytes of one answer into pieces, however they are cut."""

    def __init__(self, who: str, limit: int, *, trains: bool, encode: Encode | None = None) -> None:
        self._who = who
        self._limit = limit
        self._trains = trains
        self._encode = encode
        self._rest = b""
        self.tokens = 0  # that came
        self.finished = False  # a piece with a finish came

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete now; raises EngineError where an answer stops making sense."""
        for choice in self.choices(data):
            if self.finished:
                continue  # usage may follow; tokens would be nobody's
            piece = self._piece(choice)
            if piece.finish is not None or len(piece.token_ids):
                yield piece

    def choices(self, data: bytes) -> Iterator["Choice"]:
        """The events that are complete now, as they are."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise EngineError(f"{self._who}: the server sent {len(self._rest)} bytes without a line break")
        for line in lines:
            event = self._event(line.strip())
            if event:
                yield from self._choices(event)

    def _event(self, line: bytes) -> bytes:
        """What a line says; empty if it is none of our business."""
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return b""
        if not line.startswith(b"data:"):
            raise EngineError(f"{self._who}: the server does not stream events, it sent {shown(line)}")
        event = line.removeprefix(b"data:").strip()
        return b"" if event == b"[DONE]" else event

    def _choices(self, event: bytes) -> list["Choice"]:
        try:
            said = from_json(event, _Event)
        except ValueError as error:
            raise EngineError(f"{self._who}: the server sent {shown(event)}: {error}") from error
        if said.error is not None:
            raise fault(self._who, 200, event)
        return said.choices[:1]

    def _piece(self, choice: "Choice") -> Piece:
        ids, logprobs = self._sampled(choice) if self._trains else self._guessed(choice)
        self.tokens += len(ids)
        if self.tokens > self._limit:
            raise EngineError(
                f"{self._who}: the server returned {self.tokens} tokens, at most {self._limit} were asked for"
            )
        finish = self._finish(choice.finish_reason)
        self.finished = finish is not None
        return Piece(token_ids=ids, logprobs=logprobs, finish=finish)

    def _sampled(self, choice: "Choice") -> tuple[Tokens, Logprobs]:
        """What the server says it sampled."""
        if choice.token_ids is None:
            if choice.text:
                raise EngineError(f"{self._who}: the server returned text without token ids")
            return _no_tokens(), _no_logprobs()
        logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
        if len(logprobs) != len(choice.token_ids):
            raise EngineError(
                f"{self._who}: the server returned {len(choice.token_ids)} tokens and {len(logprobs)} log-probs"
            )
        for value in logprobs:
            if value is None or not IMPOSSIBLE < value < ROUNDING:
                raise EngineError(f"{self._who}: the server returned the log-prob {value} for a token that it sampled")
        return np.array(choice.token_ids, np.int32), np.array(logprobs, np.float32)

    def _guessed(self, choice: "Choice") -> tuple[Tokens, Logprobs]:
        """Ids where they come, otherwise those of the text; no log-probs."""
        room = self._limit - self.tokens
        if choice.token_ids is not None:
            ids = np.array(choice.token_ids, np.int32)
        elif choice.text and self._encode is not None:
            # the text may be cut into more tokens than were sampled
            ids = np.array(self._encode(choice.text), np.int32)[:room]
        else:
            ids = _no_tokens()
        return ids, np.full(len(ids), np.nan, np.float32)

    def _finish(self, reason: str | None) -> FinishReason | None:
        if reason is None:
            return None
        if reason not in FINISHES:
            raise EngineError(f"{self._who}: the server ended the answer with {reason!r}")
        return FINISHES[reason]


class _Scores(Value, frozen=True):
    token_logprobs: list[float | None] = []


class Choice(Value, frozen=True):
    """One event, as servers send it."""

    text: str = ""
    token_ids: list[TokenId] | None = None
    logprobs: _Scores | None = None
    finish_reason: str | None = None


class _Event(Value, frozen=True, gc=True):
    choices: list[Choice] = []
    error: Any = None  # servers differ; `fault` makes words of it


class Seen(Value, frozen=True, kw_only=True):
    """What one token's answer had in it."""

    token_ids: bool = False
    logprobs: bool = False
    first_logprob: float | None = None


def seen(who: str, data: bytes) -> Seen:
    """What a whole answer has in it."""
    reader = Reader(who, LONGEST_LINE, trains=False)
    found = Seen()
    for choice in reader.choices(data):
        values = choice.logprobs.token_logprobs if choice.logprobs is not None else []
        first = next((value for value in values if value is not None), None)
        found = Seen(
            token_ids=found.token_ids or bool(choice.token_ids),
            logprobs=found.logprobs or first is not None,
            first_logprob=first if found.first_logprob is None else found.first_logprob,
        )
    return found


def _no_tokens() -> Tokens:
    return np.empty(0, np.int32)


def _no_logprobs() -> Logprobs:
    return np.empty(0, np.float32)


# what went wrong


class Unanswered(Exception):
    """Not one byte of an answer came, so that asking again is safe; never leaves this package."""


class BrokenOff(Exception):
    """An answer ended in the middle; never leaves this package."""


class _Fault(Value, frozen=True):
    message: str = ""
    code: str | int | None = None


class _WithFault(Value, frozen=True):
    error: _Fault | str | None = None
    message: str = ""
    detail: str = ""


def fault(who: str, status: int, answer: bytes) -> EngineError:
    """The error that a server's answer stands for, in the server's words."""
    said = _fault_of(answer)
    words = said.message or shown(answer)
    if said.code == "context_length_exceeded" or "maximum context length" in words.lower():
        return PromptTooLong(f"{who}: {words}")
    return EngineError(f"{who}: the server answered {status}: {words}")


def _fault_of(answer: bytes) -> _Fault:
    try:
        said = from_json(answer, _WithFault)
    except ValueError:
        return _Fault()
    if isinstance(said.error, _Fault):
        return said.error
    return _Fault(said.error or said.message or said.detail)


def shown(words: bytes) -> str:
    """The beginning of what a server said, for a message."""
    text = words.decode(errors="replace")
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
