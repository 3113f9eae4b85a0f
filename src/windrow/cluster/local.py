"""A cluster in this process: workers as plain objects, devices as numbers.

Promises: workers are made when they are first looked at, in the process that looks. Their registered methods run in
threads of their own, one for each worker, so they work at the same time and one call after the other, as on Ray; what
awaits runs on one event loop beside them.

What it does not do: arguments and answers are not copied. A thread that hangs cannot be ended.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from windrow.cluster.cluster import Cluster, Staff, make_worker
from windrow.cluster.config import EngineConfig, WorkerConfig
from windrow.cluster.splitting import Part
from windrow.cluster.threads import LoopThread, WorkThread
from windrow.cluster.worker import Runtime, Seat
from windrow.errors import ConfigError, Refused

if TYPE_CHECKING:
    from windrow.cluster.ray.hosts import Remote

__all__ = ["Cluster", "EngineConfig", "ResourceManager", "WorkerConfig"]

W = TypeVar("W")


class ResourceManager:
    """The devices of this process: logical ones, numbered from 0, where there are no real ones."""

    runtime: Runtime = "local"

    def __init__(self, num_devices: int = 1) -> None:
        if num_devices < 1:
            raise ConfigError(f"num_devices must be 1 or more, got {num_devices}")
        self.devices = tuple(range(num_devices))

    def staff(self, make: Callable[..., W], seats: Sequence[Seat[Any]]) -> Staff[W]:
        """Workers on these devices, not yet made."""
        return LocalStaff(make, seats)

    def close(self) -> None:
        """Give the devices back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalStaff(Generic[W]):
    """The workers of a cluster in this process."""

    def __init__(self, make: Callable[..., W], seats: Sequence[Seat[Any]]) -> None:
        self._make = make
        self._seats = [*seats]
        self._is_over = False

    @cached_property
    def workers(self) -> dict[str, W]:
        return {seat.name: make_worker(self._make, seat) for seat in self._seats}

    @cached_property
    def _threads(self) -> dict[str, WorkThread]:
        return {name: WorkThread(name) for name in self.workers}

    @cached_property
    def _loop(self) -> LoopThread:
        return LoopThread(self._seats[0].cluster)

    @property
    def hosts(self) -> "dict[str, Remote]":
        raise Refused(f"cluster {self._seats[0].cluster} has no hosts: its workers are in this process; use .workers")

    @property
    def office(self) -> "Remote":
        raise Refused(f"cluster {self._seats[0].cluster} has no office: everything is in this process")

    def start(self, within_s: float) -> None:  # noqa: ARG002 -- nothing here takes long
        _ = self.workers

    def ask(
        self,
        method: str,
        parts: Mapping[int, Part],
        wanted: Sequence[int],  # noqa: ARG002 -- an answer costs nothing here
    ) -> "dict[int, Future[Any]]":
        if self._is_over:
            raise Refused(f"cluster {self._seats[0].cluster} was shut down; make a new one")
        return {rank: self._ask(self._seats[rank].name, method, part) for rank, part in parts.items()}

    def _ask(self, name: str, method: str, part: Part) -> "Future[Any]":
        bound = getattr(self.workers[name], method)
        if inspect.iscoroutinefunction(bound):
            return self._loop.ask(bound(*part.arguments, **part.options))
        return self._threads[name].ask(partial(bound, *part.arguments, **part.options))

    def renew(self) -> None:
        for thread in self.__dict__.get("_threads", {}).values():
            thread.end()
        if "_loop" in self.__dict__:
            self._loop.end()
        for made in ("workers", "_threads", "_loop"):
            self.__dict__.pop(made, None)

    def end(self) -> None:
        self.renew()
        self._is_over = True

    def __getstate__(self) -> dict[str, object]:
        """Whoever gets it makes workers of their own."""
        return {"_make": self._make, "_seats": self._seats, "_is_over": self._is_over}
