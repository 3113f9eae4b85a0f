"""Where a run takes place: in this process, or on a Ray cluster.

Promises: what is started for a run ends with it, however it ends; a Ray cluster that was there before stays.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from windrow.cluster.local import ResourceManager
from windrow.pipelines.config import Agentic, Cloning, Rlvr

if TYPE_CHECKING:
    from pathlib import Path

    from windrow.cluster.ray.session import Session
    from windrow.train.team import Start


class Ground:
    """The devices of a run."""

    def __init__(self, devices: ResourceManager, session: "Session | None" = None) -> None:
        self.devices = devices
        self._session = session

    @property
    def logs(self) -> "Path | None":
        """Where Ray's own logs are; None in this process."""
        return None if self._session is None else self._session.logs

    @property
    def address(self) -> str | None:
        """Of the Ray cluster; None in this process."""
        return None if self._session is None else self._session.address

    def trainers(self, seats: Sequence[tuple[int, ...]]) -> "Start":
        """What starts trainer processes, given the devices of each; no devices: anywhere."""
        devices = self.devices
        if devices.runtime != "ray":
            from windrow.train.processes import TrainerProcesses

            return partial(TrainerProcesses, gpus=[own[0] for own in seats])
        from windrow.cluster.ray.resources import RayResourceManager
        from windrow.train.on_ray import TrainerHosts

        assert isinstance(devices, RayResourceManager)

        def options(rank: int) -> Mapping[str, object]:
            return devices.options(seats[rank], f"trainer {rank}") if seats else {}

        return partial(TrainerHosts, options=options)

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self.devices.close()
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_ground(file: Agentic | Rlvr | Cloning) -> Ground:
    """What a file asks for; on Ray that takes some seconds."""
    if file.runtime == "local":
        return Ground(ResourceManager(file.devices))
    from windrow.cluster.ray.resources import RayResourceManager
    from windrow.cluster.ray.session import connect

    session = connect(file.ray, file.devices)
    try:
        return Ground(RayResourceManager(num_devices=file.devices), session)
    except BaseException:
        session.close()
        raise
