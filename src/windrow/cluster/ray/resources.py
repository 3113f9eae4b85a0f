"""The devices of a Ray cluster.

```
node 10.0.0.1    GPU 0   GPU 1   GPU 2   GPU 3      node 10.0.0.2    GPU 0   GPU 1 …
devices              0       1       2       3                           4       5 …
```

Promises
- Which devices are used and how they are numbered is decided in `nodes`.
- They are reserved when the manager is made, within bounded time or not at all, and given back by `close`. What is used
  is what Ray has reserved: two managers never have the same GPU, in one job or in two, and a node that was started with
  `CUDA_VISIBLE_DEVICES` keeps to it.
- Workers of several clusters may sit on one device: each takes a crumb of it, and nothing but turns (`arbiter`) keeps
  them apart. A worker sees its own devices and no others.

What it does not do: devices of a node that joins later are not used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from windrow.cluster.cluster import Staff
from windrow.cluster.local import ResourceManager
from windrow.cluster.ray.nodes import (
    PER_DEVICE,
    Kind,
    Node,
    Share,
    everywhere,
    in_order,
    kind_of,
    numbered,
    on_few,
    one_node,
)
from windrow.cluster.ray.staff import RayStaff
from windrow.cluster.worker import Runtime, Seat
from windrow.errors import ConfigError

CRUMB = 0.01
"""What a worker takes of each of its devices in Ray's books; a hundred of them can share one."""
RESERVE_S = 30.0
"""How long others may take to give back what we reserve."""
LOOK_S = 60.0
"""How long nodes may take to say which GPUs they gave us; each starts a process for it."""

W = TypeVar("W")


class RayResourceManager(ResourceManager):
    """The devices of the Ray cluster that this process is connected to."""

    runtime: Runtime = "ray"

    def __init__(
        self, devices_per_node: int | None = None, within_s: float = RESERVE_S, *, num_devices: int | None = None
    ) -> None:
        """`devices_per_node`: of every node; None for all of its GPUs, or as many logical devices as it has CPUs.

        `num_devices`: so many in all instead, on few nodes.
        """
        if not ray.is_initialized():
            raise ConfigError("there is no connection to Ray; call windrow.cluster.ray.session.connect first")
        nodes = alive_nodes()
        self.kind: Kind = kind_of(nodes)
        shares = everywhere(nodes, devices_per_node) if num_devices is None else on_few(nodes, num_devices)
        self.table = {device.id: device for device in numbered(shares)}
        super().__init__(len(self.table))
        self._groups = _reserved(shares, self.kind, within_s)
        self._gpus: dict[str, list[str]] = {}  # by node: what CUDA calls those that we have there
        self._is_copy = False
        if self.kind == "GPU":
            self._find_gpus(shares)

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
        if self.kind == "CPU":
            return {"scheduling_strategy": where, "num_cpus": CRUMB * PER_DEVICE * len(devices)}
        own = [self._gpus[node.id][self.table[device].local] for device in devices]
        return {"scheduling_strategy": where, **seeing(own)}

    def staff(self, make: Callable[..., W], seats: Sequence[Seat[Any]]) -> Staff[W]:
        return RayStaff(make, seats, self)

    def close(self) -> None:
        """Give the devices back, which ends whoever sits on them; copies and second calls do nothing."""
        groups, self._groups = self._groups, {}
        if self._is_copy or not ray.is_initialized():
            return
        for group in groups.values():
            remove_placement_group(group)

    def _find_gpus(self, shares: Sequence[Share]) -> None:
        """Ask Ray which ones it has reserved: its numbers, not ours, before anybody else sits on them."""
        asked = [
            ray.remote(_own_gpus)
            .options(
                num_cpus=0,
                num_gpus=share.devices,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._groups[share.node.id], placement_group_bundle_index=0
                ),
            )
            .remote()
            for share in shares
        ]
        try:
            found: list[list[str]] = ray.get(asked, timeout=LOOK_S)
        except RayError as error:
            self.close()
            raise ConfigError(
                f"the nodes did not say which GPUs they gave us: {error}; windrow doctor --address looks at each"
            ) from error
        self._gpus = {share.node.id: gpus for share, gpus in zip(shares, found, strict=True)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_copy": True}

    def _check_known(self, devices: Sequence[int], what: str) -> None:
        unknown = sorted(set(devices) - set(self.devices))
        if unknown:
            raise ConfigError(f"{what}: no devices {unknown}; there are {[*self.devices]}")


def alive_nodes() -> list[Node]:
    """The nodes of the Ray cluster, by address."""
    from ray._private.state import available_resources_per_node  # it has no public name

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]  # Ray's own
    found = [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            gpus=int(node["Resources"].get("GPU", 0)),
            cpus=node["Resources"].get("CPU", 0.0),
            free_gpus=int(free.get(node["NodeID"], {}).get("GPU", 0)),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own
        if node["Alive"]
    ]
    return in_order(found)


def seeing(gpus: Sequence[str]) -> dict[str, Any]:
    """Ray's options for an actor that sees these GPUs, by what CUDA calls them on their node."""
    seen = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",  # else Ray chooses, and knows only of crumbs
    }
    return {"num_cpus": 0, "num_gpus": CRUMB, "runtime_env": {"env_vars": seen}}


def _reserved(shares: Sequence[Share], kind: Kind, within_s: float) -> dict[str, PlacementGroup]:
    each = 1.0 if kind == "GPU" else PER_DEVICE
    groups = {
        share.node.id: placement_group(
            [{kind: each * share.devices}],
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": share.node.id}],
        )
        for share in shares
    }
    until = time.monotonic() + within_s
    late = [share for share in shares if not groups[share.node.id].wait(max(0.0, until - time.monotonic()))]
    if not late:
        return groups
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's own
    for group in groups.values():
        remove_placement_group(group)
    first = late[0]
    raise ConfigError(
        f"{each * first.devices:g} {kind} of node {first.node.address} could not be reserved within {within_s:g} s: "
        f"{free.get(kind, 0):g} {kind} of the cluster are free; end what holds the others, or ask for fewer devices"
    )


def _own_gpus() -> list[str]:
    """Runs on a node, with all GPUs that are reserved there: what CUDA calls them."""
    found: dict[str, list[str]] = ray.get_runtime_context().get_accelerator_ids()
    return found["GPU"]
