"""Workers of one kind, wherever they are.

```
script ── cluster.score(batch) ──→ split ──→ worker 0, 1, …: score(part) ──→ collect ──→ one batch
```

Promises
- The same constructor and the same calls for workers in this process and on Ray: the resource manager decides.
- A device that does not exist, or that two workers of the cluster would share, is refused when it is made.
- Workers are made when they are first needed, and all of them or none.
- A cluster on Ray can be sent to other processes, and has the same workers and the same office there.

What it does not do: it decides nothing about whose turn it is on a device that several clusters share (`arbiter`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from windrow.cluster.calls import Call, Order
from windrow.cluster.config import WorkerConfig
from windrow.cluster.dispatch import Registered, methods_of
from windrow.cluster.mesh import Mesh, mesh_of, placed
from windrow.cluster.splitting import Part, collect, split
from windrow.cluster.worker import Runtime, Seat, Worker
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean

if TYPE_CHECKING:
    from windrow.cluster.local import ResourceManager
    from windrow.cluster.ray.hosts import Remote

START_S = 600.0
"""How long workers may take to be made: the largest models take minutes to read."""

W = TypeVar("W")
C = TypeVar("C", bound=WorkerConfig)


class Staff(Protocol[W]):
    """The workers of a cluster, in one runtime."""

    @property
    def workers(self) -> dict[str, W]: ...
    @property
    def hosts(self) -> "dict[str, Remote]": ...
    @property
    def office(self) -> "Remote": ...
    def start(self, within_s: float) -> None:
        """Have all of them made."""
        ...

    def ask(self, method: str, parts: Mapping[int, Part], wanted: Sequence[int]) -> "dict[int, Future[Any]]":
        """Have those with a part do something; `wanted`: whose answers somebody will look at."""
        ...

    def renew(self) -> None: ...
    def end(self) -> None: ...


class Cluster(Generic[W, C]):
    """Workers of one kind, each on devices of its own."""

    def __init__(
        self,
        name: str,
        worker_cls: Callable[[str, tuple[int, ...], C], W] | type[W],
        resource_manager: "ResourceManager",
        worker_config: C,
    ) -> None:
        """`worker_cls`: a class made from `Worker`, or whatever makes an object of name, devices and configuration."""
        self.name = name
        self.resource_manager = resource_manager
        self.worker_config = worker_config
        self.tenants: dict[str, Any] = {}  # what those who use the cluster together share, by name; in this process
        devices = placed(name, resource_manager.devices, worker_config)
        self.mesh: Mesh = mesh_of(name, len(devices), worker_config)
        self._methods = _callable(worker_cls)
        self._seats = [
            Seat(
                cluster=name,
                rank=rank,
                devices=own,
                mesh=self.mesh,
                config=worker_config,
                runtime=resource_manager.runtime,
            )
            for rank, own in enumerate(devices)
        ]
        self._staff: Staff[W] = resource_manager.staff(worker_cls, self._seats)

    @property
    def runtime(self) -> Runtime:
        return self.resource_manager.runtime

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self.mesh.size

    @property
    def workers(self) -> dict[str, W]:
        """All workers of this process, by name; made when they are first looked at, in the process that looks."""
        return self._staff.workers

    @property
    def hosts(self) -> "dict[str, Remote]":
        """On Ray: the hosts of all workers, by name of the worker, which is in it as "worker"."""
        return self._staff.hosts

    @property
    def office(self) -> "Remote":
        """On Ray: one more host, for what those who use the cluster together share; the same in every process."""
        return self._staff.office

    def start(self, within_s: float = START_S) -> None:
        """Have all workers made; whatever needs them does so by itself."""
        self._staff.start(within_s)

    def renew(self) -> None:
        """Forget the workers, because they are used up; whoever looks next gets new ones."""
        self._staff.renew()

    def shutdown(self) -> None:
        """End the workers; a second call does nothing."""
        self._staff.end()

    def __getattr__(self, name: str) -> "Method":
        if name.startswith("_"):  # also while it is being unpickled, when it has nothing yet
            raise AttributeError(name)
        if name in vars(Cluster):  # a property of ours raised an AttributeError, which is not ours
            return object.__getattribute__(self, name)  # type: ignore[no-any-return]  # it raises again
        if name not in self._methods:
            raise AttributeError(
                f"cluster {self.name} has no {name}; methods of its workers need @register"
                f"{did_you_mean(name, self._methods)}"
            )
        return Method(self, self._methods[name])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tenants": {}}


class Method:
    """A method of all workers of a cluster."""

    def __init__(self, cluster: Cluster[Any, Any], registered: Registered) -> None:
        self._cluster = cluster
        self._registered = registered
        self.__doc__ = registered.__doc__

    def __call__(self, *arguments: Any, blocking: bool = True, **options: Any) -> Any:  # noqa: ANN401 -- the method's own
        """What the method gives, or at once a `Call`, which has `.result(timeout)` and can be awaited."""
        call = self._begin(arguments, options)
        return call.result() if blocking else call

    def _begin(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Call:
        method = self._registered
        cluster = self._cluster
        shares = split(method, cluster.mesh, arguments, options)
        called = {rank: cluster._seats[rank].described for rank in shares.parts}  # noqa: SLF001 -- a part of it
        order = Order(
            method=f"{cluster.name}.{method.name}",
            limit_s=method.rule.timeout_s,
            wanted=[called[rank] for rank in shares.wanted],
        )
        futures = cluster._staff.ask(method.name, shares.parts, shares.wanted)  # noqa: SLF001 -- as above
        return Call(order, {called[rank]: futures[rank] for rank in futures}, partial(collect, method, shares))


def make_worker(make: Callable[..., W], seat: Seat[Any]) -> W:
    """A worker at its place."""
    knows_its_place = isinstance(make, type) and issubclass(make, Worker)
    return make(seat) if knows_its_place else make(seat.name, seat.devices, seat.config)


def _callable(worker_cls: object) -> dict[str, Registered]:
    methods = methods_of(worker_cls)
    hidden = sorted(name for name in methods if name in {*dir(Cluster), "name", "mesh", "tenants"} or name[0] == "_")
    if hidden:
        raise ConfigError(
            f"{hidden[0]} cannot be called through a cluster, which has something of that name itself; "
            f"call the method something else"
        )
    return methods
