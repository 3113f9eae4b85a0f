"""Objects in trainer processes, used as if they were here.

Promises: it does not matter which kind of processes they are. What `remote` returns has the public methods and
properties of its class, and each use is one call on all processes. Nothing else of the object can be seen from here,
and nothing can be set.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from windrow.nearest import did_you_mean

T = TypeVar("T")


class Processes(Protocol):
    """Processes that do the same thing at the same time: `TrainerProcesses` here, `TrainerHosts` on Ray."""

    size: int
    on_this_machine: bool
    """All of them can read and write the folders that we can."""

    def call(self, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a method of the object in every process, or look at an attribute; what the first one got."""
        ...

    def call_all(self, method: str, *arguments: object, **options: object) -> list[Any]:
        """The same; what each got."""
        ...

    def run(self, function: Callable[..., object], *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """Call a function in every process, with the object as its first argument; what the first one got."""
        ...

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        ...


class Remote:
    """An attribute of the object in trainer processes; empty: the object itself."""

    def __init__(self, processes: Processes, path: str, kind: type[object]) -> None:
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


def remote(processes: Processes, path: str, kind: type[T]) -> T:
    """The attribute `path` of the object in these processes, which is a `kind`."""
    return cast("T", Remote(processes, path, kind))


def _bound(processes: Processes, path: str) -> Callable[..., Any]:
    def call(*arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever the method returns
        return processes.call(path, *arguments, **options)

    return call
