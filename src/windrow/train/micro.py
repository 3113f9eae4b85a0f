"""Which rows go through a model together.

Promises: every row is in exactly one part; the same arguments give the same parts. Rows of one group stay in one
mini-batch. A micro-batch holds at most `budget` tokens, counted as the model sees them: rows of one micro-batch are as
long as its longest, or, packed, stand behind each other. A row that is longer than the budget goes alone.

What it does not do: it looks at lengths alone, never at tokens.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.errors import ConfigError

Ints = NDArray[np.int64]


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
