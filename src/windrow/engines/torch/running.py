"""The requests that are being sampled: what goes into the next forward, and what becomes of the tokens that come out.

Promises: every running request advances by at least one token in every step, so a long prompt delays the others by no
more than one bounded forward; a token is drawn when, and only when, all before it are in the store; a request whose
logits are no numbers fails alone; whatever was drawn is handed over before its request ends.

It decides nothing about who may run.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from windrow.engines.torch.crew import Crew
from windrow.engines.torch.forward import Forward
from windrow.engines.torch.sampling import Numbers, draw
from windrow.engines.torch.settings import Counters, TorchSettings
from windrow.engines.torch.slots import WORTH_COPYING, Slots
from windrow.engines.torch.store import KvStore
from windrow.engines.torch.turns import Limits, Turn
from windrow.errors import EngineError, blame
from windrow.requests import Chunk, FinishReason
from windrow.text import Codec


class Running:
    """All and only requests with a slot, and what earlier ones left behind."""

    def __init__(self, model: PreTrainedModel, codec: Codec | None, settings: TorchSettings, limits: Limits) -> None:
        self.version = 0
        self.counters = Counters()
        self._codec = codec
        self._settings = settings
        self._limits = limits
        self._store = KvStore(settings.capacity)
        self._slots = Slots(settings.capacity, limits.vocabulary, self._store)
        self._forward = Forward(model, self._store, fixed=settings.deterministic)
        self._followers = 0  # turns that wait for a sibling's prompt
        self._crew: Crew | None = None  # of all running slots, while it lasts
        # other devices than the processor may add up in an order of their own
        self._sampling_device = torch.device("cpu") if settings.deterministic else model.device

    def __len__(self) -> int:
        return self._slots.busy

    @property
    def is_full(self) -> bool:
        return self._slots.busy == self._slots.count

    def turns(self) -> list[Turn]:
        return [turn for turn in self._slots.turns if turn is not None]

    def is_exact(self) -> bool:
        """Whether the promise of a deterministic engine can be kept here."""
        return self._forward.alike()

    def seat(self, turn: Turn) -> None:
        """Let a request run from the next step on."""
        request, slots = turn.request, self._slots
        coming = slots.match(request.prompt, computed=False)
        sibling = slots.turns[coming.slot] if coming.slot >= 0 else None
        reused = slots.seat(turn, min(request.prompt.size + request.room, self._limits.context_tokens))
        self.counters.prefix_tokens_reused += reused
        if sibling is not None and coming.shared >= reused + WORTH_COPYING:
            turn.follows, turn.follows_until = sibling, coming.shared
            self._followers += 1

    def end(self, turn: Turn, why: FinishReason) -> None:
        """Hand over the rest of a request with its last word."""
        turn.sink.put(self._chunk(turn.slot, why))
        self._slots.leave(turn.slot)

    def remove(self, turn: Turn) -> None:
        """Forget a request; what it computed stays."""
        self._slots.leave(turn.slot)

    def flush(self, slots: Sequence[int] | Numbers | None = None) -> None:
        """Hand over what these slots (or all) have sampled and not yet sent."""
        for slot in range(self._slots.busy) if slots is None else slots:
            turn = self._slots.turns[slot]
            if turn is not None and self._slots.sent[slot] < self._slots.known[slot]:
                turn.sink.put(self._chunk(slot, None))
                self._slots.sent[slot] = self._slots.known[slot]

    def outdate(self) -> None:
        """The weights are others now: mark what is in the store, or forget it."""
        slots = self._slots
        if self._settings.keep_kv:
            for slot in self._store.broken():
                slots.forget_cache(slot)
            slots.stale[:] = slots.done
            return
        self.counters.cache_tokens_dropped += int(slots.done[: slots.busy].sum())
        self.forget()

    def forget(self) -> None:
        """Give up the whole store; whatever runs is computed again."""
        self._slots.forget_store()
        self._store.clear()

    def step(self) -> None:
        """Feed every slot, and sample for those whose last token went in."""
        slots, rows = self._slots, self._slots.busy
        done, known = slots.done[:rows], slots.known[:rows]
        pending = known - done
        if pending.max() > 1:
            self._step_prompts(done, known, pending)
            return
        self.counters.prefill_tokens += rows - int(np.count_nonzero(known > slots.prompt[:rows]))
        self.counters.steps += 1
        logits = self._forward.run(slots.tokens, done)
        done += 1
        self._sample(self._whole_crew(), logits)

    def _step_prompts(self, done: Numbers, known: Numbers, pending: Numbers) -> None:
        """The same when some slots have more to feed than their last token."""
        slots = self._slots
        counts = self._shares(pending)
        own = np.count_nonzero((known > slots.prompt[: done.size]) & (known - done == 1))
        self.counters.prefill_tokens += int(counts.sum() - own)
        self.counters.steps += 1
        logits = self._forward.run(slots.tokens, done, counts)
        done += counts
        ready = np.flatnonzero(done == known)
        if ready.size:
            of_ready = torch.from_numpy(ready).to(logits.device)
            self._sample(Crew(slots, ready, self._sampling_device), logits[of_ready])

    def _whole_crew(self) -> Crew:
        """All running slots."""
        if self._crew is None or self._crew.shift != self._slots.shift:
            self._crew = Crew(self._slots, np.arange(self._slots.busy), self._sampling_device)
        return self._crew

    def _shares(self, pending: Numbers) -> Numbers:
        """How many tokens of each slot go into the next forward."""
        counts = np.ones_like(pending)
        if self._followers:
            self._follow()
            pending = self._slots.known[: pending.size] - self._slots.done[: pending.size]
        spare = self._forward.spare(pending.size)
        for slot in np.flatnonzero(pending > 1):
            turn = self._slots.turns[slot]
            if spare == 0 or turn is None or turn.follows is not None:
                continue
            more = min(int(pending[slot]) - 1, spare)
            counts[slot] += more
            spare -= more
        return counts

    def _follow(self) -> None:
        """Copy for each follower what its sibling has computed by now."""
        self._followers = 0
        for turn in self.turns():
            sibling = turn.follows
            if sibling is None:
                continue
            if sibling.slot >= 0 and self._slots.done[sibling.slot] < turn.follows_until:
                self._followers += 1
                continue
            turn.follows = None
            self._copy_prefix(turn)

    def _copy_prefix(self, turn: Turn) -> None:
        """Take over what any slot has of this turn's prompt beyond what it has itself."""
        slots, have = self._slots, int(self._slots.done[turn.slot])
        found = slots.match(turn.request.prompt, computed=True)
        if found.slot == turn.slot or found.shared < have + WORTH_COPYING:
            return
        self._store.copy(found.slot, turn.slot, have, found.shared)
        slots.done[turn.slot] = found.shared
        slots.stale[turn.slot] = max(slots.stale[turn.slot], min(int(slots.stale[found.slot]), found.shared))
        self.counters.prefix_tokens_reused += found.shared - have

    def _sample(self, crew: Crew, logits: Tensor) -> None:
        """Draw one token for each slot of a crew, and end or flush whoever is due."""
        slots, rows = self._slots, crew.rows
        known = slots.known[rows]
        drawn = draw(logits.to(self._sampling_device), crew.rules(known))
        tokens, logprobs = drawn.tokens.cpu().numpy(), drawn.logprobs.cpu().numpy()
        slots.tokens[rows, known] = tokens
        slots.logprobs[rows, known] = logprobs
        whole = np.isfinite(logprobs)
        failed = {} if whole.all() else {self._at(slot): self._no_numbers(slot) for slot in rows[~whole]}
        known += whole
        slots.known[rows] = known
        self.counters.sampled_tokens += int(np.count_nonzero(whole))
        stopped = (crew.stops == tokens[:, None]).any(1)
        if crew.any_spells:
            failed |= self._read(crew, stopped)
        ended = stopped | (known >= crew.limit)
        due = (known - slots.sent[rows] >= self._settings.stream_every) & ~ended
        if due.any():
            self.flush(rows[due])
        if ended.any() or failed:
            ends = {self._at(slot): bool(stop) for slot, stop in zip(rows[ended], stopped[ended], strict=True)}
            self._part(ends, failed)

    def _read(self, crew: Crew, stopped: np.ndarray) -> dict[Turn, EngineError]:
        """Set `stopped` where a stop text is complete; what the codec cannot read is that request's failure."""
        assert self._codec is not None
        failed = {}
        for place in np.flatnonzero(crew.spells & ~stopped):
            slot = crew.rows[place]
            turn = self._at(slot)
            said = self._slots.tokens[slot, self._slots.turn[slot] : self._slots.known[slot]]
            try:
                with blame(EngineError, f"{self._who(turn)} stop texts"):
                    stopped[place] = turn.says_stop(self._codec, said)
            except EngineError as error:
                failed[turn] = error
        return failed

    def _part(self, ends: dict[Turn, bool], failed: dict[Turn, EngineError]) -> None:
        """Let go of those that ended or failed."""
        for turn, stop in ends.items():
            if turn not in failed:
                self.end(turn, "stop" if stop else "length")
        for turn, error in failed.items():
            self.flush([turn.slot])
            self._slots.leave(turn.slot)
            self._slots.forget_cache(self._slots.busy)  # the first of the idle ones now
            turn.sink.put(error)

    def _chunk(self, slot: int, finish: FinishReason | None) -> Chunk:
        slots = self._slots
        new = slice(int(slots.sent[slot]), int(slots.known[slot]))
        return Chunk(
            token_ids=slots.tokens[slot, new].copy(),
            logprobs=slots.logprobs[slot, new].copy(),
            version=self.version,
            finish=finish,
            stale_cache=bool(slots.stale[slot] > 0),
        )

    def _at(self, slot: int) -> Turn:
        turn = self._slots.turns[slot]
        assert turn is not None
        return turn

    def _who(self, turn: Turn) -> str:
        return f"engine {self._limits.engine!r} request {turn.request.id}"

    def _no_numbers(self, slot: int) -> EngineError:
        place = self._slots.known[slot] - self._slots.turn[slot]
        who = self._who(self._at(slot))
        return EngineError(
            f"{who} token {place}: logits are not finite under version {self.version}; check the weights"
        )
