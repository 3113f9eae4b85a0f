"""The gate and the queue: which requests run, and what a control call does to them.

Everything here happens between two forwards, on the one thread that owns it; nothing waits.

Promises: requests start in the order in which they came, as soon as the gate is open and a slot is free; nothing is
sampled while the gate is closed, but by requests that are drained; a chunk holds tokens of one version; a request ends
exactly once, and a withdrawn one never again says a word.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from windrow.engines.protocol import Acknowledgement
from windrow.engines.torch.running import Running
from windrow.engines.torch.settings import TorchSettings
from windrow.engines.torch.spells import Activity, Busy, Spells
from windrow.engines.torch.turns import Limits, Sink, Turn
from windrow.engines.torch.weights import checksum, replace
from windrow.errors import ConfigError, EngineError
from windrow.requests import Chunk, FinishReason, Request
from windrow.text import Codec
from windrow.types import How


class Batcher:
    """The requests of one engine."""

    def __init__(
        self, model: PreTrainedModel, codec: Codec | None, settings: TorchSettings, limits: Limits, version: int
    ) -> None:
        self.running = Running(model, codec, settings, limits)
        self.running.version = version
        self._spells = Spells()
        self.waiting: deque[Turn] = deque()  # all and only requests without a slot
        self.released = False
        self._gate: How | None = None  # how it was closed; None: open
        self._model = model
        self._device = settings.device
        self._engine = limits.engine
        self._exact = settings.deterministic
        self._checksum = ""  # known from `begin` on
        self._end_ids = codec.stop_token_ids if codec is not None else ()
        self._when_quiet: list[Callable[[EngineError | None], None]] = []  # whoever waits until nothing is sampled

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._gate is None:
            return bool(len(self.running) or self.waiting)
        return self._gate == "drain" and len(self.running) > 0

    def begin(self) -> Acknowledgement:
        """Take up work."""
        if self._exact and not self.running.is_exact():
            raise ConfigError(
                f"engine {self._engine!r} cannot be deterministic: the same token gets other bits at another place of "
                "a forward on this machine; try another capacity"
            )
        self._checksum = checksum(self._model)
        return self.acknowledge()

    def acknowledge(self) -> Acknowledgement:
        """The weights it works with."""
        return Acknowledgement(version=self.running.version, checksum=self._checksum)

    def activity(self) -> Activity:
        """What was done so far; may be asked from any thread."""
        done = self.running.counters
        return Activity(
            now=time.monotonic(), forwards=done.steps, tokens=done.sampled_tokens, spells=self._spells.told()
        )

    def busy(self) -> Busy:
        """How long it has computed; may be asked from any thread."""
        return self._spells.busy()

    def submit(self, request: Request, sink: Sink) -> None:
        """Take a request that `check` let pass."""
        if self.released:
            sink.put(EngineError(f"engine {self._engine!r} has released its devices; restore it first"))
            return
        self.waiting.append(Turn(request, sink, self._end_ids))

    def withdraw(self, sink: Sink) -> None:
        """Forget a request whose client has gone."""
        for turn in self._turns():
            if turn.sink is sink:
                self._remove(turn)
        self._tell_if_quiet()

    def interrupt(self, ids: Iterable[str] | None = None) -> None:
        """End some requests, or all, with what they have; those that wait included."""
        named = None if ids is None else set(ids)
        for turn in self._turns():
            if named is None or turn.request.id in named:
                self._end(turn, "interrupted")
        self._tell_if_quiet()

    def fail(self, error: EngineError) -> None:
        """End everything with an error; nothing else works any more."""
        for turn in self._turns():
            turn.sink.put(error)
        for tell in self._when_quiet:
            tell(error)

    def suspend(self, how: How, when_quiet: Callable[[EngineError | None], None]) -> None:
        """Close the gate; `when_quiet` is called once nothing is being sampled, or with why that will never be."""
        self._gate = how
        self._spells.cut()
        if how == "interrupt":
            for turn in self.running.turns():
                self.running.end(turn, "interrupted")
        elif how == "freeze":
            self.running.flush()
        self._when_quiet.append(when_quiet)
        self._tell_if_quiet()

    def resume(self) -> None:
        """Open the gate; whoever still waited for quiet waits no longer."""
        self._gate = None
        self._tell_if_quiet()

    def load(self, version: int, weights: Mapping[str, Tensor] | Path | None) -> Acknowledgement:
        """Go on with other weights, or with the same ones under another number."""
        if weights is not None:
            replace(self._model, weights)
        self.running.flush()  # under the version that sampled it
        if weights is not None:
            self.running.outdate()
            self._checksum = checksum(self._model)
        self.running.version = version
        return self.acknowledge()

    def release(self) -> None:
        """End everything and give memory back."""
        self.interrupt()
        self._spells.cut()
        self.running.forget()
        self.released = True
        if self._device != "cpu":
            self._model.to("cpu")  # type: ignore[arg-type]  # transformers hides torch's signature
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Be ready again."""
        if self._device != "cpu":
            self._model.to(self._device)  # type: ignore[arg-type]  # as above
        self.released = False

    def step(self) -> None:
        """Let in whoever may run, and sample."""
        coming: list[Turn] = []
        while self._gate is None and self.waiting and len(coming) < self.running.room:
            turn = self.waiting[0]
            if turn.request.room <= 0:
                self._end(turn, "length")
                continue
            coming.append(self.waiting.popleft())
        self.running.seat_all(coming)
        if len(self.running):
            self._spells.begin(time.monotonic())
            try:
                self.running.step()
            finally:
                self._spells.end(time.monotonic())
        self._tell_if_quiet()

    def _turns(self) -> list[Turn]:
        return [*self.running.turns(), *self.waiting]

    def _end(self, turn: Turn, why: FinishReason) -> None:
        if turn.slot >= 0:
            self.running.end(turn, why)
            return
        self.waiting.remove(turn)
        nothing = np.empty(0, dtype=np.int32)
        turn.sink.put(
            Chunk(token_ids=nothing, logprobs=nothing.astype(np.float32), version=self.running.version, finish=why)
        )

    def _remove(self, turn: Turn) -> None:
        if turn.slot >= 0:
            self.running.remove(turn)
        else:
            self.waiting.remove(turn)

    def _tell_if_quiet(self) -> None:
        """Quiet is: frozen, or nothing left to drain; or the gate is open again and nobody need wait."""
        if self._when_quiet and (self._gate != "drain" or not len(self.running)):
            told, self._when_quiet = self._when_quiet, []
            for tell in told:
                tell(None)
