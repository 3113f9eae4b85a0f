"""A Ray cluster to work in: one of our own on this machine, or one that is there already.

Promises: whoever has connected to Ray before keeps their connection, and we use it. What we start ends with us, however
we end. What Ray has to say goes to its log files, not to the console, while a connection of ours lasts; `Session.logs`
says where they are.
"""

import logging
import os
from pathlib import Path
from socket import create_connection
from typing import Annotated, Self

from windrow.core.settings import Count
from windrow.errors import ConfigError
from windrow.types import Meta, Value

OBJECTS_MB = 512
"""Memory for objects that nobody said anything about: a few batches and two versions of a small model."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # or hosts would lose to everything else on the machine, the driver included
}
"""Settings of a cluster that is ours."""
AUTO = "auto"
"""The cluster of this machine."""
KNOCK_S = 5.0
"""How long a cluster that is there may take to answer."""
PER_DEVICE = 1.0
"""CPUs that stand for a logical device where there are no GPUs."""


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

    def __init__(self, *, started: bool, connected: bool, logs: Path) -> None:
        self.started = started
        """The cluster is ours."""
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
        return Session(started=False, connected=False, logs=_logs())
    if config.address:
        try:
            knock(config.address)
            ray.init(address=config.address, log_to_driver=False, logging_level=logging.ERROR)
        except OSError as error:
            raise ConfigError(
                f"no Ray cluster answers at {config.address!r}: {error}; start one with ray start --head, "
                f"or leave ray.address out"
            ) from error
        _let_speak(may=False)
        return Session(started=False, connected=True, logs=_logs())
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # read by the processes that it starts
    ray.init(
        num_cpus=config.cpus or max(os.cpu_count() or 1, round(PER_DEVICE * devices)),
        object_store_memory=config.objects_mb << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    _let_speak(may=False)
    return Session(started=True, connected=True, logs=_logs())


def knock(address: str) -> None:
    """Find out in bounded time whether anybody answers: Ray itself would try for many minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"the address of a Ray cluster is auto or HOST:PORT, as ray start --head shows it; got {address!r}"
        )
    with create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S):
        pass


def _let_speak(*, may: bool) -> None:
    """Whether the cluster's own messages about us reach the console; `log_to_driver` decides about workers' alone."""
    from ray import _private  # Ray has no public name for it

    _private.worker._worker_logs_enabled = may  # noqa: SLF001 -- as above


def _logs() -> Path:
    from ray import _private  # Ray has no public name for it

    node = _private.worker.global_worker.node
    return Path(node.get_logs_dir_path()) if node is not None else Path()
