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

    def turns(self) -> list[Turn]:
        return [turn for turn in self._slots.turns if turn is not None]

    def is_exact(self) -> bool:
        """Whether the promise of a deterministic engine can be kept here."""
        return self._forward.alike()

    @property
    def room(self) -> int:
        """How many more may run."""
        return self._slots.count - self._slots.busy

    def seat_all(self, turns: Sequence[Turn]) -> None:
        """Let requests run from the next step on, as many as there is room for."""
        going_on = self._slots.continued(turns)
        if going_on:
            limits = [self._limit(turn) for _, turn in going_on]
            self.counters.prefix_tokens_reused += self._slots.go_on(going_on, limits)
        for turn in turns:
            if turn.slot < 0:
                self._seat(turn)

    def _seat(self, turn: Turn) -> None:
        request, slots = turn.request, self._slots
        coming = slots.match(request.prompt, computed=False)
        sibling = slots.turns[coming.slot] if coming.slot >= 0 else None
        reused = slots.seat(turn, self._limit(turn))
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
        self._crew = None
        if self._settings.keep_kv:
            for slot in self._store.broken():
                slots.forget_cache(slot)
            slots.stale[:] = slots.done
            return
        self.counters.cache_tokens_dropped += int(slots.done[: slots.busy].sum())
        self.forget()

    def forget(self) -> None:
        """Give up the whole store; whatever runs is computed again."""
        self._crew = None
        self._slots.forget_store()
        self._store.clear()

    def step(self) -> None:
        """Feed every slot, and sample for those whose last token went in."""
        self.counters.steps += 1
        slots, crew = self._slots, self._crew
        if crew is not None and crew.shift == slots.shift and crew.said is not None:
            slots.done[crew.where] += 1
            self._sample(crew, self._forward.again(crew.said))
            return
        done, known = slots.done[: slots.busy], slots.known[: slots.busy]
        pending = known - done
        own = (known > slots.prompt[: slots.busy]) & (pending == 1)
        if pending.max() > 1:
            fed = self._step_prompts(pending)
        else:
            fed = slots.busy
            self._step_last()
        self.counters.prefill_tokens += fed - int(np.count_nonzero(own))

    def _step_last(self) -> None:
        """One token of every slot."""
        slots = self._slots
        done = slots.done[: slots.busy]
        logits = self._forward.run(slots.tokens, done)
        done += 1
        if self._crew is None or self._crew.shift != slots.shift:
            self._crew = Crew(slots, None, self._sampling_device)
        self._sample(self._crew, logits)

    def _step_prompts(self, pending: Numbers) -> int:
        """The same when some slots have more to feed than their last token; says how many tokens that were."""
        slots, rows = self._slots, pending.size
        self._crew = None
        counts = self._shares(pending)
        done = slots.done[:rows]
        logits = self._forward.run(slots.tokens, done, counts)
        done += counts
        ready = np.flatnonzero(done == slots.known[:rows])
        if ready.size:
            of_ready = torch.from_numpy(ready).to(logits.device)
            self._sample(Crew(slots, ready, self._sampling_device), logits[of_ready])
        return int(counts.sum())

    def _shares(self, pending: Numbers) -> Numbers:
        """How many tokens of each slot go into the next forward."""
        counts = np.ones_like(pending)
        if self._followers:
            self._follow()
            pending = self._slots.known[: pending.size] - self._slots.done[: pending.size]
        spare = self._forward.spare(pending.size)
        growing = np.flatnonzero(pending > 1)
        for slot in growing[self._slots.used[growing].argsort()]:  # first come, first served
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
        slots, where = self._slots, crew.where
        known = slots.known[where]
        drawn = draw(logits.to(self._sampling_device), crew.rules(known))
        crew.said = None if self._settings.deterministic else drawn.tokens
        tokens, logprobs = drawn.tokens.cpu().numpy(), drawn.logprobs.cpu().numpy()
        slots.tokens[crew.rows, known] = tokens
        slots.logprobs[crew.rows, known] = logprobs
        slots.known[where] = known + 1
        self.counters.sampled_tokens += tokens.size
        stopped = (crew.stops == tokens[:, None]).any(1)
        crew.quiet -= 1
        if crew.quiet < 0 or crew.any_spells or stopped.any() or not np.isfinite(logprobs).all():
            self._settle(crew, stopped, np.isfinite(logprobs))

    def _settle(self, crew: Crew, stopped: np.ndarray, whole: np.ndarray) -> None:
        """Somebody is due: to end, to fail, or to hand over a chunk."""
        slots, rows, where = self._slots, crew.rows, crew.where
        slots.known[rows[~whole]] -= 1
        failed = {self._at(slot): self._no_numbers(slot) for slot in rows[~whole]}
        self.counters.sampled_tokens -= len(failed)
        if crew.any_spells:
            failed |= self._read(crew, stopped)
        left, new = crew.limit - slots.known[where], slots.known[where] - slots.sent[where]
        ended = (stopped | (left <= 0)) & whole
        due = (new >= self._settings.stream_every) & ~ended
        self.flush(rows[due])
        new[due] = 0
        crew.quiet = int(np.minimum(left, self._settings.stream_every - new).min()) - 1
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
        well = {turn: stop for turn, stop in ends.items() if turn not in failed}
        for turn, stop in well.items():
            turn.sink.put(self._chunk(turn.slot, "stop" if stop else "length"))
        if well:
            self._slots.leave(*(turn.slot for turn in well))
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

    def _limit(self, turn: Turn) -> int:
        """How many tokens its sequence may have."""
        return min(turn.request.prompt.size + turn.request.room, self._limits.context_tokens)

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
