"""The keys and values of all sequences, one row per slot, as the cache that a Hugging Face model writes to.

Promises: one forward writes exactly where `aim` said; what lies beyond a sequence's end is finite, so that a masked
place adds nothing; a row holds what was computed for it until it is copied over, moved or wiped.

It knows no tokens and no requests. The last row is a place for padding: it is written and never read as a sequence.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

FIRST_LENGTH = 128
"""Tokens per row at first; doubled when a sequence outgrows it. A multiple of `attention.BLOCK`."""


class KvStore(Cache):
    """Per layer `[slots + 1, heads, length, head_dim]`, for keys and for values."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.length = FIRST_LENGTH
        self.keys: list[Tensor] = []  # one per layer, made when the layer first writes
        self.values: list[Tensor] = []
        self._rows = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self._begins: dict[int, Tensor] = {}  # by number of heads: where the rows aimed at begin, head by head
        self._places: dict[int, Tensor] = {}  # by number of heads: where the current forward writes

    def aim(self, rows: Tensor, positions: Tensor) -> None:
        """Say where the tokens of the next forward belong; to aim at the same rows again costs less."""
        if rows is not self._rows:
            self._rows = rows
            self._begins.clear()
        self._positions = positions
        self._places.clear()

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,  # noqa: ANN401  # some models say more than there is to know
        **_kwargs: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new keys and values `[1, heads, tokens, head_dim]`; gives the layer's whole store."""
        if layer_idx == len(self.keys):
            self.keys.append(self._blank(key_states))
            self.values.append(self._blank(value_states))
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        place = self._place(key_states.shape[1])
        for store, new in ((keys, key_states), (values, value_states)):
            width = new.shape[3]
            store.view(-1, width).index_copy_(0, place, new.transpose(1, 2).reshape(-1, width))
        return keys, values

    def make_room(self, length: int) -> None:
        """Let rows hold at least so many tokens."""
        if length <= self.length:
            return
        while self.length < length:
            self.length *= 2
        self._begins.clear()
        self.keys = [self._longer(old) for old in self.keys]
        self.values = [self._longer(old) for old in self.values]

    @property
    def _device(self) -> torch.device:
        return self.keys[0].device if self.keys else torch.device("cpu")

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        """Give a row the tokens from `begin` to `end` of another."""
        for store in (*self.keys, *self.values):
            store[target, :, begin:end] = store[source, :, begin:end]

    def move(self, sources: np.ndarray, targets: np.ndarray, length: int) -> None:
        """Give each of some rows what another has, as far as `length`; all are read before any is written."""
        origin, goal = torch.from_numpy(sources).to(self._device), torch.from_numpy(targets).to(self._device)
        for store in (*self.keys, *self.values):
            reach = store[:, :, :length]
            reach.index_copy_(0, goal, reach.index_select(0, origin))

    def wipe(self, row: int) -> None:
        """Forget a row for good: numbers that are not finite would shine through any mask."""
        for store in (*self.keys, *self.values):
            store[row] = 0

    def broken(self) -> list[int]:
        """Rows with numbers that are not finite."""
        found: set[int] = set()
        for store in (*self.keys, *self.values):
            found.update((~store[: self.slots].isfinite().flatten(1).all(1)).nonzero()[:, 0].tolist())
        return sorted(found)

    def clear(self) -> None:
        """Forget all rows and give their memory back; the next forward makes it again."""
        self.keys = []
        self.values = []
        self.length = FIRST_LENGTH
        self._begins.clear()

    def _blank(self, like: Tensor) -> Tensor:
        _, heads, _, width = like.shape
        return torch.zeros(self.slots + 1, heads, self.length, width, dtype=like.dtype, device=like.device)

    def _longer(self, old: Tensor) -> Tensor:
        new = torch.zeros(*old.shape[:2], self.length, old.shape[3], dtype=old.dtype, device=old.device)
        new[:, :, : old.shape[2]] = old
        return new

    def _place(self, heads: int) -> Tensor:
        place = self._places.get(heads)
        if place is None:
            place = (self._begin(heads) + self._positions[:, None]).view(-1)
            self._places[heads] = place
        return place

    def _begin(self, heads: int) -> Tensor:
        begin = self._begins.get(heads)
        if begin is None:
            within = torch.arange(0, heads * self.length, self.length, device=self._rows.device)
            begin = self._rows[:, None] * (heads * self.length) + within
            self._begins[heads] = begin
        return begin
