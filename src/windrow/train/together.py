"""Processes that are called as one, wherever they are.

Promises: one call at a time; closing ends a call that is under way in another thread. How a call is carried out, and
how the processes are ended, is said by whoever has them.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

from windrow.errors import ConfigError
from windrow.isolation.pickles import Unsendable, dump


class Together(ABC):
    """The calls that all have in common."""

    def __init__(self) -> None:
        self._calling = threading.Lock()

    def call(self, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a method of the object in every process, or look at an attribute; what the first one got."""
        return self._ask(method, arguments, options, all_answer=False)[0]

    def call_all(self, method: str, *arguments: object, **options: object) -> list[Any]:
        """The same; what each got."""
        return self._ask(method, arguments, options, all_answer=True)

    def run(self, function: Callable[..., object], *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """Call a function in every process, with the object as its first argument; what the first one got."""
        try:
            sent = dump(function)
        except Unsendable as error:
            raise ConfigError(f"trainer processes cannot be sent {function!r}: {error}") from error
        return self._ask("", (sent, *arguments), options, all_answer=False)[0]

    def close(self) -> None:
        """End all processes and whatever they shared; a second call does nothing.

        A call that is under way in another thread fails.
        """
        if not self._calling.acquire(blocking=False):
            self._kill()
            self._calling.acquire()
        try:
            self._end("they were closed")
        finally:
            self._calling.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _ask(
        self, method: str, arguments: tuple[object, ...], options: Mapping[str, object], *, all_answer: bool
    ) -> list[Any]:
        """Carry out one call; what the first one got, or each."""

    @abstractmethod
    def _kill(self) -> None:
        """End the processes at once."""

    @abstractmethod
    def _end(self, why: str) -> None:
        """End the processes; `why` is told to whoever calls them afterwards."""
