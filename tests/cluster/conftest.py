"""Four workers, two by two, in both runtimes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.cluster.kit import Calculator

from windrow.cluster.local import Cluster, ResourceManager, WorkerConfig

if TYPE_CHECKING:
    from windrow.cluster.ray.resources import RayResourceManager

Quad = Cluster[Calculator, WorkerConfig]


@pytest.fixture(scope="session")
def ray_devices(ray_session: object) -> "Iterator[RayResourceManager]":
    """Four logical devices of the tests' Ray cluster."""
    from windrow.cluster.ray.resources import RayResourceManager

    with RayResourceManager(devices_per_node=4) as devices:
        yield devices


def quad_on(devices: ResourceManager) -> Quad:
    return Cluster("quad", Calculator, devices, WorkerConfig(tensor_parallel=2))


@pytest.fixture(scope="session")
def ray_quad(ray_devices: "RayResourceManager") -> Iterator[Quad]:
    made = quad_on(ray_devices)
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def local_quad() -> Iterator[Quad]:
    made = quad_on(ResourceManager(4))
    yield made
    made.shutdown()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def quad(request: pytest.FixtureRequest) -> Quad:
    """A cluster of four, 2 × 2."""
    made: Quad = request.getfixturevalue(f"{request.param}_quad")
    return made
