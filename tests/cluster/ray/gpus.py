"""Two managers on one node with GPUs that are not there; run by test_resources in its own process.

Prints one line of JSON: which GPUs each worker saw.
"""

import json
import logging
import os
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes

from windrow import Cluster, Dispatch, Worker, register
from windrow.cluster.local import WorkerConfig
from windrow.cluster.ray.resources import RayResourceManager

SMALL: dict[str, Any] = {"object_store_memory": 128 << 20}


class Looker(Worker[WorkerConfig]):
    @register(Dispatch.ONE_TO_ALL, timeout_s=60)
    def seen(self) -> list[str]:
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")


def seen(devices: RayResourceManager, each: int) -> list[list[str]]:
    cluster = Cluster("looker", Looker, devices, WorkerConfig(devices_per_worker=each))
    try:
        found: list[list[str]] = cluster.seen()
        return found
    finally:
        cluster.shutdown()


def main() -> None:
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    os.environ["CUDA_VISIBLE_DEVICES"] = "2,3,5,7"
    nodes.add_node(num_cpus=1, num_gpus=4, **SMALL)
    del os.environ["CUDA_VISIBLE_DEVICES"]
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    with RayResourceManager(num_devices=2) as one, RayResourceManager(num_devices=2) as other:
        found = [*seen(one, 1), *seen(other, 2)]
        again = seen(other, 2)[0]
    ray.shutdown()
    nodes.shutdown()
    print(json.dumps({"seen": found, "again": again}))  # noqa: T201 -- it is what the test reads


if __name__ == "__main__":
    main()
