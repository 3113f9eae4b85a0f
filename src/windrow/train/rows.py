"""The rows of a batch as a model reads them: tokens, which of them are asked about, and what stands beside them.

Axes: B rows, L places, N tokens that are asked about.

Promises: a column has its value at the token that it belongs to; what is said about a token stands there as well, and
0 everywhere else. A row is read up to its last token that is asked about; what follows cannot matter. Rows with none
are never read. The first token of a row is never asked about, because nothing predicts it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.train import micro
from windrow.train.config import MicroConfig
from windrow.train.networks import Asked

MASK = "response_mask"
"""The column of sampled tokens."""


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
    """That the model reads, padding included."""

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


def pieces(rows: Rows, config: MicroConfig, rank: int = 0, ranks: int = 1) -> Iterator[Piece]:
    """The micro-batches of one process; all processes have equally many, some of them perhaps empty."""
    real = np.flatnonzero(rows.lengths)
    mine = micro.share(rows.lengths[real], ranks, config.tokens, packed=config.packing)[rank]
    for part in mine:
        yield _piece(rows, real[np.array(part, np.int64)], packed=config.packing)


def _piece(rows: Rows, chosen: micro.Ints, *, packed: bool) -> Piece:
    if not len(chosen):
        return _nothing(rows)
    device = rows.mask.device
    index = torch.from_numpy(chosen).to(device)
    width = int(rows.lengths[chosen].max())
    ids = rows.input_ids[:, :width][index]
    mask = rows.mask[:, :width][index]
    row, place = mask.nonzero(as_tuple=True)
    targets = ids[row, place]
    lengths = torch.from_numpy(rows.lengths[chosen]).to(device)
    plain = Asked(ids, None, row * width + place - 1, targets)
    asked = _packed(ids, lengths, row, place, targets) if packed else plain
    columns = {name: tensor[:, :width][index] for name, tensor in rows.columns.items()}
    return Piece(index, mask, columns, asked, (row, place), asked.input_ids.numel())


def _packed(ids: Tensor, lengths: Tensor, row: Tensor, place: Tensor, targets: Tensor) -> Asked:
    """All rows behind each other, without padding."""
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    real = places < lengths[:, None]
    begins = lengths.cumsum(0) - lengths
    return Asked(ids[real][None], places[real][None], begins[row] + place - 1, targets)


def _nothing(rows: Rows) -> Piece:
    """A micro-batch of one token about which nothing is asked."""
    device = rows.mask.device
    none = torch.zeros(0, dtype=torch.int64, device=device)
    empty = {name: tensor[:0, :0] for name, tensor in rows.columns.items()}
    asked = Asked(torch.zeros((1, 1), dtype=torch.int64, device=device), None, none, none)
    return Piece(none, rows.mask[:0, :0], empty, asked, (none, none), 1)
