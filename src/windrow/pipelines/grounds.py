"""Where a run takes place: in this process, or on a Ray cluster.

Promises: what is started for a run ends with it, however it ends; a Ray cluster that was there before stays.
"""

from typing import TYPE_CHECKING, Self

from windrow.cluster.local import ResourceManager
from windrow.pipelines.config import Agentic, Cloning, Rlvr

if TYPE_CHECKING:
    from windrow.cluster.ray.session import Session


class Ground:
    """The devices of a run."""

    def __init__(self, devices: ResourceManager, session: "Session | None" = None) -> None:
        self.devices = devices
        self._session = session

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
        return Ground(RayResourceManager(file.devices), session)
    except BaseException:
        session.close()
        raise
