"""Objects in trainer processes, used as if they were here.

Promises: what `remote` returns has the public methods and properties of its class, and each use is one call on all
processes. Nothing else of the object can be seen from here, and nothing can be set.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from windrow.nearest import did_you_mean
from windrow.train.processes import TrainerProcesses

T = TypeVar("T")


class Remote:
    """An attribute of the object in trainer processes; empty: the object itself."""

    def __init__(self, processes: TrainerProcesses, path: str, kind: type[object]) -> None:
        self._processes = processes
        self._path = path
        self._kind = kind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the class has
        known = {each: value for each, value in inspect.getmembers_static(self._kind) if not each.startswith("_")}
        if name not in known:
            kind = self._kind.__name__
            raise AttributeError(f"{kind} has no method {name} that can be called from here{did_you_mean(name, known)}")
        path = f"{self._path}.{name}" if self._path else name
        if isinstance(known[name], property):
            return self._processes.call(path)
        return _bound(self._processes, path)


def remote(processes: TrainerProcesses, path: str, kind: type[T]) -> T:
    """The attribute `path` of the object in these processes, which is a `kind`."""
    return cast("T", Remote(processes, path, kind))


def _bound(processes: TrainerProcesses, path: str) -> Callable[..., Any]:
    def call(*arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        return processes.call(path, *arguments, **options)

    return call
