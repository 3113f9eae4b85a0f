"""One request on its way: where it is, what has come of it, and how somebody else ends it.

Promises: what has arrived is never thrown away: whoever ends a flight takes first what is at hand, and its last chunk
says so. Tokens carry the version under which they arrived. A flight that is over stays over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from math import inf
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from windrow.engines.openai.wire import Piece, Reader
from windrow.errors import EngineError
from windrow.requests import Chunk, FinishReason, Request

if TYPE_CHECKING:
    from windrow.engines.openai.http import Answer

T = TypeVar("T")

Phase = Literal["waiting", "connecting", "streaming"]


class Flight:
    """A request on its way."""

    def __init__(self, request: Request, limit: int, reader: Reader) -> None:
        self.request = request
        self.limit = limit  # tokens that may come
        self.phase: Phase = "waiting"
        self.wake = asyncio.Event()  # something happened to it while it waited
        self.version = -1  # of what arrives now
        self.outbox: deque[Chunk] = deque()
        self.error: EngineError | None = None  # raised after the outbox is empty
        self.over = False  # its last chunk is in the outbox, or its error is known
        self.ending = False  # the server was told to end it; the label of its tokens is fixed
        self.deadline = inf
        self._left_s: float | None = None  # of the deadline; None unless it is frozen
        self._reader = reader
        self._answer: Answer | None = None
        self._wait: asyncio.Timeout | None = None

    @property
    def tokens(self) -> int:
        """Tokens that came."""
        return self._reader.tokens

    @property
    def answer(self) -> "Answer":
        assert self._answer is not None, f"{self.request.id} is read before it is answered"
        return self._answer

    def seat(self, version: int, deadline: float) -> None:
        """Let it go from the gate to the server."""
        self.phase = "connecting"
        self.version = version
        self.deadline = deadline
        self.wake.set()

    def answered(self, answer: "Answer") -> None:
        """The server began to answer."""
        self._answer = answer
        self.phase = "streaming"

    async def within(self, step: Awaitable[T]) -> T:
        """Wait for a step of this request; TimeoutError at its deadline or when somebody cuts it."""
        async with asyncio.timeout_at(self._until) as wait:
            self._wait = wait
            try:
                return await step
            finally:
                self._wait = None

    # what arrives

    def take(self, data: bytes) -> None:
        """Put what these bytes say into the outbox, as one chunk."""
        pieces: list[Piece] = []
        try:
            for piece in self._reader.feed(data):
                pieces.append(piece)  # noqa: PERF402 -- those before an error count
        except EngineError as error:
            self._put(pieces, None)
            self.fail(error)
            return
        finish = pieces[-1].finish if pieces else None
        self._put(pieces, finish)
        self.over = finish is not None

    def harvest(self) -> None:
        """Take what is at hand, under the version that it has."""
        if self._answer is not None and not self.over:
            self.take(self._answer.at_hand())

    def relabel(self, version: int) -> None:
        """What arrives from now on was sampled by other weights."""
        self.harvest()
        if not self.ending:
            self.version = version

    # how it ends

    def cut(self) -> None:
        """End it here and now, with what has arrived."""
        self.harvest()
        self.end()
        self.close()

    def end(self, finish: FinishReason = "interrupted") -> None:
        """Nothing more will come."""
        if self.over:
            return
        self.over = True
        self._put([], finish)
        self.deadline = -inf
        self._move()
        self.wake.set()

    def fail(self, error: EngineError) -> None:
        """It cannot be answered."""
        if not self.over:
            self.over = True
            self.error = error
            self.close()

    def end_by(self, when: float) -> None:
        """The server was told to end it: wait that long for its last words."""
        self._left_s = None
        self.deadline = min(self.deadline, when)
        self._move()

    def close(self) -> None:
        """Stop listening to the server."""
        if self._answer is not None:
            self._answer.close()

    # frozen time does not count

    def freeze(self, now: float) -> None:
        if self._left_s is None:
            self._left_s = self.deadline - now
            self._move()

    def thaw(self, now: float) -> None:
        if self._left_s is not None:
            self.deadline = now + self._left_s
            self._left_s = None
            self._move()

    @property
    def _until(self) -> float | None:
        return None if self._left_s is not None and not self.over else self.deadline

    def _move(self) -> None:
        """Let whoever waits for a step know of the new deadline."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(self._until)

    def _put(self, pieces: list[Piece], finish: FinishReason | None) -> None:
        if not pieces and finish is None:
            return
        ids = [piece.token_ids for piece in pieces]
        logprobs = [piece.logprobs for piece in pieces]
        self.outbox.append(
            Chunk(
                token_ids=np.concatenate([np.empty(0, np.int32), *ids]),
                logprobs=np.concatenate([np.empty(0, np.float32), *logprobs]),
                version=self.version,
                finish=finish,
            )
        )
