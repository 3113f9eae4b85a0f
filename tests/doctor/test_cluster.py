"""What is said about Ray, without a cluster and with one."""

import json
import socket
import subprocess
import sys

import pytest

from windrow.doctor import cluster
from windrow.doctor.cluster import Node

OURS = {"windrow": "1", "ray": "2", "torch": None, "transformers": "4", "msgspec": "5", "numpy": "6"}
SAME = Node(name="10.0.0.1", resources={"CPU": 4.0}, python="3.11.7", versions=OURS, skew_s=0.1)

WITH_A_CLUSTER = """
import json
from ray.cluster_utils import Cluster
from windrow.doctor.cluster import findings
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
found = findings(cluster.address)
cluster.shutdown()
print(json.dumps([[each.name, each.state, each.found] for each in found]))
"""


def test_nobody_is_asked_without_an_address():
    found = cluster.findings(None)
    assert [(each.name, each.state) for each in found] == [("ray", "ok"), ("ray cluster", "ok")]
    assert found[1].found == "none was asked for"


@pytest.mark.parametrize("address", ["", "ray://host:1", "host", "host:", "host:0", "host:99999", "host:port"])
def test_an_address_that_is_none_is_bad(address: str):
    found = cluster.unreachable(address)
    assert found is not None
    assert (found.state, found.advice) == ("bad", "write auto, or HOST:PORT as ray start --head shows it")


def test_a_cluster_that_does_not_answer_is_bad():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found = cluster.findings(f"127.0.0.1:{nobody.getsockname()[1]}")
    assert (found[-1].name, found[-1].state) == ("ray cluster", "bad")
    assert "does not answer" in found[-1].found


def test_a_node_with_other_software_is_bad_and_one_with_another_time_suspect():
    older = Node(name="b", resources={}, python="3.12.0", versions={**OURS, "torch": "2"}, skew_s=0.0)
    late = Node(name="c", resources={}, python="3.11.7", versions=OURS, skew_s=60.0)
    found = cluster.judged([SAME, older, late], "3.11.7", OURS)
    assert [each.state for each in found] == ["ok", "bad", "warn"]
    assert "CPU 4" in found[0].found
    assert "python 3.12.0, here 3.11.7; torch 2, here missing" in found[1].found


@pytest.mark.slow
def test_a_cluster_is_looked_at_node_by_node():
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_CLUSTER], capture_output=True, text=True, check=True, timeout=240
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(name.partition(" ")[0], state) for name, state, _ in found] == [
        ("ray", "ok"),
        ("ray", "ok"),
        ("node", "ok"),
    ]
    assert "1 nodes, CPU 1" in found[1][2]
