"""Ray, and the cluster that was named: its nodes, what they have, and which software they run.

Promises: without an address nobody is asked and nothing is started. A cluster that does not answer is a finding, in
bounded time. Each node is looked at by a task on that node.
"""

import importlib
import time
from collections.abc import Mapping
from typing import Any, TypedDict

from windrow.cluster.ray.addresses import AUTO, knock
from windrow.doctor.findings import Finding
from windrow.doctor.software import version_of
from windrow.errors import ConfigError
from windrow.types import Value

TASK_S = 60.0
"""For a look at all nodes; the first task of a job on a node starts a process there."""
SKEW_S = 5.0
"""Clocks of two nodes may differ by so much; traces of both are read together."""
COMPARED = ("windrow", "ray", "torch", "transformers", "msgspec", "numpy")


class Seen(TypedDict):
    """What a task found on its node."""

    python: str
    versions: dict[str, str | None]
    now: float


class Node(Value, frozen=True, kw_only=True, gc=True):
    """One machine of a cluster."""

    name: str
    resources: dict[str, float]
    python: str
    versions: dict[str, str | None]
    skew_s: float
    """How far its clock is from ours, at most."""


def findings(address: str | None) -> list[Finding]:
    """Everything about Ray."""
    installed = ray_package(version_of("ray"))
    if address is None:
        return [
            installed,
            Finding("ray cluster", "ok", "none was asked for", "--address auto or HOST:PORT looks at one"),
        ]
    if version_of("ray") is None or installed.state == "bad":
        return [installed, Finding("ray cluster", "bad", "cannot be asked without ray", "pip install 'windrow[ray]'")]
    trouble = unreachable(address)
    if trouble:
        return [installed, trouble]
    return [installed, *_asked(address)]


def ray_package(version: str | None) -> Finding:
    """Whether Ray is there and can be imported."""
    if version is None:
        return Finding(
            "ray", "ok", "not installed; one machine needs none", "pip install 'windrow[ray]' for several machines"
        )
    try:
        importlib.import_module("ray")
    except (ImportError, OSError) as error:
        return Finding("ray", "bad", f"{version} cannot be imported: {error}", "pip install --force-reinstall ray")
    return Finding("ray", "ok", version)


def unreachable(address: str) -> Finding | None:
    """A finding if no Ray cluster answers there; None if one does."""
    try:
        knock(address)
    except ConfigError:
        advice = "write auto, or HOST:PORT as ray start --head shows it"
        return Finding("ray cluster", "bad", f"address {address!r}", advice)
    except OSError as error:
        why = error.strerror.lower() if error.strerror else str(error)
        return Finding("ray cluster", "bad", f"{address} does not answer: {why}", "ray start --head on its first node")
    return None


def judged(nodes: list[Node], python: str, ours: Mapping[str, str | None]) -> list[Finding]:
    """What the nodes have, and whether they run what we run."""
    found = []
    for node in nodes:
        has = ", ".join(f"{name} {node.resources[name]:g}" for name in ("CPU", "GPU") if name in node.resources)
        wrong = [f"python {node.python}, here {python}"] if node.python != python else []
        wrong += [
            f"{name} {node.versions.get(name) or 'missing'}, here {ours.get(name) or 'missing'}"
            for name in COMPARED
            if node.versions.get(name) != ours.get(name)
        ]
        name = f"node {node.name}"
        if wrong:
            found.append(Finding(name, "bad", f"{has}; {'; '.join(wrong)}", "install the same versions everywhere"))
        elif node.skew_s > SKEW_S:
            advice = "let ntpd keep the clocks of all nodes"
            found.append(Finding(name, "warn", f"{has}; its clock differs by {node.skew_s:.0f} s", advice))
        else:
            found.append(Finding(name, "ok", f"{has}; the same software"))
    return found


def _asked(address: str) -> list[Finding]:
    ray = importlib.import_module("ray")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (RuntimeError, ValueError, OSError) as error:
        advice = "the cluster must run the same Python and Ray as this process"
        return [Finding("ray cluster", "bad", f"{address}: {_first_line(error)}", advice)]
    try:
        return _looked_at(ray, address)
    finally:
        ray.shutdown()


def _looked_at(ray: Any, address: str) -> list[Finding]:  # noqa: ANN401 -- the module, which may not be installed
    alive = [node for node in ray.nodes() if node["Alive"]]
    dead = len(ray.nodes()) - len(alive)
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    looks = [
        ray.remote(_look)
        .options(num_cpus=0, scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(COMPARED)
        for node in alive
    ]
    began = time.time()
    try:
        seen: list[Seen] = ray.get(looks, timeout=TASK_S)
    except ray.exceptions.RayError as error:
        advice = "look at ray status, and install windrow's packages on every node"
        return [Finding("ray cluster", "bad", f"a task failed on a node: {_first_line(error)}", advice)]
    ended = time.time()
    nodes = [
        Node(
            name=node["NodeManagerAddress"],
            resources=node["Resources"],
            python=each["python"],
            versions=each["versions"],
            skew_s=max(0.0, began - each["now"], each["now"] - ended),
        )
        for node, each in zip(alive, seen, strict=True)
    ]
    total = ray.cluster_resources()
    at = ray.get_runtime_context().gcs_address
    named = f"{address} is {at}" if address == AUTO else address
    found = f"{named}: {len(alive)} nodes, CPU {total.get('CPU', 0):g}, GPU {total.get('GPU', 0):g}"
    state = Finding("ray cluster", "ok", found)
    if dead:
        state = Finding("ray cluster", "warn", f"{found}; {dead} nodes have left", "start them again, or go on without")
    ours = _look(COMPARED)
    return [state, *judged(nodes, ours["python"], ours["versions"])]


def _look(packages: tuple[str, ...]) -> Seen:
    """Runs on a node, where windrow may be missing; so it imports nothing of it."""
    import platform
    import time as clock
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {"python": platform.python_version(), "versions": versions, "now": clock.time()}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
