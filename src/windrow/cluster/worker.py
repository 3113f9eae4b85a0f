"""A worker: an object that knows its place among others of its kind.

Promises: a worker knows its place from the moment it is made. After `meet`, those of one cluster can speak to each
other with torch.distributed, in the directions of their mesh; nobody has to choose an address or a port.
"""

from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from windrow.cluster.config import WorkerConfig
from windrow.cluster.dispatch import Dispatch, register
from windrow.cluster.meeting import Meeting, Store, attend, open_store, own_address
from windrow.cluster.mesh import Mesh
from windrow.errors import ConfigError, Refused
from windrow.types import Value

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Runtime = Literal["local", "ray"]
"""Where workers are: in this process, or each in a process of its own on Ray."""

MEET_S = 120.0
"""How long workers wait for each other, and for a message of another one."""

C = TypeVar("C", bound=WorkerConfig)


class Seat(Value, Generic[C], frozen=True, kw_only=True, gc=True):
    """All that a worker is told."""

    cluster: str
    rank: int
    devices: tuple[int, ...]
    mesh: Mesh
    config: C
    runtime: Runtime

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.rank}"

    @property
    def described(self) -> str:
        return f"{self.name} (rank {self.rank} of {self.mesh.size})"


class Worker(Generic[C]):
    """One of a cluster; what it can do is up to the class that is made from it."""

    def __init__(self, seat: Seat[C]) -> None:
        self.seat = seat
        self._store: Store | None = None
        self._torch_mesh: DeviceMesh | None = None

    @property
    def name(self) -> str:
        return self.seat.name

    @property
    def rank(self) -> int:
        return self.seat.rank

    @property
    def world_size(self) -> int:
        return self.seat.mesh.size

    @property
    def devices(self) -> tuple[int, ...]:
        return self.seat.devices

    @property
    def config(self) -> C:
        return self.seat.config

    @property
    def mesh(self) -> Mesh:
        """How many there are in each direction: dp, tp, pp."""
        return self.seat.mesh

    @property
    def dp_rank(self) -> int:
        return self.mesh.place(self.rank).dp_rank

    @property
    def tp_rank(self) -> int:
        return self.mesh.place(self.rank).tp_rank

    @property
    def pp_rank(self) -> int:
        return self.mesh.place(self.rank).pp_rank

    @property
    def torch_mesh(self) -> "DeviceMesh":
        """The same mesh for torch, with the directions "pp", "dp" and "tp"."""
        if self._torch_mesh is None:
            raise Refused(f"worker {self.name} has not met the others; call cluster.meet(cluster.open_meeting()) first")
        return self._torch_mesh

    @register(Dispatch.RANK_ZERO)
    def open_meeting(self) -> Meeting:
        """Have a place where all workers of the cluster can meet."""
        if self.world_size > 1 and self.seat.runtime == "local":
            raise ConfigError(
                f"the {self.world_size} workers of cluster {self.seat.cluster} are in one process and "
                f"torch.distributed needs one for each; use a RayResourceManager"
            )
        self._store = open_store(own_address(self.seat.runtime))
        return Meeting(self._store.host, self._store.port)

    @register(Dispatch.ONE_TO_ALL_ONE, timeout_s=2 * MEET_S)
    def meet(self, meeting: Meeting, device: Literal["cpu", "cuda"] = "cpu") -> None:
        """Find the others, and be able to speak with them."""
        self._torch_mesh = attend(
            meeting, self.rank, self.mesh, device=device, address=own_address(self.seat.runtime), within_s=MEET_S
        )
