"""Tasks, and what remains of an episode that was played on one.

Promises: tokens are facts. A trajectory holds what was sampled, never a re-tokenisation of text; who wrote each token
and which weights sampled it stand beside it as runs. A chain of tokens only grows; where an environment rewrote history
a new chain begins. Nothing is padded here.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.requests import FinishReason, Logprobs, Tokens
from windrow.text import Message
from windrow.types import AttemptId, Mode, Value

Author = Literal["prompt", "policy", "environment"]
"""`prompt`: before the first sampled token; `environment`: whatever was added after it and not sampled."""

Ending = Literal["terminated", "truncated", "max_turns", "max_tokens", "context"]
"""Why an episode is over: the environment said so (two ways), or a limit was reached."""


Split = Literal["train", "held_out"]
"""Which part of an environment's problems a task is drawn from; no problem is in both."""


class Task(Value, frozen=True, kw_only=True, gc=True):
    """One problem."""

    ordinal: int
    """Its place in its source, from which it can be fetched again."""
    seed: int = 0
    payload: Any = None  # whatever the environment understands
    tag: str = ""
    """The share it counts towards, and which environment plays it."""
    name: str = ""
    """Stays the same when the task comes again; empty if it never does."""
    split: Split = "train"
    """For environments that make their problem up from the seed."""


class Segment(Value, frozen=True):
    """A run of tokens by one author under one version."""

    author: Author
    length: int
    version: int = -1
    """Of the weights that sampled it; -1 if nobody sampled it."""
    stale_cache: bool = False
    """Sampled on top of what older weights computed."""


class Chain(Value, frozen=True, kw_only=True):
    """A history that only grew."""

    token_ids: Tokens
    logprobs: Logprobs
    """Of every token; 0 where nobody sampled it."""
    segments: tuple[Segment, ...]

    def spans(self) -> Iterator[tuple[int, int, Segment]]:
        """Each segment with where it begins and ends."""
        start = 0
        for segment in self.segments:
            yield start, start + segment.length, segment
            start += segment.length

    def versions(self) -> NDArray[np.int32]:
        """The version of every token; -1 where nobody sampled it."""
        lengths = [segment.length for segment in self.segments]
        return np.repeat(np.array([segment.version for segment in self.segments], np.int32), lengths)


class Turn(Value, frozen=True, kw_only=True):
    """One observation, one response, one step of the environment."""

    chain: int
    """Index of the chain it belongs to."""
    begin: int
    """Where its response begins in the chain."""
    end: int
    """One past the response's last token."""
    reward: float
    finish: FinishReason
    """`stop`, or `length` if the response was cut off."""
    requests: int = 1
    """Calls to an engine that it took; one more for each interruption."""
    generate_s: float = 0.0
    """Waiting included."""
    env_s: float = 0.0
    seen: tuple[Message, ...] = ()
    """What the policy was shown since its last response; with the first turn of a chain, from its beginning."""
    action: str = ""
    """What it said, as the environment got it."""


class Trajectory(Value, frozen=True, kw_only=True, gc=True):
    """The record of a finished episode."""

    attempt: AttemptId
    seat: int
    mode: Mode
    task: Task
    chains: tuple[Chain, ...]
    """One, unless history was rewritten."""
    turns: tuple[Turn, ...]
    score: float
    ending: Ending
    worker: str = ""
    engines: tuple[str, ...] = ()
    """Which sampled it, in order."""
    began_at: float = 0.0
    ended_at: float = 0.0
    reward_began_at: float = 0.0
    """When its reward was asked for; 0 if the environment's own rewards are the score."""
    reward_ended_at: float = 0.0
    scores: dict[str, float] = {}
    """What the score is made of, by name."""
    info: dict[str, Any] = {}  # the environment's last word

    @property
    def answer(self) -> str:
        """What the policy said last; empty if it never spoke."""
        return self.turns[-1].action if self.turns else ""

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(turn.end - turn.begin for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """Of any policy token; -1 if there is none."""
        return min(self.versions, default=-1)

    @property
    def versions(self) -> set[int]:
        """Of all its policy tokens."""
        return {segment.version for chain in self.chains for segment in chain.segments if segment.version >= 0}

    @property
    def is_truncated(self) -> bool:
        """It was cut off, by the environment or by a limit, rather than ended."""
        return self.ending != "terminated"
