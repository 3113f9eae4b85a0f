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

MOST_PREFILL_TOKENS = 4096
"""The same for a model so small that a forward costs more for being one than for its tokens."""

PREFILL_WORK = 1 << 31
"""Parameters times tokens that such a forward may have: less than a second of the slowest processor."""

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
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self._prefill = max(PREFILL_TOKENS, min(PREFILL_WORK // max(parameters, 1), MOST_PREFILL_TOKENS))
        self._device = model.device  # asking a model costs more than a matrix product of a small one
        self._dtype = model.dtype
        self._march = March(
            np.zeros(1, dtype=np.int64), 1, self._dtype, self._device
        )  # the last forward, if it was one
        # four axes: models take it for a mask that is ready
        self._no_mask = torch.empty(1, 1, 1, 1, device=self._device)

    def spare(self, rows: int) -> int:
        """Tokens that one forward takes beside one for each of so many slots."""
        return self._tokens - rows if self._fixed else self._prefill

    def run(self, tokens: np.ndarray, done: Numbers, counts: Numbers | None = None) -> Tensor:
        """Feed `counts[i]` tokens (None: one) of slot `i` from its place `done[i]` on; gives logits after the last."""
        rows = done.size
        every = np.arange(rows)
        ends = done.copy() if counts is None else done + counts - 1
        self._store.make_room(int(ends.max()) + 1)
        if counts is None and not self._fixed:
            self._march = March(ends, self._store.length, self._dtype, self._device)
            return self._step(self._there(tokens[every, ends]))
        of, more = _several(counts)
        slots = np.concatenate([np.repeat(of, more), every])
        ends = np.concatenate([_ranges(done[of], more), ends])
        ids = tokens[slots, ends]
        if self._fixed:
            return self._run_fixed(ids, slots, ends)[-rows:]
        layout = self._layout(ends[-rows:], of, done[of], more)
        return self._call(self._there(ids), self._there(slots), self._there(ends), layout, rows)

    def again(self, ids: Tensor) -> Tensor:
        """Feed these tokens to the same slots as the last `run`, which fed one to each, each at its next place."""
        self._store.make_room(self._march.length + 1)
        self._march.advance(self._store.length)
        return self._step(ids)

    def alike(self) -> bool:
        """Whether a token gets the same bits at every place of a fixed forward."""
        zeros = np.zeros(self._tokens, dtype=np.int64)
        layout = self._fixed_layout(zeros + self._store.slots, zeros)
        nothing = self._there(zeros)
        for kept in (self._tokens, self._kept):
            logits = self._call(nothing, layout.rows, nothing, layout, kept)
            if not bool((logits == logits[:1]).all()):
                return False
        return True

    def _run_fixed(self, ids: np.ndarray, rows: Numbers, ends: Numbers) -> Tensor:
        """The same behind padding, which is written to the row that nobody reads."""
        padding = (self._tokens - ids.size, 0)
        ids, ends = np.pad(ids, padding), np.pad(ends, padding)
        rows = np.pad(rows, padding, constant_values=self._store.slots)
        layout = self._fixed_layout(rows, ends)
        return self._call(self._there(ids), layout.rows, self._there(ends), layout, self._kept)

    def _step(self, ids: Tensor) -> Tensor:
        march = self._march
        return self._call(ids, march.rows, march.positions, march.layout(), march.rows.shape[0])

    def _call(self, ids: Tensor, rows: Tensor, positions: Tensor, layout: Ragged | Fixed, kept: int) -> Tensor:
        self._store.aim(rows, positions)
        out = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=self._no_mask,
            past_key_values=self._store,
            use_cache=True,
            logits_to_keep=kept,
            windrow_layout=layout,
        )
        logits: Tensor = out.logits
        return logits[0, -kept:]  # some models do not know how to keep fewer than all

    def _layout(self, last: Numbers, of: Numbers, starts: Numbers, more: Numbers) -> Ragged:
        """The last tokens of all slots, and `more` tokens of the slots `of` before theirs."""
        length = int(last.max()) + 1
        sizes = np.ceil(np.log2(more)).astype(np.int64)  # up to twice as long as each other: padded together
        firsts = np.cumsum(more) - more
        spans = []
        for size in np.unique(sizes):
            alike = sizes == size
            spans.append(self._span(of[alike], starts[alike], firsts[alike], more[alike]))
        return Ragged(last.size, length, self._mask(last[:, None, None, None], length), spans)

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

    def _mask(self, last: Numbers, keys: int) -> Tensor:
        return _mask(last, keys, self._dtype, self._device)

    def _there(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


class March:
    """One token of each of the slots 0, 1, …, step after step; what a step needs is kept and moved on."""

    def __init__(self, ends: Numbers, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.arange(ends.size, device=device)
        self.positions = torch.from_numpy(ends).to(device)
        self.length = int(ends.max()) + 1  # of the longest sequence
        self._mask: Tensor | None = None  # [slots, 1, 1, width], added to the scores; None: all are equally long
        if ends.min() + 1 < self.length:
            self._mask = _mask(ends[:, None, None, None], width, dtype, device)
            self._newest = self.rows * width + self.positions  # where in the mask each slot's last token is

    def advance(self, width: int) -> None:
        """On by one token; rows of the store have room for `width`."""
        self.positions += 1
        self.length += 1
        if self._mask is None:
            return
        if self._mask.shape[3] != width:
            ends = self.positions.cpu().numpy()
            self._mask = _mask(ends[:, None, None, None], width, self._mask.dtype, self._mask.device)
            self._newest = self.rows * width + self.positions
            return
        self._newest += 1
        self._mask.view(-1).index_fill_(0, self._newest, 0.0)

    def layout(self) -> Ragged:
        mask = None if self._mask is None else self._mask[..., : self.length]
        return Ragged(self.rows.shape[0], self.length, mask, [])


def _several(counts: Numbers | None) -> tuple[Numbers, Numbers]:
    """Which slots have more than one token, and how many more."""
    if counts is None:
        return NONE, NONE
    of = np.flatnonzero(counts > 1)
    return of, counts[of] - 1


def _mask(last: Numbers, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to scores so that each query sees the keys up to its own place."""
    hidden = torch.from_numpy(np.arange(keys) > last).to(device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


def _ranges(starts: Numbers, sizes: Numbers) -> Numbers:
    """`starts[0], starts[0] + 1, …` for each start, one after the other."""
    before = np.cumsum(sizes) - sizes
    ranges: Numbers = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return ranges


def _rounded(number: int) -> int:
    return -(-number // TILE) * TILE
