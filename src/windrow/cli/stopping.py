"""SIGTERM: how batch systems and service managers end a program.

Promises: the first one breaks off what runs as Ctrl-C does, so that it saves what it has; a second one ends the process
at once.
"""

import asyncio
import signal
from typing import Self

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a program that was ended so."""


class Termination:
    """Use it as `with termination` in the task that is to be broken off; `came` says whether it was."""

    def __init__(self) -> None:
        self.came = False
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGTERM, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.remove_signal_handler(signal.SIGTERM)

    def _hear(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        self.came = True
        self._loop.remove_signal_handler(signal.SIGTERM)
        self._task.cancel()
