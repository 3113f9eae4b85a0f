"""The rows of a batch as a model reads them: tokens, which of them are asked about, and what stands beside them.

Axes: B rows, L places, N tokens that are asked about.

Promises: a column has its value at the token that it belongs to; what is said about a token stands there as well, and
0 everywhere else. A row is read up to its last token that is asked about; what follows cannot matter. Rows with none
are never read. The first token of a row is never asked about, because nothing predicts it. What rows begin with in
common is read once, if the model can and it pays; what is said about tokens is the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.train import micro, prefixes
from windrow.train.attention import Layout
from windrow.train.config import MicroConfig
from windrow.train.networks import Asked

MASK = "response_mask"
"""The column of sampled tokens."""
WORTH_SHARING = 0.85
"""Tokens that may be left of those of padded rows; to find the tokens of rows again costs time in every layer."""
PADDED = 1.25
"""Rows that are up to so many times as long as each other are padded to one block of attention."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some or all rows of a batch."""

    input_ids: Tensor
    mask: Tensor
    """(B, L) True on tokens that are asked about."""
    lengths: micro.Ints
    """Tokens of each row that are read; 0 if it has nothing to be asked about."""
    columns: dict[str, Tensor]
    """(B, L) whatever else belongs to tokens."""

    @classmethod
    def of(cls, batch: DataProto, names: Sequence[str] = (), *, device: str | torch.device = "cpu") -> Self:
        """The rows of a batch with some of its columns; raises DataError where one is missing."""
        wanted = {name: column(batch, name).to(device) for name in ("input_ids", MASK, *names)}
        return cls.made(wanted.pop("input_ids"), wanted.pop(MASK), wanted)

    @classmethod
    def made(cls, input_ids: Tensor, mask: Tensor, columns: Mapping[str, Tensor]) -> Self:
        """From tensors that are where the model is."""
        mask = mask.bool()
        if bool(mask[:, :1].any()):
            mask = mask.clone()
            mask[:, 0] = False
        width = mask.shape[1]
        ends = (mask * torch.arange(1, width + 1, device=mask.device)).amax(1) if width else mask.sum(1)
        return cls(input_ids, mask, ends.cpu().numpy().astype(np.int64), dict(columns))

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self) -> int:
        """That are asked about."""
        return int(self.mask.sum())

    def but(self, **columns: Tensor) -> "Rows":
        """The same rows with more columns."""
        return Rows(self.input_ids, self.mask, self.lengths, {**self.columns, **columns})

    def take(self, rows: micro.Ints) -> "Rows":
        """Some of the rows, in the order given."""
        if len(rows) == len(self) and np.array_equal(rows, np.arange(len(self))):
            return self
        index = torch.from_numpy(rows).to(self.mask.device)
        columns = {name: tensor[index] for name, tensor in self.columns.items()}
        return Rows(self.input_ids[index], self.mask[index], self.lengths[rows], columns)

    def without(self, rows: Tensor) -> "Rows":
        """The same, with nothing asked about where `rows` (B,) is True; nothing else changes."""
        mask = self.mask & ~rows[:, None]
        return Rows(self.input_ids, mask, np.where(rows.cpu().numpy(), 0, self.lengths), self.columns)


@dataclass(frozen=True, slots=True)
class Piece:
    """A micro-batch: some rows, as wide as the longest of them."""

    rows: Tensor
    """(b,) which they are."""
    mask: Tensor
    columns: dict[str, Tensor]
    asked: Asked
    where: tuple[Tensor, Tensor]
    """Row and place of each token that is asked about."""
    tokens: int
    """That the model computes, padding included; what rows have in common counts once."""

    def spread(self, numbers: Tensor) -> Tensor:
        """(N,) numbers at their tokens, 0 elsewhere; gradients flow back."""
        return numbers.new_zeros(self.mask.shape).index_put(self.where, numbers)


def column(batch: DataProto, name: str) -> Tensor:
    """One tensor of a batch."""
    tensors = {} if batch.batch is None else batch.batch
    if name not in tensors:
        raise DataError(f"the batch has no column {name}; it has {', '.join(sorted(map(str, tensors)))}")
    found: Tensor = tensors[name]
    return found


def temperature(batch: DataProto) -> float:
    """At which a batch was sampled; 1 if nobody says so."""
    value = float(batch.meta_info.get("temperature", 1.0))
    if value <= 0.0:
        raise DataError(f"a batch sampled at temperature {value} has no probabilities to train on; sample above 0")
    return value


def pieces(rows: Rows, config: MicroConfig, rank: int = 0, ranks: int = 1, *, shares: bool = False) -> Iterator[Piece]:
    """The micro-batches of one process; all processes have equally many, some of them perhaps empty.

    `shares`: the model can read what rows have in common once.
    """
    real = np.flatnonzero(rows.lengths)
    lengths = rows.lengths[real]
    parts = micro.share(lengths, ranks, config.tokens, packed=config.packing)
    if shares and config.share_prefixes and not config.packing:
        order = prefixes.in_order(rows.input_ids.cpu().numpy()[real], lengths)
        chosen, common, ordered = real[order.rows], order.common, lengths[order.rows]
        together = micro.share_shared(ordered, common, ranks, config.tokens)
        if micro.shared_tokens(together, ordered, common) <= WORTH_SHARING * micro.tokens(parts, lengths):
            yield from (_piece(rows, chosen[part], common=common[part]) for part in together[rank])
            return
    yield from (_piece(rows, real[part], packed=config.packing) for part in parts[rank])


def _piece(rows: Rows, chosen: micro.Ints, *, packed: bool = False, common: micro.Ints | None = None) -> Piece:
    if not len(chosen):
        return _nothing(rows)
    device = rows.mask.device
    index = torch.from_numpy(chosen).to(device)
    width = int(rows.lengths[chosen].max())
    ids = rows.input_ids[:, :width][index]
    mask = rows.mask[:, :width][index]
    row, place = mask.nonzero(as_tuple=True)
    asked = Asked(ids, None, row * width + place - 1, ids[row, place])
    if packed:
        asked = _packed(asked, torch.from_numpy(rows.lengths[chosen]).to(device))
    if common is not None:
        asked = _shared(asked, rows.lengths[chosen], common)
    columns = {name: tensor[:, :width][index] for name, tensor in rows.columns.items()}
    return Piece(index, mask, columns, asked, (row, place), asked.input_ids.numel())


def _packed(asked: Asked, lengths: Tensor) -> Asked:
    """All rows behind each other, without padding."""
    ids = asked.input_ids
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    real = places < lengths[:, None]
    numbers = real.flatten().cumsum(0) - 1
    return Asked(ids[real][None], places[real][None], numbers[asked.sources], asked.targets)


def _shared(asked: Asked, lengths: micro.Ints, common: micro.Ints) -> Asked:
    """Every token once, and where the rows have theirs."""
    device, width = asked.input_ids.device, asked.input_ids.shape[1]
    numbers = prefixes.numbered(lengths, common)
    _, firsts = np.unique(numbers, return_index=True)  # where each token is among all places
    there = torch.from_numpy(firsts).to(device)
    ids = asked.input_ids.flatten()[there]
    sources = torch.from_numpy(numbers).to(device).flatten()[asked.sources]
    return Asked(ids[None], (there % width)[None], sources, asked.targets, _layout(numbers, lengths, device))


def _layout(numbers: micro.Ints, lengths: micro.Ints, device: torch.device) -> Layout:
    """Rows in blocks of about equal length."""
    sizes = np.ceil(np.log(lengths) / np.log(PADDED))
    blocks = [numbers[sizes == size, : lengths[sizes == size].max()] for size in np.unique(sizes)]
    tokens = np.concatenate([block.ravel() for block in blocks])
    _, places = np.unique(tokens, return_index=True)
    shapes = tuple((len(block), block.shape[1]) for block in blocks)
    return Layout(torch.from_numpy(tokens).to(device), shapes, torch.from_numpy(places).to(device))


def _nothing(rows: Rows) -> Piece:
    """A micro-batch of one token about which nothing is asked."""
    device = rows.mask.device
    none = torch.zeros(0, dtype=torch.int64, device=device)
    empty = {name: tensor[:0, :0] for name, tensor in rows.columns.items()}
    asked = Asked(torch.zeros((1, 1), dtype=torch.int64, device=device), None, none, none)
    return Piece(none, rows.mask[:0, :0], empty, asked, (none, none), 1)
