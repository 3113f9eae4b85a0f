"""The frozen values that flow through every stage, and the two bases they are built on.

Promises: a `Value` never changes after it is made; a `Record` changes only inside the one book that owns it. Both
are slotted, both can be written down and read back without loss (the journal and the snapshot rest on that), and
neither ever refers to itself, so the garbage collector need not look at them.

Nothing here decides, waits or computes.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Meta

__all__ = [
    "CAUSE_OF", "MODES", "AttemptId", "Blame", "Cause", "Failed", "Finished", "How", "Meta", "Mode", "Outcome",
    "Reason", "Record", "Value", "but", "checked", "from_bytes", "from_json", "from_plain", "to_bytes", "to_json",
    "to_plain",
]  # fmt: skip

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

Mode = Literal["train", "val"]
"""What a group is for; ledgers, batches and shares are kept per mode."""

MODES: tuple[Mode, Mode] = ("train", "val")

Reason = Literal["stale", "filtered", "spare", "failed", "poisoned", "lost", "cancelled", "tail", "shutdown"]
"""Why something was dropped: from the place that decided to the metric that counts it."""

Cause = Literal["stale", "filtered", "spare", "failed", "lost", "cancelled", "tail"]
"""What wasted work is booked under; every reason belongs to one cause."""

CAUSE_OF: dict[Reason, Cause] = {
    "stale": "stale",
    "filtered": "filtered",
    "spare": "spare",
    "failed": "failed",
    "poisoned": "failed",
    "lost": "lost",
    "cancelled": "cancelled",
    "tail": "tail",
    "shutdown": "cancelled",
}

Blame = Literal["env", "reward", "engine", "worker", "task"]
"""Whose fault a failed attempt is; each has its own budget of retries, and a task's own fault has none."""

How = Literal["interrupt", "drain", "freeze"]
"""How a suspended engine treats what it is generating."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Something that crosses a boundary and never changes."""


class Record(msgspec.Struct, gc=False):
    """Something that changes, owned by exactly one book."""


class AttemptId(Value, frozen=True, order=True, array_like=True):
    """One try at one member of a group; never used twice, so that a late answer can be told from a current one."""

    group: int
    index: int

    def __str__(self) -> str:
        return f"g{self.group}.a{self.index}"


class Finished(Value, frozen=True, tag="finished"):
    """An episode came to its end and was scored."""

    score: float
    tokens: int
    """Tokens that the policy sampled in it."""
    oldest_version: int
    """Version of its oldest policy token; -1 if it has none."""
    truncated: bool = False


class Failed(Value, frozen=True, tag="failed"):
    """An episode did not come to its end; never a score."""

    blame: Blame
    why: str
    tokens: int = 0
    trace: str = ""
    """Where it came from, line by line, if that is known."""


Outcome = Finished | Failed


def to_json(value: object) -> bytes:
    """One line of JSON, the same bytes for the same value."""
    return msgspec.json.encode(value)


def from_json(data: bytes | str, kind: type[T]) -> T:
    """The value that `to_json` wrote, checked against `kind`; raises ValueError if it is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def to_bytes(value: object) -> bytes:
    """A compact exact copy of a value or a record."""
    return msgspec.msgpack.encode(value)


def from_bytes(data: bytes, kind: type[T]) -> T:
    """The value that `to_bytes` wrote, checked against `kind`; raises ValueError if it is none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def to_plain(value: object) -> Any:  # noqa: ANN401 -- whatever it is made of
    """The same as dicts, lists, text and numbers, for files that people read."""
    return msgspec.to_builtins(value)


def described(value: object) -> Any:  # noqa: ANN401 -- as above
    """The same for reading alone: what Python code put in, classes and functions, goes by its name."""
    return msgspec.to_builtins(value, enc_hook=repr)


def from_plain(plain: object, kind: type[T]) -> T:
    """The value that `to_plain` took apart, checked against `kind`; raises ValueError if it is none."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def but(record: R, **changes: object) -> R:
    """A copy of a value or record with other contents in some fields."""
    return msgspec.structs.replace(record, **changes)


def checked(value: R) -> R:
    """The same, with every field of its type and within its bounds, which nobody looks at when it is made in Python.

    Raises ValueError.
    """
    fields = {name: checked(field) if isinstance(field, msgspec.Struct) else field for name, field in _fields(value)}
    try:
        return msgspec.convert(fields, type(value))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _fields(value: msgspec.Struct) -> "list[tuple[str, object]]":
    return [*msgspec.structs.asdict(value).items()]
