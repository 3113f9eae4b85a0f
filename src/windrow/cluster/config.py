"""What a cluster is told about its workers."""

from windrow.text import Codec
from windrow.types import Value


class WorkerConfig(Value, frozen=True, kw_only=True, gc=True):
    """Where the workers of a cluster sit, and how they share their work."""

    device_mapping: tuple[int, ...] | None = None
    """Devices in order, worker after worker; None: all there are."""
    devices_per_worker: int = 1
    tensor_parallel: int = 1
    """Workers that hold one layer together."""
    pipeline_parallel: int = 1
    """Workers that hold one layer after the other."""


class EngineConfig(WorkerConfig, frozen=True, kw_only=True, gc=True):
    """A cluster of engines that speak one language."""

    codec: Codec
