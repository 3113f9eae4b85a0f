"""One forward of the model over some tokens of every running sequence.

Promises: each slot's tokens go through once, in order, and land in the store; the logits that come back are those after
the last token fed to each slot. With `fixed` every forward has the same shape, whatever it carries: prompts go through
as many single tokens, and the room that is left is padding.
"""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from windrow.engines.torch.attention import BLOCK, Fixed, Ragged, Span
from windrow.engines.torch.sampling import Numbers
from windrow.engines.torch.store import KvStore

PREFILL_TOKENS = 512
"""Tokens of prompts in one forward, beside one token per slot; bounds how long running requests wait."""

FIXED_PREFILL_TOKENS = 32
"""The same where every forward has one shape and pays for all of them."""

TILE = 16
"""Rows that matrix kernels treat alike; a fixed shape is a multiple of it."""

NONE: Numbers = np.empty(0, dtype=np.int64)


class Forward:
    """A model with a store."""

    def __init__(self, model: PreTrainedModel, store: KvStore, *, fixed: bool) -> None:
        self._model = model
        self._store = store
        self._fixed = fixed
        self._kept = _rounded(store.slots)
        self._tokens = _rounded(store.slots + FIXED_PREFILL_TOKENS)
        self._device = model.device  # asking a model costs more than a matrix product of a small one
        self._dtype = model.dtype
        self._places = _Places(0, self._device)
        self._no_mask = torch.empty(1, 1, 1, 1)  # four axes: models take it for a mask that is ready

    def spare(self, rows: int) -> int:
        """Tokens that one forward takes beside one for each of so many slots."""
        return self._tokens - rows if self._fixed else PREFILL_TOKENS

    def run(self, tokens: np.ndarray, done: Numbers, counts: Numbers | None = None) -> Tensor:
        """Feed `counts[i]` tokens (None: one) of slot `i` from its place `done[i]` on; gives logits after the last."""
        rows = done.size
        places = self._every_slot(rows)
        ends = done.copy() if counts is None else done + counts - 1
        self._store.make_room(int(ends.max()) + 1)
        if counts is None and not self._fixed:
            return self._call(tokens[places.here, ends], places.there, ends, self._layout(ends), rows)
        of, more = _several(counts)
        slots = np.concatenate([np.repeat(of, more), places.here])
        ends = np.concatenate([_ranges(done[of], more), ends])
        ids = tokens[slots, ends]
        if self._fixed:
            return self._run_fixed(ids, slots, ends)[-rows:]
        return self._call(ids, self._there(slots), ends, self._layout(ends[-rows:], of, done[of], more), rows)

    def alike(self) -> bool:
        """Whether a token gets the same bits at every place of a fixed forward."""
        nothing = np.zeros(self._tokens, dtype=np.int64)
        layout = self._fixed_layout(nothing, nothing)
        rows = self._there(nothing + self._store.slots)
        for kept in (self._tokens, self._kept):
            logits = self._call(nothing, rows, nothing, layout, kept)
            if not bool((logits == logits[:1]).all()):
                return False
        return True

    def _run_fixed(self, ids: np.ndarray, rows: Numbers, ends: Numbers) -> Tensor:
        """The same behind padding, which is written to the row that nobody reads."""
        padding = (self._tokens - ids.size, 0)
        ids, ends = np.pad(ids, padding), np.pad(ends, padding)
        rows = np.pad(rows, padding, constant_values=self._store.slots)
        layout = self._fixed_layout(rows, ends)
        return self._call(ids, layout.rows, ends, layout, self._kept)

    def _call(self, ids: np.ndarray, rows: Tensor, ends: Numbers, layout: Ragged | Fixed, kept: int) -> Tensor:
        positions = self._there(ends)
        self._store.aim(rows, positions)
        out = self._model(
            input_ids=self._there(ids)[None],
            position_ids=positions[None],
            attention_mask=self._no_mask,
            past_key_values=self._store,
            use_cache=True,
            logits_to_keep=kept,
            windrow_layout=layout,
        )
        logits: Tensor = out.logits
        return logits[0, -kept:]  # some models do not know how to keep fewer than all

    def _layout(self, last: Numbers, of: Numbers = NONE, starts: Numbers = NONE, more: Numbers = NONE) -> Ragged:
        """The last tokens of all slots, and `more` tokens of the slots `of` before theirs."""
        length = int(last.max()) + 1
        mask = self._mask(last[:, None, None, None], length) if last.min() + 1 < length else None
        spans = []
        if of.size:
            sizes = np.ceil(np.log2(more)).astype(np.int64)  # up to twice as long as each other: padded together
            firsts = np.cumsum(more) - more
            for size in np.unique(sizes):
                alike = sizes == size
                spans.append(self._span(of[alike], starts[alike], firsts[alike], more[alike]))
        return Ragged(last.size, length, mask, spans)

    def _span(self, rows: Numbers, starts: Numbers, firsts: Numbers, more: Numbers) -> Span:
        steps = np.arange(more.max())
        real = steps < more[:, None]
        within = np.minimum(steps, more[:, None] - 1)
        places = firsts[:, None] + within
        mask = self._mask((starts[:, None] + within)[:, None, :, None], int((starts + more).max()))
        return Span(self._there(rows), self._there(places), self._there(real), mask)

    def _fixed_layout(self, rows: Numbers, ends: Numbers) -> Fixed:
        last = ends[:, None, None, None]
        blocks = int(ends.max()) // BLOCK + 1
        return Fixed(self._there(rows), [self._mask(last - number * BLOCK, BLOCK) for number in range(blocks)])

    def _every_slot(self, rows: int) -> "_Places":
        if self._places.here.size != rows:
            self._places = _Places(rows, self._device)
        return self._places

    def _mask(self, last: Numbers, keys: int) -> Tensor:
        """What is added to scores so that each query sees the keys up to its own place."""
        hidden = np.arange(keys) > last
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(self._there(hidden), -torch.inf)

    def _there(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


class _Places:
    """The slots 0, 1, …, as many as there are, here and on the device."""

    __slots__ = ("here", "there")

    def __init__(self, count: int, device: torch.device) -> None:
        self.here = np.arange(count)
        self.there = torch.from_numpy(self.here).to(device)


def _several(counts: Numbers | None) -> tuple[Numbers, Numbers]:
    """Which slots have more than one token, and how many more."""
    if counts is None:
        return NONE, NONE
    of = np.flatnonzero(counts > 1)
    return of, counts[of] - 1


def _ranges(starts: Numbers, sizes: Numbers) -> Numbers:
    """`starts[0], starts[0] + 1, …` for each start, one after the other."""
    before = np.cumsum(sizes) - sizes
    ranges: Numbers = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return ranges


def _rounded(number: int) -> int:
    return -(-number // TILE) * TILE
