"""A cluster in this process: workers as plain objects, devices as numbers.

Promises: a device that the machine does not have, or that a worker would have to share with its neighbour, is refused
when the cluster is made. The same constructor serves a cluster whose workers live elsewhere.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from windrow.errors import ConfigError
from windrow.text import Codec
from windrow.types import Value


class WorkerConfig(Value, frozen=True, kw_only=True, gc=True):
    """Where the workers of a cluster sit."""

    device_mapping: tuple[int, ...] | None = None
    """Devices in order, worker after worker; None: all there are."""
    devices_per_worker: int = 1


class EngineConfig(WorkerConfig, frozen=True, kw_only=True, gc=True):
    """A cluster of engines that speak one language."""

    codec: Codec


W = TypeVar("W")
C = TypeVar("C", bound=WorkerConfig)


class ResourceManager:
    """The devices of this process: logical ones, numbered from 0, where there are no real ones."""

    def __init__(self, num_devices: int = 1) -> None:
        if num_devices < 1:
            raise ConfigError(f"num_devices must be 1 or more, got {num_devices}")
        self.devices = tuple(range(num_devices))


class Cluster(Generic[W, C]):
    """Workers of one kind, each on devices of its own."""

    runtime: str = "local"

    def __init__(
        self,
        name: str,
        worker_cls: Callable[[str, tuple[int, ...], C], W],
        resource_manager: ResourceManager,
        worker_config: C,
    ) -> None:
        self.name = name
        self.resource_manager = resource_manager
        self.worker_config = worker_config
        self.tenants: dict[str, Any] = {}  # what those who use the cluster together share, by name
        self._worker_cls = worker_cls
        self._devices = _placed(name, resource_manager, worker_config)

    @cached_property
    def workers(self) -> dict[str, W]:
        """All workers, by name; made when they are first looked at, in the process that looks."""
        names = [f"{self.name}-{rank}" for rank in range(self.world_size)]
        return {
            name: self._worker_cls(name, devices, self.worker_config)
            for name, devices in zip(names, self._devices, strict=True)
        }

    def renew(self) -> None:
        """Forget the workers, because they are used up; whoever looks next gets new ones."""
        self.__dict__.pop("workers", None)

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return len(self._devices)


def _placed(name: str, resources: ResourceManager, config: WorkerConfig) -> list[tuple[int, ...]]:
    """The devices of each worker."""
    mapping = resources.devices if config.device_mapping is None else config.device_mapping
    unknown = sorted(set(mapping) - set(resources.devices))
    each = config.devices_per_worker
    if unknown:
        raise ConfigError(f"cluster {name}: no devices {unknown}; there are {[*resources.devices]}")
    if len(set(mapping)) != len(mapping):
        raise ConfigError(f"cluster {name}: device_mapping {[*mapping]} names a device twice")
    if each < 1 or not mapping or len(mapping) % each:
        raise ConfigError(f"cluster {name}: {len(mapping)} devices cannot be shared out by {each} for each worker")
    return [tuple(mapping[start : start + each]) for start in range(0, len(mapping), each)]
