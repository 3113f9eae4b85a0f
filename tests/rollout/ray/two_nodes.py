"""A run on two Ray nodes, one of which is killed in the middle of a step; run by test_two_nodes in its own process.

Prints one line of JSON: who played where, and what came of it.
"""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes
from tests.rollout.ray.stage import Plain, Stage, at

NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 128 << 20}


class OnNode(Plain):
    """Leaves the id of its node where the script finds it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        (Path(folder) / ray.get_runtime_context().get_node_id()).touch()


def _count(folder: Path) -> int:
    return len([*folder.iterdir()])


async def play(nodes: Nodes, second: Any, folder: Path) -> dict[str, object]:
    stage = Stage("ray", engines=2, token_s=0.01)
    scheduler = stage.scheduler(
        env=OnNode,
        env_args={"folder": str(folder)},
        num_workers=4,
        num_env_groups=16,
        config={"rollout_batch_size": 32, "staleness": 1.0, "engine_retries": 100},
    )
    sizes, used = [], 0
    for step in range(5):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(scheduler.get_batch(at(step), 32))
            if step == 2:
                await asyncio.sleep(0.2)
                used = _count(folder)
                nodes.remove_node(second, allow_graceful=False)
        batch = waiting.result()
        sizes.append(0 if batch is None else len(batch))
    status = scheduler.status()
    ledger = scheduler.ledger()["train"]
    await scheduler.shutdown()
    return {
        "nodes": used,
        "sizes": sizes,
        "lost_engines": sorted(status.lost_engines),
        "balance": ledger.attempts.balance,
    }


def main() -> None:
    os.environ["RAY_health_check_initial_delay_ms"] = "1000"  # noqa: SIM112 -- Ray's own spelling
    os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112
    os.environ["RAY_health_check_failure_threshold"] = "4"  # noqa: SIM112
    nodes = Nodes(initialize_head=True, head_node_args=NODE)
    second = nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    found = asyncio.run(play(nodes, second, Path(sys.argv[1])))
    ray.shutdown()
    nodes.shutdown()
    print(json.dumps(found))  # noqa: T201 -- it is what the test reads


if __name__ == "__main__":
    main()
