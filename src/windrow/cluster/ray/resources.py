"""The devices of a Ray cluster.

```
node 10.0.0.1    GPU 0   GPU 1   GPU 2   GPU 3      node 10.0.0.2    GPU 0   GPU 1 …
devices              0       1       2       3                           4       5 …
```

Promises
- Devices are numbered from 0, node by node, nodes by address: the same numbers every time. They are GPUs where any node
  has some, else logical ones, each of which stands for a CPU.
- They are reserved when the manager is made, within bounded time or not at all, and given back by `close`.
- Workers of several clusters may sit on one device: each takes a crumb of it, and nothing but turns (`arbiter`) keeps
  them apart. A worker sees its own devices and no others.

What it does not do: devices of a node that joins later are not used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from windrow.cluster.cluster import Staff
from windrow.cluster.local import ResourceManager
from windrow.cluster.ray.session import PER_DEVICE
from windrow.cluster.ray.staff import RayStaff
from windrow.cluster.worker import Runtime, Seat
from windrow.errors import ConfigError
from windrow.types import Value

CRUMB = 0.01
"""What a worker takes of each of its devices in Ray's books; a hundred of them can share one."""
RESERVE_S = 30.0
"""How long others may take to give back what we reserve."""

Kind = Literal["GPU", "CPU"]

W = TypeVar("W")


class Node(Value, frozen=True, kw_only=True):
    """A machine of a Ray cluster."""

    id: str
    address: str
    gpus: int
    cpus: float


class Device(Value, frozen=True, kw_only=True):
    """One device."""

    id: int
    """Its number in the whole cluster."""
    node: Node
    local: int
    """Its number on its node."""


class RayResourceManager(ResourceManager):
    """The devices of the Ray cluster that this process is connected to."""

    runtime: Runtime = "ray"

    def __init__(self, devices_per_node: int | None = None, within_s: float = RESERVE_S) -> None:
        """`devices_per_node`: None for all GPUs, or as many logical devices as a node has CPUs."""
        if not ray.is_initialized():
            raise ConfigError("there is no connection to Ray; call windrow.cluster.ray.session.connect first")
        nodes = alive_nodes()
        self.kind: Kind = "GPU" if any(node.gpus for node in nodes) else "CPU"
        self.table = {device.id: device for device in numbered(nodes, devices_per_node)}
        super().__init__(len(self.table))
        self._groups = _reserved(bundles(self.table, self.kind), within_s)
        self._is_copy = False

    def node_of(self, device: int) -> Node:
        """Where a device is."""
        self._check_known([device], "node_of")
        return self.table[device].node

    def options(self, devices: Sequence[int], worker: str = "a worker") -> dict[str, Any]:
        """Ray's options for an actor on these devices; no devices: anywhere."""
        if not devices:
            return {}
        self._check_known(devices, worker)
        node = one_node([self.table[device] for device in devices], worker)
        if node.id not in self._groups:
            raise ConfigError(
                f"{worker}: the devices of node {node.address} were given back; make a new resource manager"
            )
        where = PlacementGroupSchedulingStrategy(self._groups[node.id], placement_group_bundle_index=0)
        return {"scheduling_strategy": where, **taken([self.table[device] for device in devices], self.kind)}

    def staff(self, make: Callable[..., W], seats: Sequence[Seat[Any]]) -> Staff[W]:
        return RayStaff(make, seats, self)

    def close(self) -> None:
        """Give the devices back, which ends whoever sits on them; copies and second calls do nothing."""
        groups, self._groups = self._groups, {}
        if self._is_copy or not ray.is_initialized():
            return
        for group in groups.values():
            remove_placement_group(group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_copy": True}

    def _check_known(self, devices: Sequence[int], what: str) -> None:
        unknown = sorted(set(devices) - set(self.devices))
        if unknown:
            raise ConfigError(f"{what}: no devices {unknown}; there are {[*self.devices]}")


def alive_nodes() -> list[Node]:
    """The nodes of the Ray cluster, in the order in which devices are numbered."""
    found = [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            gpus=int(node["Resources"].get("GPU", 0)),
            cpus=node["Resources"].get("CPU", 0.0),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def numbered(nodes: Sequence[Node], per_node: int | None) -> list[Device]:
    """The devices of nodes, in order."""
    if per_node is not None and per_node < 1:
        raise ConfigError(f"devices_per_node must be 1 or more, got {per_node}")
    has_gpus = any(node.gpus for node in nodes)
    used = [node for node in nodes if node.gpus] if has_gpus else nodes
    counts = [node.gpus if has_gpus else int(node.cpus / PER_DEVICE) for node in used]
    for node, count in zip(used, counts, strict=True):
        if per_node is not None and count < per_node:
            kind = "GPUs" if has_gpus else "CPUs"
            raise ConfigError(
                f"devices_per_node is {per_node} and node {node.address} has {count} {kind}; "
                f"ask for fewer, or start Ray with more"
            )
    there = [(node, local) for node, count in zip(used, counts, strict=True) for local in range(per_node or count)]
    return [Device(id=place, node=node, local=local) for place, (node, local) in enumerate(there)]


def bundles(table: Mapping[int, Device], kind: Kind) -> dict[str, dict[str, float]]:
    """What is reserved, by node."""
    each = 1.0 if kind == "GPU" else PER_DEVICE
    wanted: dict[str, dict[str, float]] = {}
    for device in table.values():
        bundle = wanted.setdefault(device.node.id, {kind: 0.0})
        bundle[kind] += each
    return wanted


def one_node(devices: Sequence[Device], worker: str) -> Node:
    """The node on which all of them are."""
    nodes = {device.node.id: device.node for device in devices}
    if len(nodes) > 1:
        raise ConfigError(
            f"{worker}: devices {[device.id for device in devices]} are on nodes "
            f"{' and '.join(node.address for node in nodes.values())}, and a worker sits on one; "
            f"change device_mapping or devices_per_worker"
        )
    return devices[0].node


def taken(devices: Sequence[Device], kind: Kind) -> dict[str, Any]:
    """What a worker takes of its devices in Ray's books, and what it sees of them."""
    if kind == "CPU":
        return {"num_cpus": CRUMB * PER_DEVICE * len(devices)}
    seen = {
        "CUDA_VISIBLE_DEVICES": ",".join(str(device.local) for device in devices),
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",  # else Ray chooses, and knows only of crumbs
    }
    return {"num_cpus": 0, "num_gpus": CRUMB, "runtime_env": {"env_vars": seen}}


def _reserved(wanted: Mapping[str, dict[str, float]], within_s: float) -> dict[str, PlacementGroup]:
    groups = {
        node: placement_group([bundle], strategy="STRICT_PACK", bundle_label_selector=[{"ray.io/node-id": node}])
        for node, bundle in wanted.items()
    }
    until = time.monotonic() + within_s
    late = [node for node, group in groups.items() if not group.wait(max(0.0, until - time.monotonic()))]
    if not late:
        return groups
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's own
    for group in groups.values():
        remove_placement_group(group)
    ((kind, amount),) = wanted[late[0]].items()
    raise ConfigError(
        f"{amount:g} {kind} of node {late[0]} could not be reserved within {within_s:g} s: "
        f"{free.get(kind, 0):g} {kind} of the cluster are free; end what holds the others, or ask for less with "
        f"devices_per_node"
    )
