"""What goes between the sandbox and its warden: lines of JSON, and open files beside the orders.

Promises: an order holds numbers alone. What a program is and what it reads travels as open files that the warden hands
on unread, so nothing of one program is in the memory that the next one is forked from.
"""

import json
from typing import TypedDict, final

FILES = 4
"""With each order to run: the program, its input, its output, its complaints."""


@final
class Order(TypedDict):
    """Run a program."""

    number: int
    wall_s: float
    cpu_s: int
    memory: int
    """Bytes, beyond what the interpreter has."""
    processes: int
    open_files: int
    scratch: int
    """Bytes."""
    scratch_files: int
    output: int
    """Bytes that its output and its complaints may have, each."""


@final
class Begun(TypedDict):
    """An order is being obeyed."""

    begun: int
    """Its number."""
    pid: int
    """Of the process that ends with the program, and the program with it."""


class Report(TypedDict):
    """How a program ended."""

    number: int
    status: int
    """As `wait` gives it."""
    late: bool
    """Ended by the warden because its time was over."""
    seconds: float
    cpu_s: float
    peak: int
    """Most memory in use, in kilobytes."""
    broken: str
    """Why it never began, which is the sandbox's fault; empty if it did."""


@final
class Kill(TypedDict):
    """Run this one no longer."""

    kill: int


class Hello(TypedDict):
    """The warden's first line: ready, or why not."""

    broken: str


def line(message: Order | Begun | Report | Kill | Hello) -> bytes:
    return json.dumps(message).encode() + b"\n"
