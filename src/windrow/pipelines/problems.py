"""Whether what is validated on was ever trained on.

Promises: problems are compared by what they are, not by where they came from or what they are called there: what an
environment calls `problem` in its `info`, or the task's payload. Where there is neither, nothing is claimed. Only
hashes are kept, and not more than `MOST` of those trained on; once some are left out nobody claims that none is shared.
"""

import logging
from collections.abc import Iterable
from hashlib import blake2b

from windrow.errors import DataError
from windrow.trajectory import Trajectory
from windrow.types import Value, from_bytes, to_bytes, to_json

log = logging.getLogger(__name__)

MOST = 1_000_000
SIZE = 8
"""Bytes of a hash."""


class Saved(Value, frozen=True, kw_only=True):
    """What a checkpoint holds of them: hashes, one behind the other."""

    trained: bytes
    held_out: bytes
    is_whole: bool


class Problems:
    """The problems of a run, by what they were used for."""

    def __init__(self) -> None:
        self._trained: set[bytes] = set()
        self._held_out: set[bytes] = set()
        self._is_whole = True  # every problem that was trained on is among them

    def train_on(self, trajectories: Iterable[Trajectory]) -> None:
        """These are learnt from."""
        new = {*filter(None, map(_hash, trajectories))} - self._trained
        room = MOST - len(self._trained)
        self._is_whole = self._is_whole and len(new) <= room
        self._trained.update(sorted(new)[:room])

    def validate_on(self, trajectories: Iterable[Trajectory]) -> None:
        """These are not."""
        self._held_out.update(filter(None, map(_hash, trajectories)))

    @property
    def overlap(self) -> int | None:
        """How many are both, at least; None if that is not known.

        It is not if environments do not say what their problems are, nor if some that were trained on were forgotten
        and none of the others is held out.
        """
        if not self._trained or not self._held_out:
            return None
        return len(self._trained & self._held_out) or (0 if self._is_whole else None)

    def told_overlap(self) -> int | None:
        """The same, with a warning if there are some, or if that can no longer be known."""
        found = self.overlap
        if found:
            log.warning("%d held-out problems were trained on as well, so validation says too much", found)
        elif not self._is_whole:
            log.warning("whether held-out problems were trained on is not known: not all that were trained on are kept")
        return found

    def saved(self) -> bytes:
        """Everything, for a checkpoint."""
        trained, held_out = (b"".join(sorted(each)) for each in (self._trained, self._held_out))
        return to_bytes(Saved(trained=trained, held_out=held_out, is_whole=self._is_whole))

    def load(self, saved: bytes | None) -> None:
        """Go on from there; None: from a checkpoint that did not hold them."""
        if saved is None:
            self._is_whole = False
            return
        try:
            found = from_bytes(saved, Saved)
        except ValueError as error:
            raise DataError(f"the problems of a checkpoint cannot be read: {error}") from error
        self._trained, self._held_out = _cut(found.trained), _cut(found.held_out)
        self._is_whole = found.is_whole


def _cut(hashes: bytes) -> set[bytes]:
    return {hashes[at : at + SIZE] for at in range(0, len(hashes), SIZE)}


def _hash(trajectory: Trajectory) -> bytes | None:
    problem = trajectory.info.get("problem", trajectory.task.payload)
    if problem is None:
        return None
    try:
        text = problem if isinstance(problem, str) else to_json(problem).decode()
    except TypeError:  # something that only its environment understands
        return None
    return blake2b(text.encode(), digest_size=SIZE).digest()
