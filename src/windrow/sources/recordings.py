"""Trajectories in a file, one after the other.

Promises: what is read back equals what was written: tokens, log-probabilities, segments, turns, scores; in payloads and
`info` numbers (NaN too), text, bytes, lists, mappings and arrays, with their dtype and shape. A tuple or set in there
comes back as a list, a scalar of numpy as the number it equals; objects of other classes are refused by name. Nothing
is pickled and nothing that is read is executed.

A file only grows. Every record carries a checksum; one that was cut off by a crash has nothing behind it but zeros, if
anything: readers leave that out and say so, and whoever writes on removes it first. Damage anywhere else is an error,
never a shorter file.
"""

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import numpy as np

from windrow.errors import DataError
from windrow.trajectory import Ending, Task, Trajectory
from windrow.types import AttemptId, Mode, Value

log = logging.getLogger(__name__)

D = TypeVar("D")

MAGIC = b"windrow\x01"
"""The first bytes of a recording; the last of them is the version of the format."""
ARRAY = 1
"""The extension type under which arrays are packed."""
HEADER = struct.Struct("<III")
"""Before each record: its length, its checksum, and a checksum of these two."""
LONGEST = 2**32 - 1
PAGE = 4096
"""Bytes that are looked at together where zeros are expected."""


class Head(Value, frozen=True, kw_only=True, gc=True):
    """What a record is about, without its tokens."""

    attempt: AttemptId
    mode: Mode
    task: Task
    score: float
    ending: Ending


def packed(trajectory: Trajectory) -> bytes:
    """A trajectory as bytes, exactly."""
    return packed_value(trajectory, f"trajectory {trajectory.attempt}")


def unpacked(data: bytes) -> Trajectory:
    """What `packed` made."""
    return _decoded(_TRAJECTORIES, data)


def packed_value(value: object, what: str) -> bytes:
    """Any value made of such parts as bytes, as exactly as a trajectory; `what` is named if it cannot be."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{what} cannot be recorded: {error}") from error


def unpacked_value(data: bytes, kind: type[D], what: str) -> D:
    """What `packed_value` made of a value of this kind."""
    try:
        return msgspec.msgpack.Decoder(kind, ext_hook=_extension, dec_hook=_as_it_is).decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"{what} cannot be read: {error}") from error


class Recorder:
    """Writes trajectories to the end of a file; only one may write a file at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._claim()
            self._end = self._mend()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def write(self, trajectory: Trajectory) -> None:
        """Add one; when this returns another process can read it, after `sync` or `close` a crash keeps it."""
        data = packed(trajectory)
        if len(data) > LONGEST:
            raise DataError(f"trajectory {trajectory.attempt} has {len(data)} bytes, a record at most {LONGEST}")
        self._append(_framed(data))

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"{self.path} is being written already; record to a file of your own") from error

    def _mend(self) -> int:
        """Remove what a crash left of a last record; where the next one goes."""
        begin = os.pread(self._file.fileno(), len(MAGIC), 0)
        if len(begin) < len(MAGIC) and MAGIC.startswith(begin):
            self._file.truncate(0)
            self._file.write(MAGIC)
            return len(MAGIC)
        end = Recording(self.path).whole_bytes()
        self._file.truncate(end)
        return end

    def _append(self, frame: bytes) -> None:
        done = 0
        try:
            while done < len(frame):
                done += self._file.write(frame[done:])
        except OSError as error:
            self._file.truncate(self._end)
            raise DataError(f"{self.path} cannot be written: {error.strerror}") from error
        self._end += len(frame)


class Frame(Value, frozen=True):
    """Where a record stands in its file."""

    begin: int
    end: int
    checksum: int


class Recording:
    """A file of trajectories, to be read from its beginning or anywhere."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.torn_bytes = 0  # of a last record that was cut off, when it was last read to its end
        if not self.path.is_file():
            raise DataError(f"there is no recording {self.path}")

    def __iter__(self) -> Iterator[Trajectory]:
        with self._opened() as handle:
            for frame in self._frames(handle):
                yield _decoded(_TRAJECTORIES, self._data(handle, frame))

    def heads(self) -> Iterator[tuple[int, Head]]:
        """Every record by the place where it begins, without its tokens."""
        with self._opened() as handle:
            for frame in self._frames(handle):
                yield frame.begin, _decoded(_HEADS, self._data(handle, frame))

    def tasks(self, places: Sequence[int]) -> list[Task]:
        """The tasks of the records that begin at these places."""
        with self._opened() as handle:
            return [_decoded(_HEADS, self._data(handle, self._frame(handle, at))).task for at in places]

    def whole_bytes(self) -> int:
        """Where the last whole record ends."""
        with self._opened() as handle:
            return max((frame.end for frame in self._frames(handle)), default=len(MAGIC))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with self.path.open("rb", buffering=0) as file:
            if os.pread(file.fileno(), len(MAGIC), 0) != MAGIC:
                raise DataError(f"{self.path} is no recording of trajectories, or one of another version")
            yield file.fileno()

    def _frames(self, handle: int) -> Iterator[Frame]:
        """Where each whole record stands."""
        self.torn_bytes = 0
        size = os.fstat(handle).st_size
        at = len(MAGIC)
        while at < size:
            if self._is_torn(handle, at, size):
                self.torn_bytes = size - at
                log.warning("%s ends in a record that was cut off, %d bytes", self.path, size - at)
                return
            frame = self._frame(handle, at)
            yield frame
            at = frame.end

    def _is_torn(self, handle: int, at: int, size: int) -> bool:
        """Whether what stands here was never written to its end; a disk may leave zeros where nothing was written."""
        header = os.pread(handle, HEADER.size, at)
        if len(header) < HEADER.size:
            return True
        if not _is_whole(header):
            return _is_blank(handle, at + HEADER.size - 1, size)
        frame = self._frame(handle, at)
        if frame.end > size:
            return True
        return _is_blank(handle, frame.end, size) and zlib.crc32(_between(handle, frame)) != frame.checksum

    def _frame(self, handle: int, at: int) -> Frame:
        header = os.pread(handle, HEADER.size, at)
        if len(header) < HEADER.size or not _is_whole(header):
            raise DataError(f"{self.path} is damaged at byte {at}; what stands before it can be read")
        length, checksum, _ = HEADER.unpack(header)
        return Frame(at, at + HEADER.size + length, checksum)

    def _data(self, handle: int, frame: Frame) -> bytes:
        data = _between(handle, frame)
        if zlib.crc32(data) != frame.checksum:
            raise DataError(f"{self.path} is damaged at byte {frame.begin}; what stands before it can be read")
        return data


def _is_whole(header: bytes) -> bool:
    return bool(zlib.crc32(header[:8]) == HEADER.unpack(header)[2])


def _is_blank(handle: int, begin: int, end: int) -> bool:
    """Whether there are only zeros from here to there, if anything."""
    return not any(any(os.pread(handle, min(PAGE, end - at), at)) for at in range(begin, end, PAGE))


def _between(handle: int, frame: Frame) -> bytes:
    begin = frame.begin + HEADER.size
    return os.pread(handle, frame.end - begin, begin)


def _framed(data: bytes) -> bytes:
    start = struct.pack("<II", len(data), zlib.crc32(data))
    return start + struct.pack("<I", zlib.crc32(start)) + data


def _decoded(decoder: "msgspec.msgpack.Decoder[D]", data: bytes) -> D:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"a record is no trajectory: {error}") from error


def _foreign(value: object) -> object:
    """What msgpack has no word for."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        told = (value.dtype.str, value.shape, value.tobytes())
        return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(told))
    raise TypeError(f"a {type(value).__name__} has no place in a recording, {value!r:.60}; use text, numbers, arrays")


def _extension(code: int, data: memoryview) -> object:
    if code != ARRAY:
        raise ValueError(f"extension {code} is unknown")
    kind, shape, content = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    return np.frombuffer(content, np.dtype(kind)).reshape(shape).copy()


def _as_it_is(kind: type, value: object) -> object:
    """An array where an array belongs."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"a {kind} was expected, got a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_foreign)
_TRAJECTORIES = msgspec.msgpack.Decoder(Trajectory, ext_hook=_extension, dec_hook=_as_it_is)
_HEADS = msgspec.msgpack.Decoder(Head, ext_hook=_extension, dec_hook=_as_it_is)
