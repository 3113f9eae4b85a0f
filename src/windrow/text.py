"""Text and tokens: what a conversation looks like to a model, message by message.

Promises: a new message is rendered once, when it comes; what is already tokens is never rendered again. What the policy
sampled is taken as it is: the closing of its message is added only as far as the policy has not sampled it itself.
A codec may be used by several threads.
"""

from collections.abc import Sequence
from typing import Protocol

from windrow.requests import Tokens
from windrow.types import Value


class Message(Value, frozen=True):
    """One message of a conversation, as chat templates know it."""

    role: str
    content: str


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

    def begin(self, messages: Sequence[Message]) -> Tokens:
        """A conversation from its beginning up to where the policy speaks."""
        ...

    def extend(self, response: Tokens, messages: Sequence[Message]) -> Tokens:
        """What comes after a sampled response: the rest of its closing, new messages, and where the policy speaks."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of some tokens, without those that only end a message."""
        ...
