"""Which rows go through a model together.

Promises: every row is in exactly one part; the same arguments give the same parts. Rows of one group stay in one
mini-batch. A micro-batch holds at most `budget` tokens, counted as the model sees them: rows of one micro-batch are as
long as its longest, or, packed, stand behind each other, or, shared, have what they begin with in common once. A row
that is longer than the budget goes alone.

What it does not do: it looks at lengths alone, never at tokens.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windrow.errors import ConfigError

Ints = NDArray[np.int64]

READ_AGAIN = 4
"""Times that tokens of a shared micro-batch may stand in rows on average; what attention keeps grows with it."""


def cut(lengths: "Sequence[int] | Ints", budget: int, *, packed: bool = False) -> list[list[int]]:
    """Micro-batches of rows that are about equally long, the longest first."""
    sizes = np.asarray(lengths, np.int64)
    parts: list[list[int]] = []
    longest = tokens = 0
    for row in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[row])
        full = tokens + size if packed else longest * (len(parts[-1]) + 1 if parts else 1)
        if not parts or full > budget:
            parts.append([])
            longest, tokens = size, 0
        parts[-1].append(row)
        tokens += size
    return parts


def cut_shared(lengths: Ints, common: Ints, budget: int) -> list[list[int]]:
    """Micro-batches of rows in their order, each of which has `common` tokens in common with the one before it.

    One that is full ends where the least is in common, in its second half: there the least is computed twice.
    """
    parts: list[list[int]] = []
    begin = 0
    while begin < len(lengths):
        own = np.cumsum(lengths[begin:] - common[begin:]) + common[begin]  # the first has nothing in common
        cost = np.maximum(own, -(-np.cumsum(lengths[begin:]) // READ_AGAIN))
        size = max(1, int(np.searchsorted(cost, budget, side="right")))
        if size < len(cost):
            ends = np.arange(size, int(np.searchsorted(cost, budget // 2, side="left")), -1)
            size = int(ends[common[begin + ends].argmin()]) if len(ends) else size
        parts.append(list(range(begin, begin + size)))
        begin += size
    return parts


def minibatches(groups: "Sequence[int] | Ints", lengths: "Sequence[int] | Ints", count: int, seed: int) -> list[Ints]:
    """Rows in `count` parts of about equally many tokens, fewer if there are fewer groups; chance decides who is where.

    Within a part rows keep their order.
    """
    if count < 1:
        raise ConfigError(f"minibatches must be 1 or more, got {count}")
    names, member = np.unique(np.asarray(groups, np.int64), return_inverse=True)
    tokens = np.bincount(member, weights=np.asarray(lengths, np.float64), minlength=len(names))
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-tokens[order], kind="stable")]
    part = _balanced(tokens.astype(np.float64), order, min(count, len(names)))
    return [np.flatnonzero(part[member] == number) for number in range(min(count, len(names)))]


def share(lengths: "Sequence[int] | Ints", ranks: int, budget: int, *, packed: bool = False) -> list[list[list[int]]]:
    """Micro-batches for each of `ranks` processes: about equally many tokens, exactly equally many micro-batches.

    A process that would have fewer gets empty ones, because all must take part in what they do together.
    """
    sizes = np.asarray(lengths, np.int64)
    part = _balanced(sizes.astype(np.float64), np.argsort(-sizes, kind="stable"), ranks)
    shares: list[list[list[int]]] = []
    for rank in range(ranks):
        rows = np.flatnonzero(part == rank)
        shares.append([rows[piece].tolist() for piece in cut(sizes[rows], budget, packed=packed)])
    return _evened(shares)


def share_shared(lengths: Ints, common: Ints, ranks: int, budget: int) -> list[list[list[int]]]:
    """The same for rows that have something in common with the one before them: each process reads a stretch."""
    own = lengths - common
    middles = np.cumsum(own) - own / 2
    inner = np.searchsorted(middles, own.sum() * np.arange(1, ranks) / ranks).tolist()
    shares: list[list[list[int]]] = []
    for begin, end in pairwise([0, *inner, len(own)]):
        pieces = cut_shared(lengths[begin:end], common[begin:end], budget)
        shares.append([[begin + row for row in piece] for piece in pieces])
    return _evened(shares)


def tokens(shares: list[list[list[int]]], lengths: Ints) -> int:
    """That a model computes for all of these micro-batches, padding included."""
    return sum(len(part) * int(lengths[part].max()) for parts in shares for part in parts if part)


def shared_tokens(shares: list[list[list[int]]], lengths: Ints, common: Ints) -> int:
    """The same where rows have something in common with the one before them."""
    return sum(int(lengths[part].sum() - common[part[1:]].sum()) for parts in shares for part in parts)


def _evened(shares: list[list[list[int]]]) -> list[list[list[int]]]:
    most = max(map(len, shares))
    return [pieces + [[] for _ in range(most - len(pieces))] for pieces in shares]


def _balanced(weights: NDArray[np.float64], order: Ints, parts: int) -> Ints:
    """The part of each thing: one after the other, each to the part that has least; none stays empty if it can."""
    where = np.zeros(len(weights), np.int64)
    loads = [(0.0, 0, number) for number in range(parts)]
    for thing in order.tolist():
        load, things, number = heapq.heappop(loads)
        where[thing] = number
        heapq.heappush(loads, (load + float(weights[thing]), things + 1, number))
    return where
