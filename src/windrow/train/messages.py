"""What is said between a driver and its trainer processes.

Promises: what is large is written once, to a file in the folder that they share, and mapped into memory by whoever
reads it; the connection carries only where it is. A file is whole before anybody is told of it. Each reader has the
tensors for itself: what it writes to them nobody else sees.
"""

import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch

from windrow.errors import TrainError
from windrow.types import Value, from_bytes, to_bytes


class Plan(Value, frozen=True, kw_only=True):
    """What a process must know from the beginning."""

    rank: int
    size: int
    """How many processes there are."""
    room: str
    """The folder that all share."""
    connection: int
    """The number of the file that connects it with the driver."""
    driver: int
    """The id of the driver's process."""
    device: Literal["cpu", "cuda"]
    gpu: int
    """Its own, if it computes on one."""
    patience_s: float
    """How long it waits for the others in a call."""


class Ask(Value, frozen=True, tag="ask"):
    """Call something on every process."""

    number: int
    """Every call has its own, so that a late answer is not taken for one to the next call."""
    method: str
    """Attributes of the object, with dots between them; empty: a function is sent along."""
    file: str
    """Where the arguments are."""
    all_answer: bool
    """Every process answers with what it got; otherwise only the first one does."""


class Answer(Value, frozen=True, tag="answer"):
    """A process has done what it was asked for."""

    number: int
    file: str
    """Where its answer is; empty: nobody asked for it."""


class Raised(Value, frozen=True, tag="raised"):
    """A process has failed to do what it was asked for."""

    number: int
    kind: str
    """The class of what was raised."""
    why: str
    trace: str


Said = Answer | Raised

MADE = 0
"""The number of the answer to being made."""


def send(connection: Connection, message: Ask | Said) -> None:
    connection.send_bytes(to_bytes(message))


def hear(connection: Connection) -> Said:
    """Driver: what a process says next; raises EOFError if it has gone."""
    return from_bytes(connection.recv_bytes(), Said)  # type: ignore[arg-type]  # a union is as good as a class


def asked(connection: Connection) -> Ask:
    """Process: what is to be done next; raises EOFError if the driver has gone."""
    return from_bytes(connection.recv_bytes(), Ask)


def write(file: Path, thing: object) -> None:
    try:
        torch.save(thing, file)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainError(f"it cannot be sent between trainer processes: {type(error).__name__}: {error}") from error
    except (OSError, RuntimeError) as error:
        raise TrainError(
            f"what trainer processes share cannot be written to {file.parent}: {error}; make room there"
        ) from error


def read(file: Path) -> Any:  # noqa: ANN401 -- whatever was written
    """What `write` wrote, on the CPU."""
    return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
