"""The order in which the rows of a table are played, pass after pass.

Promises: a pass plays every row once. With a seed each pass has an order of its own, which follows from the seed, the
name of what is shuffled and the number of the pass, in any process and with any version of any package. Nothing is
kept: the row at a place is computed, at once for any place, whatever the size of the table.

The permutation is a Feistel network over the smallest rectangle of numbers that holds the table; what falls outside of
the table is sent through again.
"""

from hashlib import blake2b
from math import isqrt

ROUNDS = 8
"""Enough that small tables are mixed as well as large ones."""
_MASK = 2**64 - 1


class Permutation:
    """The numbers below `size` in another order."""

    def __init__(self, size: int, *key: object) -> None:
        self._size = size
        self._width = isqrt(max(size - 1, 0)) + 1
        self._height = -(-size // self._width)
        self._keys = [_key(turn, *key) for turn in range(ROUNDS)]

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._size:
            raise IndexError(place)
        place = self._mixed(place)
        while place >= self._size:
            place = self._mixed(place)
        return place

    def _mixed(self, place: int) -> int:
        across, down = place % self._width, place // self._width
        for turn in range(0, ROUNDS, 2):
            across = (across + _stirred(down ^ self._keys[turn])) % self._width
            down = (down + _stirred(across ^ self._keys[turn + 1])) % self._height
        return down * self._width + across


class Laps:
    """Passes over `size` rows: which row is played at a place."""

    def __init__(self, size: int, *, passes: int | None, shuffle_seed: int | None, name: str = "") -> None:
        self._size = size
        self._seed = shuffle_seed
        self._name = name
        self._lap = -1  # whose order is at hand
        self._order: Permutation | range = range(size)
        self.length = None if passes is None else passes * size

    def row(self, place: int) -> int:
        lap, place = divmod(place, self._size)
        if self._seed is None:
            return place
        if lap != self._lap:
            self._order = Permutation(self._size, self._seed, self._name, lap)
            self._lap = lap
        return self._order[place]


def _key(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def _stirred(number: int) -> int:
    """Sixty-four bits from which the number can no longer be guessed."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)
