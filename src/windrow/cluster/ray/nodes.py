"""The nodes of a Ray cluster, and which of their devices are used.

Promises
- Devices are GPUs where any node has some, else logical ones, each of which stands for a CPU. Nodes without any are
  left alone.
- Exactly as many devices as are wanted are chosen, on few nodes: those with the most free devices first, of the same
  number those with the lower address, each filled before the next. What others hold counts only if the rest is not
  enough: they may give it back.
- Devices are numbered from 0, node by node, nodes by address (10.0.0.2 before 10.0.0.10).

Nothing is asked here: nodes in, devices out.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Literal

from windrow.errors import ConfigError
from windrow.types import Value

PER_DEVICE = 1.0
"""CPUs that stand for a logical device where there are no GPUs."""

Kind = Literal["GPU", "CPU"]


class Node(Value, frozen=True, kw_only=True):
    """A machine of a Ray cluster."""

    id: str
    address: str
    gpus: int
    cpus: float
    free_gpus: int
    """That nobody has reserved."""
    free_cpus: float

    def devices(self, kind: Kind) -> int:
        return self.gpus if kind == "GPU" else int(self.cpus / PER_DEVICE)

    def free(self, kind: Kind) -> int:
        return self.free_gpus if kind == "GPU" else int(self.free_cpus / PER_DEVICE)


class Share(Value, frozen=True, kw_only=True):
    """What is used of a node."""

    node: Node
    devices: int


class Device(Value, frozen=True, kw_only=True):
    """One device."""

    id: int
    """Its number in the whole cluster."""
    node: Node
    local: int
    """Its place among those that are used on its node."""


def kind_of(nodes: Iterable[Node]) -> Kind:
    """What devices are."""
    return "GPU" if any(node.gpus for node in nodes) else "CPU"


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """By address, as people count."""
    return sorted(nodes, key=_place)


def everywhere(nodes: Sequence[Node], per_node: int | None) -> list[Share]:
    """So many devices of every node that has any; None: all of them."""
    if per_node is not None and per_node < 1:
        raise ConfigError(f"devices_per_node must be 1 or more, got {per_node}")
    kind = kind_of(nodes)
    used = [node for node in in_order(nodes) if node.devices(kind)]
    for node in used:
        if per_node is not None and node.devices(kind) < per_node:
            raise ConfigError(
                f"devices_per_node is {per_node} and node {node.address} has {node.devices(kind)} {kind}s; "
                f"ask for fewer, or start Ray with more"
            )
    return [Share(node=node, devices=per_node or node.devices(kind)) for node in used]


def on_few(nodes: Sequence[Node], wanted: int) -> list[Share]:
    """So many devices in all."""
    kind = kind_of(nodes)
    used = [node for node in in_order(nodes) if node.devices(kind)]
    free = {node.id: node.free(kind) for node in used}
    if sum(free.values()) < wanted:
        free = {node.id: node.devices(kind) for node in used}
    if sum(free.values()) < wanted:
        has = ", ".join(f"{node.address} has {node.devices(kind)}" for node in used) or "none has any"
        raise ConfigError(
            f"devices is {wanted} and the nodes of the Ray cluster have {sum(free.values())} {kind}s ({has}); "
            f"ask for fewer, or start Ray with more"
        )
    taken: dict[str, int] = {}
    for node in sorted(used, key=lambda node: -free[node.id]):
        taken[node.id] = min(free[node.id], wanted - sum(taken.values()))
    return [Share(node=node, devices=taken[node.id]) for node in used if taken[node.id]]


def numbered(shares: Sequence[Share]) -> list[Device]:
    """The devices that are used, in order."""
    there = [(share.node, local) for share in shares for local in range(share.devices)]
    return [Device(id=place, node=node, local=local) for place, (node, local) in enumerate(there)]


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


def _place(node: Node) -> tuple[int, int, str, str]:
    try:
        address = ip_address(node.address)
    except ValueError:  # a name
        return 0, 0, node.address, node.id
    return address.version, int(address), "", node.id
