"""Devices of nodes."""

import pytest

from windrow.cluster.ray.resources import Device, Node, RayResourceManager, bundles, numbered, one_node, taken
from windrow.errors import ConfigError


def node(name: str, gpus: int = 0, cpus: float = 4) -> Node:
    return Node(id=name, address=f"10.0.0.{name}", gpus=gpus, cpus=cpus)


def spelled(devices: list[Device]) -> list[tuple[int, str, int]]:
    return [(device.id, device.node.id, device.local) for device in devices]


@pytest.mark.parametrize(
    ("nodes", "per_node", "expected"),
    [
        ([node("1", gpus=2), node("2", gpus=1)], None, [(0, "1", 0), (1, "1", 1), (2, "2", 0)]),
        ([node("1"), node("2", gpus=2)], None, [(0, "2", 0), (1, "2", 1)]),
        ([node("1", gpus=4), node("2", gpus=4)], 1, [(0, "1", 0), (1, "2", 0)]),
        ([node("1", cpus=2.5), node("2", cpus=1)], None, [(0, "1", 0), (1, "1", 1), (2, "2", 0)]),
        ([node("1", cpus=8)], 2, [(0, "1", 0), (1, "1", 1)]),
    ],
)
def test_devices_are_numbered_node_by_node(nodes: list[Node], per_node: int | None, expected: list[object]):
    assert spelled(numbered(nodes, per_node)) == expected


@pytest.mark.parametrize(
    ("nodes", "per_node", "why"),
    [
        ([node("1")], 0, "devices_per_node must be 1 or more, got 0"),
        ([node("1", cpus=2)], 4, r"devices_per_node is 4 and node 10.0.0.1 has 2 CPUs; ask for fewer, or start Ray"),
        ([node("1", gpus=8), node("2", gpus=4)], 8, "devices_per_node is 8 and node 10.0.0.2 has 4 GPUs"),
    ],
)
def test_more_devices_than_there_are_are_refused(nodes: list[Node], per_node: int, why: str):
    with pytest.raises(ConfigError, match=why):
        numbered(nodes, per_node)


def test_a_node_is_reserved_as_a_whole():
    table = dict(enumerate(numbered([node("1", gpus=2), node("2", gpus=1)], None)))
    assert bundles(table, "GPU") == {"1": {"GPU": 2.0}, "2": {"GPU": 1.0}}


def test_a_worker_sees_its_own_gpus_and_takes_a_crumb():
    devices = numbered([node("1", gpus=2), node("2", gpus=4)], None)
    taking = taken([devices[5], devices[3]], "GPU")
    assert taking["num_gpus"] == 0.01
    assert taking["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert taken([devices[0]] * 4, "CPU") == {"num_cpus": 0.04}


def test_a_worker_sits_on_one_node():
    devices = numbered([node("1", gpus=2), node("2", gpus=2)], None)
    assert one_node(devices[2:], "infer-1").id == "2"
    with pytest.raises(
        ConfigError, match=r"infer-0: devices \[1, 2\] are on nodes 10.0.0.1 and 10.0.0.2, and a worker sits on one"
    ):
        one_node(devices[1:3], "infer-0")


@pytest.mark.ray
def test_devices_are_where_ray_is(ray_devices: RayResourceManager):
    import ray

    assert ray_devices.devices == (0, 1, 2, 3)
    assert ray_devices.node_of(3).address == ray.util.get_node_ip_address()
    assert ray_devices.options(()) == {}
    with pytest.raises(ConfigError, match=r"infer-0: no devices \[7\]; there are \[0, 1, 2, 3\]"):
        ray_devices.options([0, 7], "infer-0")


@pytest.mark.ray
def test_what_cannot_be_reserved_is_told_in_time_and_nothing_stays_reserved(ray_devices: RayResourceManager):
    with pytest.raises(ConfigError, match=r"16 CPU of node \w+ could not be reserved within 0.5 s: 12 CPU .* are free"):
        RayResourceManager(devices_per_node=16, within_s=0.5)
    with RayResourceManager(devices_per_node=12) as rest:
        assert len(rest.devices) == 12
    with RayResourceManager(devices_per_node=12):
        pass
    with pytest.raises(ConfigError, match=r"the devices of node .* were given back"):
        rest.options([0], "infer-0")
