"""A Ray cluster to work in: one of our own on this machine, or one that is there already.

Promises: whoever has connected to Ray before keeps their connection, and we use it. What we start ends with us, however
we end; without an address we start one of our own, whatever RAY_ADDRESS says. What cannot be joined or started is told
with the way out. What Ray has to say goes to its log files, not to the console, while a connection of ours lasts;
`Session.logs` says where they are.
"""

import logging
import os
from pathlib import Path
from typing import Annotated, Self

from windrow.cluster.ray.addresses import knock
from windrow.cluster.ray.nodes import PER_DEVICE
from windrow.core.settings import Count
from windrow.errors import ConfigError, blame
from windrow.types import Meta, Value

OBJECTS_MB = 512
"""Memory for objects that nobody said anything about: a few batches and two versions of a small model."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # or hosts would lose to everything else on the machine, the driver included
}
"""Settings of a cluster that is ours."""


class RayConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Ray cluster is used."""

    address: Annotated[
        str, Meta(description="auto or host:port: a cluster that is there; not set: one on this machine, started here")
    ] = ""
    cpus: Annotated[
        Count | None,
        Meta(description="of a cluster that is started here; none: cores, or as many as there are devices"),
    ] = None
    objects_mb: Annotated[Count, Meta(description="of a cluster that is started here: memory for objects")] = OBJECTS_MB


class Session:
    """A connection to a Ray cluster."""

    def __init__(self, *, started: bool, connected: bool, logs: Path, address: str) -> None:
        self.started = started
        """The cluster is ours."""
        self.address = address
        """Where it is, whatever it was called."""
        self.logs = logs
        self._connected = connected

    def close(self) -> None:
        """Disconnect, and end the cluster if it is ours; whoever was connected before stays connected."""
        import ray

        if self._connected and ray.is_initialized():
            ray.shutdown()
            _let_speak(may=True)
        self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(config: RayConfig, devices: int) -> Session:
    """A Ray cluster with room for so many logical devices."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"runtime ray needs Ray ({error}); install windrow[ray]") from error
    if ray.is_initialized():
        return _session(started=False, connected=False)
    if config.address:
        _join(config.address)
        _let_speak(may=False)
        return _session(started=False, connected=True)
    _start(config, devices)
    _let_speak(may=False)
    return _session(started=True, connected=True)


def _join(address: str) -> None:
    try:
        found = knock(address)
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r}: {error}; start one with ray start --head, or leave ray.address out"
        ) from error
    try:
        _init(address=found)
    except ConfigError as error:
        raise ConfigError(
            f"the Ray cluster at {found} cannot be joined: {_in_one_line(error.__cause__)}; it must run the same "
            f"Python and Ray as this process and have a node on this machine (windrow doctor --address {found} "
            f"looks), or leave ray.address out"
        ) from error.__cause__


def _start(config: RayConfig, devices: int) -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # read by the processes that it starts
    try:
        _init(
            address="local",  # or Ray would join what RAY_ADDRESS names, or what else runs on this machine
            num_cpus=config.cpus or max(os.cpu_count() or 1, round(PER_DEVICE * devices)),
            object_store_memory=config.objects_mb << 20,
            include_dashboard=False,
        )
    except ConfigError as error:
        raise ConfigError(
            f"Ray cannot be started here with ray.objects_mb {config.objects_mb}: {_in_one_line(error.__cause__)}; "
            f"windrow doctor looks for what is in the way"
        ) from error.__cause__


def _init(**options: object) -> None:
    """Connect; whatever Ray raises is the cause of a `ConfigError`: one that is late raises a bare `Exception`."""
    import ray

    with blame(ConfigError, "ray.init"):
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)  # type: ignore[arg-type]  # as it has them


def _session(*, started: bool, connected: bool) -> Session:
    import ray

    address: str = ray.get_runtime_context().gcs_address
    return Session(started=started, connected=connected, logs=_logs(), address=address)


def _in_one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _let_speak(*, may: bool) -> None:
    """Whether the cluster's own messages about us reach the console; `log_to_driver` decides about workers' alone."""
    from ray import _private  # Ray has no public name for it

    _private.worker._worker_logs_enabled = may  # noqa: SLF001 -- as above


def _logs() -> Path:
    from ray import _private  # Ray has no public name for it

    node = _private.worker.global_worker.node
    return Path(node.get_logs_dir_path()) if node is not None else Path()
