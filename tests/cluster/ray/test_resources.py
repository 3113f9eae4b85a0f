"""Devices of nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.cluster.ray.nodes import Device, Node, Share, everywhere, in_order, numbered, on_few, one_node
from windrow.cluster.ray.resources import RayResourceManager, seeing
from windrow.errors import ConfigError

ROOT = Path(__file__).parents[3]


def node(name: str, gpus: int = 0, cpus: float = 4, held: float = 0) -> Node:
    """`held`: devices that somebody else has."""
    free_gpus = gpus - int(held) if gpus else 0
    return Node(
        id=name, address=f"10.0.0.{name}", gpus=gpus, cpus=cpus, free_gpus=free_gpus, free_cpus=max(0.0, cpus - held)
    )


def spelled(devices: list[Device]) -> list[tuple[int, str, int]]:
    return [(device.id, device.node.id, device.local) for device in devices]


def counted(shares: list[Share]) -> dict[str, int]:
    return {share.node.id: share.devices for share in shares}


@pytest.mark.parametrize(
    ("nodes", "per_node", "expected"),
    [
        ([node("1", gpus=2), node("2", gpus=1)], None, [(0, "1", 0), (1, "1", 1), (2, "2", 0)]),
        ([node("1"), node("2", gpus=2)], None, [(0, "2", 0), (1, "2", 1)]),
        ([node("1", gpus=4), node("2", gpus=4)], 1, [(0, "1", 0), (1, "2", 0)]),
        ([node("1", cpus=2.5), node("2", cpus=1)], None, [(0, "1", 0), (1, "1", 1), (2, "2", 0)]),
        ([node("1", cpus=8)], 2, [(0, "1", 0), (1, "1", 1)]),
        ([node("1", cpus=0), node("2", cpus=8)], 2, [(0, "2", 0), (1, "2", 1)]),
    ],
)
def test_devices_are_numbered_node_by_node(nodes: list[Node], per_node: int | None, expected: list[object]):
    assert spelled(numbered(everywhere(nodes, per_node))) == expected


@pytest.mark.parametrize(
    ("nodes", "wanted", "expected"),
    [
        ([node("1", cpus=64), node("2", gpus=8)], 8, {"2": 8}),  # a head without GPUs
        ([node("1", cpus=0), node("2", cpus=4)], 4, {"2": 4}),
        ([node("1", cpus=4), node("2", cpus=2)], 5, {"1": 4, "2": 1}),
        ([node("1", cpus=2), node("2", cpus=4)], 5, {"1": 1, "2": 4}),  # the fuller one first
        ([node(str(name)) for name in range(1, 11)], 2, {"1": 2}),
        ([node("10"), node("2")], 4, {"2": 4}),  # of the same number the lower address
        ([node("1", gpus=8), node("2", gpus=8)], 12, {"1": 8, "2": 4}),
        ([node("1", gpus=8, held=6), node("2", gpus=4)], 4, {"2": 4}),  # others have most of it
        ([node("1", gpus=8, held=6), node("2", gpus=4)], 6, {"1": 2, "2": 4}),
        ([node("1", gpus=8, held=6), node("2", gpus=4)], 8, {"1": 8}),  # they may give it back
    ],
)
def test_exactly_the_wanted_devices_are_chosen_on_few_nodes(nodes: list[Node], wanted: int, expected: dict[str, int]):
    assert counted(on_few(nodes, wanted)) == expected


def test_more_than_all_nodes_have_is_refused_with_what_each_has():
    with pytest.raises(
        ConfigError,
        match=r"devices is 7 and the nodes of the Ray cluster have 6 CPUs \(10.0.0.2 has 2, 10.0.0.10 has 4\)",
    ):
        on_few([node("10", cpus=4), node("2", cpus=2), node("3", cpus=0)], 7)


def test_nodes_stand_in_the_order_of_their_addresses_as_people_count():
    assert [each.id for each in in_order([node("10"), node("9"), node("2")])] == ["2", "9", "10"]


@pytest.mark.parametrize(
    ("nodes", "per_node", "why"),
    [
        ([node("1")], 0, "devices_per_node must be 1 or more, got 0"),
        ([node("1", cpus=2)], 4, r"devices_per_node is 4 and node 10.0.0.1 has 2 CPUs; ask for fewer, or start Ray"),
        ([node("1", gpus=8), node("2", gpus=4)], 8, "devices_per_node is 8 and node 10.0.0.2 has 4 GPUs"),
    ],
)
def test_more_devices_than_a_node_has_are_refused(nodes: list[Node], per_node: int, why: str):
    with pytest.raises(ConfigError, match=why):
        everywhere(nodes, per_node)


def test_a_worker_sees_its_own_gpus_and_takes_a_crumb():
    taking = seeing(["7", "4"])
    assert taking["num_gpus"] == 0.01
    assert taking["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"] == "7,4"


def test_a_worker_sits_on_one_node():
    devices = numbered(everywhere([node("1", gpus=2), node("2", gpus=2)], None))
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
    with pytest.raises(
        ConfigError, match=r"16 CPU of node [\d.]+ could not be reserved within 0.5 s: 12 CPU .* are free"
    ):
        RayResourceManager(devices_per_node=16, within_s=0.5)
    with RayResourceManager(devices_per_node=12) as rest:
        assert len(rest.devices) == 12
    with RayResourceManager(devices_per_node=12):
        pass
    with pytest.raises(ConfigError, match=r"the devices of node .* were given back"):
        rest.options([0], "infer-0")


@pytest.mark.ray
def test_so_many_devices_as_were_asked_for_are_reserved(ray_devices: RayResourceManager):
    with RayResourceManager(num_devices=3) as three:
        assert three.devices == (0, 1, 2)
        with pytest.raises(ConfigError, match="devices is 17 and the nodes of the Ray cluster have 16 CPUs"):
            RayResourceManager(num_devices=17)


@pytest.mark.ray
def test_two_managers_on_a_node_have_different_gpus_and_all_of_them_are_the_nodes_own():
    """A head without devices, and a node with four GPUs by the names that its CUDA_VISIBLE_DEVICES has."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.ray.gpus"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [len(each) for each in found["seen"]] == [1, 1, 2]
    assert sorted(gpu for each in found["seen"] for gpu in each) == ["2", "3", "5", "7"]
    assert found["again"] == found["seen"][2]
