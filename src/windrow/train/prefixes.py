"""What rows begin with in common.

Axes: B rows, L places, T tokens that are different from each other.

Promises: two rows have a token in common if, and only if, they are equal up to it, that token included; then what a
causal model says at it is the same. Rows are looked at up to their lengths, what follows them does not count. The same
rows are put in the same order.

What it does not do: it knows no models, and decides nothing.
"""

from dataclasses import dataclass

import numpy as np

from windrow.train.micro import Ints


@dataclass(frozen=True, slots=True)
class Order:
    """Rows so that those that begin alike stand together."""

    rows: Ints
    """(B,) which they are."""
    common: Ints
    """(B,) tokens that each has in common with the row before it; it has no more with any other before it."""


def in_order(ids: Ints, lengths: Ints) -> Order:
    """The order of rows (B, L) of so many tokens each."""
    texts = [row[:length].tobytes() for row, length in zip(np.ascontiguousarray(ids), lengths, strict=True)]
    rows = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)
    common = np.zeros(len(rows), np.int64)
    if len(rows) > 1:
        sizes, ordered = lengths[rows], ids[rows]
        differ = ordered[1:] != ordered[:-1]
        first = np.where(differ.any(1), differ.argmax(1), ids.shape[1])
        common[1:] = np.minimum(first, np.minimum(sizes[1:], sizes[:-1]))
    return Order(rows, common)


def numbered(lengths: Ints, common: Ints) -> Ints:
    """(B, L) the number of the token at each place, for rows that are in order; after a row's end, that of its last.

    Tokens are numbered as they first occur, row by row; the first row has nothing in common with any before it.
    """
    common = np.concatenate([np.zeros(1, np.int64), common[1:]])
    places = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    own = places >= common[:, None]
    origin = np.maximum.accumulate(np.where(own, np.arange(len(lengths))[:, None], 0), axis=0)  # who has it first
    begins = np.cumsum(lengths - common) - (lengths - common) - common
    found: Ints = begins[origin] + places
    return found
