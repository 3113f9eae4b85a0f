"""Text and tokens: what a conversation looks like to a model, message by message.

Promises: a new message is rendered once, when it comes; what is already tokens is never rendered again. What the policy
sampled is taken as it is: the closing of its message is added only as far as the policy has not sampled it itself.
A codec may be used by several threads. Short messages that come again, as those of siblings and of small games do, are
the same tokens without being rendered again; whoever gets tokens may not write to them.
"""

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from windrow.errors import ConfigError, blame
from windrow.requests import Tokens
from windrow.types import Value

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

ASK, ANSWER = "user", "assistant"
PLACE = "\ue000windrow\ue000"
"""Stands for an answer while a template is rendered; no text contains it."""

PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""What a folder names whose tokenizer is all in its `tokenizer.json`."""

REMEMBERED = 8192
"""Renderings that a codec keeps of each kind, the latest used ones."""
LONGEST_REMEMBERED = 2000
"""Characters; longer messages seldom come again and would fill the memory."""

HOW_TO_CALL = 'to use a tool write <tool_call>{"name": ..., "arguments": {...}}</tool_call>; these exist:'
"""For models whose template says nothing of tools."""


class Message(Value, frozen=True):
    """One message of a conversation, as chat templates know it."""

    role: str
    content: str
    name: str = ""
    """Who says it, where a template shows that: the name of a tool."""


Tool = Mapping[str, Any]
"""A tool as chat templates know it: `{"type": "function", "function": {"name": …, "parameters": …}}`."""


class Codec(Protocol):
    """Turns messages into tokens and tokens into text."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens with which the policy ends its message."""
        ...

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Tokens:
        """A conversation from its beginning up to where the policy speaks, and the tools that it is offered."""
        ...

    def extend(self, response: Tokens, messages: Sequence[Message]) -> Tokens:
        """What comes after a sampled response: the rest of its closing, new messages, and where the policy speaks."""
        ...

    def encode(self, text: str) -> Tokens:
        """Plain text as tokens, without anything added."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of some tokens, without those that only end a message."""
        ...


class ByteCodec:
    """Text as its UTF-8 bytes, and one token more that ends a message: for scripts and tests, without a tokenizer."""

    END = 256
    vocabulary = 257
    stop_token_ids = (END,)

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Tokens:
        return np.frombuffer(_lines(_told_of(tools, messages)).encode(), np.uint8).astype(np.int32)

    def extend(self, response: Tokens, messages: Sequence[Message]) -> Tokens:
        closing = [] if len(response) and response[-1] == self.END else [self.END]
        return np.concatenate([np.array(closing, np.int32), self.begin(messages)])

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: Tokens) -> str:
        return bytes(token for token in tokens.tolist() if token < self.END).decode("utf-8", "replace")


class ChatCodec:
    """A Hugging Face tokenizer and its chat template; without a template, messages follow each other as plain lines."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = copy.deepcopy(tokenizer)  # nobody else may use it at the same time
        self._lock = threading.Lock()
        self._ids = _way_to_ids(self._tokenizer)
        self._known_begin = lru_cache(REMEMBERED)(self._made_begin)
        self._known_after = lru_cache(REMEMBERED)(self._made_after)
        self._has_template = tokenizer.chat_template is not None
        if tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has no eos_token, so nothing says where a message ends; set one")
        self._end: int = tokenizer.eos_token_id
        self._closing = self._encode(self._after_an_answer([], go_on=False)) if self._has_template else self._alone()
        first = self._closing[:1].tolist()  # a template may end messages with another token than the tokenizer's own
        special = [token for token in first if token in tokenizer.all_special_ids]
        self._stops = tuple(dict.fromkeys([self._end, *special]))

    def __reduce__(self) -> "tuple[type[ChatCodec], tuple[PreTrainedTokenizerBase]]":
        return ChatCodec, (self._tokenizer,)  # a lock does not travel; another process has its own

    @property
    def vocabulary(self) -> int:
        return len(self._tokenizer)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stops

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Tokens:
        said = tuple(messages)
        return self._made_begin(said, tools) if tools or _is_long(said) else self._known_begin(said)

    def extend(self, response: Tokens, messages: Sequence[Message]) -> Tokens:
        said = tuple(messages)
        after = self._made_after(said) if _is_long(said) else self._known_after(said)
        return after[_overlap(response, after, len(self._closing)) :]

    def encode(self, text: str) -> Tokens:
        """Plain text as tokens, without anything added."""
        with self._lock:
            return self._encode(text)

    def decode(self, tokens: Tokens) -> str:
        ids = tokens.tolist()
        with self._lock:
            return str(self._tokenizer.decode([token for token in ids if token not in self._stops]))

    def _made_begin(self, messages: tuple[Message, ...], tools: Sequence[Tool] = ()) -> Tokens:
        with self._lock:
            if not self._has_template:
                return self._encode(_lines(_told_of(tools, messages)))
            bare = self._render([*map(_as_dict, messages)])
            if not tools:
                return self._encode(bare)
            offered = self._render([*map(_as_dict, messages)], tools=tools)
            if offered == bare:  # the template knows nothing of tools
                offered = self._render([*map(_as_dict, _told_of(tools, messages))])
            return self._encode(offered)

    def _made_after(self, messages: tuple[Message, ...]) -> Tokens:
        with self._lock:
            if self._has_template:
                return self._encode(self._after_an_answer(messages))
            return _fixed(np.concatenate([self._closing, self._encode(_lines(messages))]))

    def _after_an_answer(self, messages: Sequence[Message], *, go_on: bool = True) -> str:
        """What the template puts between the end of an answer and the next one."""
        asked = {"role": ASK, "content": "-"}
        answered = {"role": ANSWER, "content": PLACE}
        whole = self._render([asked, answered, *(_as_dict(message) for message in messages)], go_on=go_on)
        _, found, after = whole.partition(PLACE)
        if not found:
            raise ConfigError(f"the chat template does not show what the role {ANSWER!r} said")
        return after

    def _render(self, messages: list[dict[str, str]], *, go_on: bool = True, tools: Sequence[Tool] = ()) -> str:
        offered: Any = [*map(dict, tools)] or None  # what a tool looks like is up to the template
        said = self._tokenizer.apply_chat_template(messages, offered, tokenize=False, add_generation_prompt=go_on)
        return str(said)

    def _encode(self, text: str) -> Tokens:
        return _fixed(np.array(self._ids(text), np.int32))

    def _alone(self) -> Tokens:
        return np.array([self._end], np.int32)


def read_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer in a folder, exactly as it was saved.

    For some kinds of models transformers puts its own class in place of a plain one that the folder names, with other
    tokens and other rules, because many folders name the wrong one; ours name the right one.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with blame(ConfigError, f"tokenizer in {folder} cannot be read"):
        settings = folder / "tokenizer_config.json"
        named = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
        if named in PLAIN_CLASSES:
            return cast(
                "PreTrainedTokenizerFast", PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            )
        return cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _way_to_ids(tokenizer: "PreTrainedTokenizerBase") -> Callable[[str], list[int]]:
    """What makes token ids of text: the tokenizer's fast core where it has one that says the same.

    Its wrapping takes as long again, and hands the interpreter to other threads at every call.
    """
    from transformers import PreTrainedTokenizerFast

    def wrapped(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return wrapped
    sample = f" Hello, wörld\n{''.join(tokenizer.all_special_tokens)} 12 "
    said = wrapped(sample)  # which also settles what may be cut off and filled up: nothing
    core = tokenizer.backend_tokenizer

    def bare(text: str) -> list[int]:
        return list(core.encode(text, add_special_tokens=False).ids)

    return bare if bare(sample) == said else wrapped


def _fixed(tokens: Tokens) -> Tokens:
    """The same, to be read only: others may get them too."""
    tokens.flags.writeable = False
    return tokens


def _is_long(messages: tuple[Message, ...]) -> bool:
    return sum(len(message.content) for message in messages) > LONGEST_REMEMBERED


def _overlap(response: Tokens, after: Tokens, most: int) -> int:
    """How much of what comes after a response the response has said itself."""
    for count in range(min(most, len(response)), 0, -1):
        if np.array_equal(response[-count:], after[:count]):
            return count
    return 0


def _lines(messages: Sequence[Message]) -> str:
    return "".join(f"{message.content}\n" for message in messages)


def _told_of(tools: Sequence[Tool], messages: Sequence[Message]) -> list[Message]:
    """A conversation that begins with the tools in plain words, for templates that have no place for them."""
    if not tools:
        return [*messages]
    words = "\n".join([HOW_TO_CALL, *(json.dumps(dict(tool["function"])) for tool in tools)])
    if messages and messages[0].role == "system":  # many templates take only one
        return [Message("system", f"{messages[0].content}\n{words}"), *messages[1:]]
    return [Message("system", words), *messages]


def _as_dict(message: Message) -> dict[str, str]:
    said = {"role": message.role, "content": message.content}
    return said | {"name": message.name} if message.name else said
