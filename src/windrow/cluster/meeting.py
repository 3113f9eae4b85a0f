"""How workers find each other for torch.distributed.

```
rank 0     open_store ──→ Meeting(host, port)      goes to all
all        attend ──→ store ──→ process group ──→ mesh of torch
```

Promises: the port is one that was free and stays taken, so two clusters never meet by accident. Workers that are all on
one machine speak through its loopback; nothing has to be known of its name or its network.
"""

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from windrow.cluster.mesh import Mesh
from windrow.types import Value

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.device_mesh import DeviceMesh

Store: TypeAlias = "TCPStore"

DIRECTIONS = ("pp", "dp", "tp")


class Meeting(Value, frozen=True):
    """Where workers meet."""

    host: str
    port: int


def own_address(runtime: Literal["local", "ray"]) -> str:
    """Where other workers reach this process."""
    if runtime == "local":
        return "127.0.0.1"
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's own


def open_store(host: str) -> Store:
    """A store on a port that nobody else has; it lives as long as the object."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def attend(
    meeting: Meeting, rank: int, mesh: Mesh, *, device: Literal["cpu", "cuda"], address: str, within_s: float
) -> "DeviceMesh":
    """Meet the others; all workers must call it with the same meeting."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.device_mesh import init_device_mesh

    patience = timedelta(seconds=within_s)
    store = TCPStore(meeting.host, meeting.port, is_master=False, timeout=patience)
    if _on_one_machine(store, rank, mesh.size, address) and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=mesh.size, timeout=patience)
    return init_device_mesh(device, (mesh.pp, mesh.dp, mesh.tp), mesh_dim_names=DIRECTIONS)


def _on_one_machine(store: Store, rank: int, size: int, address: str) -> bool:
    """Each says where it is, and waits for all others to have said it."""
    store.set(f"address-{rank}", address)
    return all(store.get(f"address-{other}") == address.encode() for other in range(size))
