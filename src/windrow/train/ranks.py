"""What runs in a trainer process: one object, and its place among the others.

Promises: it does one thing after the other until its connection ends, then it ends at once. Whatever is raised is told
with its traceback, and the process stays until the driver ends it, because the others may be waiting for it. It dies
with the driver. What is typed at the driver's terminal does not reach it.
"""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from windrow import linux
from windrow.errors import ConfigError
from windrow.isolation.pickles import load
from windrow.train.messages import MADE, Answer, Ask, Plan, Raised, Said, asked, read, send, write
from windrow.train.sharding import Shards
from windrow.types import from_json

MAKE = "make"
"""The file with what makes the object."""


def main() -> None:
    """Be a trainer process; its arguments are the path and its plan."""
    plan = from_json(sys.argv[2], Plan)
    linux.die_with_parent()
    if os.getppid() != plan.driver:
        os._exit(0)  # it ended before we could see it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # asked by a driver that has waited too long
    code = 1
    try:
        _Rank(plan, Connection(plan.connection)).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the driver wants no more
    except BaseException:  # noqa: BLE001 -- the last words of a process; there is nobody to raise to
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without exit handlers: what the processes had together is not taken apart one by one


class _Rank:
    """One of the processes."""

    def __init__(self, plan: Plan, connection: Connection) -> None:
        self._plan = plan
        self._room = Path(plan.room)
        self._connection = connection
        self._object: object = None

    def serve(self) -> None:
        """Do what is asked for, one after the other.

        consumes      questions
        waits for     the driver, and during a call for the other processes
        unblocked by  a question, or the end of the connection
        """
        send(self._connection, _tried(MADE, self._make))
        while True:
            ask = asked(self._connection)
            send(self._connection, _tried(ask.number, partial(self._do, ask)))

    def _make(self) -> str:
        plan = self._plan
        if plan.device == "cuda":
            if torch.cuda.device_count() <= plan.gpu:
                raise ConfigError(
                    f"trainer {plan.rank} of {plan.size} is to have GPU {plan.gpu} and there are "
                    f"{torch.cuda.device_count()}; map its role to those that there are"
                )
            torch.cuda.set_device(plan.gpu)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if plan.device == "cuda" else "gloo",
            store=FileStore(str(self._room / "store"), plan.size),
            rank=plan.rank,
            world_size=plan.size,
            timeout=timedelta(seconds=plan.patience_s),
        )
        make = load((self._room / MAKE).read_bytes())
        self._object = make(Shards(plan.device))
        return ""

    def _do(self, ask: Ask) -> str:
        arguments, options = read(self._room / ask.file)
        result = perform(self._object, ask.method, arguments, options)
        if self._plan.rank and not ask.all_answer:
            return ""
        name = f"answer-{ask.number}-{self._plan.rank}"
        write(self._room / name, result)
        return name


def perform(thing: object, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> object:
    """Call a method, or look at an attribute; without a name the first argument is a function to be called with it."""
    if not method:
        return load(arguments[0])(thing, *arguments[1:], **options)
    found = attrgetter(method)(thing)
    return found(*arguments, **options) if callable(found) else found


def failure(number: int, error: BaseException) -> Raised:
    """What was raised, in words."""
    return Raised(number, type(error).__name__, str(error), "".join(traceback.format_exception(error)))


def _tried(number: int, work: Callable[[], str]) -> Said:
    try:
        return Answer(number, work())
    except BaseException as error:  # noqa: BLE001 -- it is told with its traceback
        return failure(number, error)
