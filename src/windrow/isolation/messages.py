"""What is said between our process, a nest and the processes that it hatches.

Promises: everything travels in frames, each with a mark and its length, so that what is no frame is noticed and never
taken for one. What users made (factories, arguments, results) is pickled inside a message, by whoever knows how.

Frames: 4 bytes `wdrw`, 8 bytes length, then a msgpack map whose `type` says which message it is.
"""

import os
from collections.abc import Iterator
from struct import Struct
from typing import IO, TypeVar

import msgspec

from windrow.types import Value

M = TypeVar("M")

HEAD = Struct("!4sQ")
MARK = b"wdrw"
LARGEST = 256 << 20
"""Longest frame in bytes: whatever is larger is a mistake, and must not fill the memory of whoever reads it."""


class Message(Value, frozen=True, tag=True):
    """Something that is said."""


# to a nest


class Plan(Message, frozen=True, kw_only=True):
    """What to hatch; the first thing a nest hears, and again if it could not load the first one."""

    factory: bytes
    """Pickled."""
    preload: tuple[str, ...] = ()
    """Modules to import before anything is hatched."""
    memory_mb: int | None = None
    """What each process may have beyond what it began with."""


class Hatch(Message, frozen=True):
    """One more process."""

    number: int


class End(Message, frozen=True):
    """Kill a process and everything below it."""

    number: int
    now: bool
    """Or when there is time for it: it does nothing any more, and many that die at once slow down everything else."""


Order = Plan | Hatch | End


# from a nest


class Loaded(Message, frozen=True):
    """The plan is understood."""

    forks: bool
    """False if something left threads running: then each process is an interpreter of its own, and loads by itself."""


class Broken(Message, frozen=True, kw_only=True):
    """The plan cannot be loaded."""

    why: str
    trace: str
    missing: str = ""
    """The module that could not be found, if that is why."""


class Born(Message, frozen=True):
    """A process lives; the socket to it comes with this message."""

    number: int
    pid: int


class Unborn(Message, frozen=True):
    """A process could not be started."""

    number: int
    why: str


class Gone(Message, frozen=True):
    """A process is dead, and what is left below it is being killed."""

    number: int
    code: int
    """As Python counts: negative is a signal."""
    said: bytes
    """The end of what it wrote to its output."""


News = Loaded | Broken | Born | Unborn | Gone


# to a process


class Call(Message, frozen=True):
    """Call a method of the object."""

    method: str
    args: bytes


class Renew(Message, frozen=True):
    """Throw the object away and make another one."""


Asked = Call | Renew


# from a process


class Made(Message, frozen=True):
    """There is a new object."""


class Answer(Message, frozen=True):
    """What the method returned."""

    result: bytes


class Raised(Message, frozen=True, kw_only=True):
    """What the method, or the making of the object, raised."""

    why: str
    trace: str
    out_of_memory: bool = False
    kinds: tuple[str, ...] = ()
    """Its class and the classes above it, by name."""


Said = Made | Answer | Raised


def pack(message: Message) -> bytes:
    """A message as a frame."""
    body = msgspec.msgpack.encode(message)
    if len(body) > LARGEST:
        raise ValueError(f"{len(body) >> 20} MB is too much for one message; the most is {LARGEST >> 20} MB")
    return HEAD.pack(MARK, len(body)) + body


ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
NEWS: msgspec.msgpack.Decoder[News] = msgspec.msgpack.Decoder(News)
ASKED: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
SAID: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


def unpack(frame: bytes, decoder: msgspec.msgpack.Decoder[M]) -> M:
    """The message of a frame's body; raises ValueError if it is none."""
    try:
        return decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def length_of(head: bytes) -> int:
    """How long a frame is, by its head; raises ValueError if it is none."""
    mark, length = HEAD.unpack(head)
    if mark != MARK or length > LARGEST:
        raise ValueError(f"{head!r} begins no message")
    return int(length)


class Frames:
    """Cuts what comes in into frames."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._wanted: int | None = None  # length of the frame that is coming in, once its head is there

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of all frames that are complete now; raises ValueError where no frame begins."""
        self._held += data
        while True:
            if self._wanted is None:
                if len(self._held) < HEAD.size:
                    return
                self._wanted = length_of(bytes(self._held[: HEAD.size]))
                del self._held[: HEAD.size]
            if len(self._held) < self._wanted:
                return
            body = bytes(memoryview(self._held)[: self._wanted])
            del self._held[: self._wanted]
            self._wanted = None
            yield body


def from_file(file: IO[bytes]) -> Order:
    """The order that a file begins with; several processes may read the same file."""
    head = os.pread(file.fileno(), HEAD.size, 0)
    return unpack(os.pread(file.fileno(), length_of(head), HEAD.size), ORDERS)
