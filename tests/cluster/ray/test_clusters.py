"""What is different when workers are processes: they die, they are somewhere, and a cluster can be sent to others."""

import os
import select
from collections.abc import Iterator

import pytest
from tests.cluster.conftest import Quad
from tests.cluster.kit import HIDDEN, WIDTH, Calculator, Unmakable, whole_layers

from windrow import Cluster
from windrow.cluster.local import WorkerConfig
from windrow.cluster.ray.resources import RayResourceManager
from windrow.errors import ConfigError, HostLost, Refused

pytestmark = pytest.mark.ray

PATIENCE_S = 240.0
END_S = 10.0


def pair_on(devices: RayResourceManager, *mapping: int) -> Quad:
    """Under the name of another cluster, on devices that it sits on."""
    return Cluster("quad", Calculator, devices, WorkerConfig(device_mapping=mapping))


@pytest.fixture
def pair(ray_devices: RayResourceManager) -> Iterator[Quad]:
    made = pair_on(ray_devices, 2, 1)
    yield made
    made.shutdown()


def has_ended(pid: int) -> bool:
    """Within the time that the system may need."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], END_S)[0])
    finally:
        os.close(process)


def test_each_worker_has_a_process_of_its_own(ray_quad: Quad):
    assert ray_quad.runtime == "ray"
    assert len({*ray_quad.pid(), os.getpid()}) == 5
    assert [*ray_quad.hosts] == ["quad-0", "quad-1", "quad-2", "quad-3"]
    with pytest.raises(Refused, match=r"the workers of cluster quad are on Ray; use \.hosts"):
        _ = ray_quad.workers


def test_a_worker_is_in_its_host_under_a_name(ray_quad: Quad):
    assert ray_quad.hosts["quad-3"].look("worker.rank", within_s=PATIENCE_S) == 3


def test_layers_that_workers_hold_together_are_the_layers(ray_quad: Quad):
    """Two by two: rows over dp, columns and rows of the weights over tp, on Gloo."""
    import torch

    first, second = (layer.requires_grad_() for layer in whole_layers())
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = torch.relu(x @ first.T) @ second.T
    expected.backward(expected.detach())
    assert first.grad is not None
    assert second.grad is not None

    ray_quad.meet(ray_quad.open_meeting())
    torch.testing.assert_close(ray_quad.layers(x), expected.detach())
    found = ray_quad.gradients()
    half = HIDDEN // 2
    for rank, own in enumerate((slice(0, half), slice(half, HIDDEN)) * 2):
        torch.testing.assert_close(found[rank][0], first.grad[own])
        torch.testing.assert_close(found[rank][1], second.grad[:, own])


class Keeper:
    """Has a copy of a cluster, in another process."""

    def __init__(self, cluster: Quad) -> None:
        self.cluster = cluster
        self.pid = os.getpid()

    def pids(self) -> list[int]:
        found: list[int] = self.cluster.pid()
        return found

    def office_pid(self) -> int:
        found: int = self.cluster.office.look("keeper.pid", within_s=PATIENCE_S)
        return found

    def tenants(self) -> list[str]:
        return [*self.cluster.tenants]

    def end(self) -> None:
        self.cluster.shutdown()

    def renew(self) -> None:
        self.cluster.renew()


def test_a_copy_elsewhere_has_the_same_workers_and_the_same_office(ray_quad: Quad):
    ray_quad.tenants["here"] = object()
    office = ray_quad.office
    office.put("keeper", Keeper, ray_quad).answer(PATIENCE_S)
    assert office.ask("keeper.pids").answer(PATIENCE_S) == ray_quad.pid()
    assert office.ask("keeper.office_pid").answer(PATIENCE_S) == office.look("keeper.pid", within_s=PATIENCE_S)
    assert office.ask("keeper.tenants").answer(PATIENCE_S) == []
    with pytest.raises(Refused, match="cluster quad was made in another process; shut down it there"):
        office.ask("keeper.end").answer(PATIENCE_S)
    with pytest.raises(Refused, match="cluster quad was made in another process; renew it there"):
        office.ask("keeper.renew").answer(PATIENCE_S)


def test_a_second_cluster_on_the_same_devices_does_not_collide_and_leaves_nothing(ray_quad: Quad, pair: Quad):
    """Even under the same name."""
    assert [where[2] for where in pair.where()] == [(2,), (1,)]
    pids = pair.pid()
    assert {*pids}.isdisjoint(ray_quad.pid())
    pair.shutdown()
    assert all(has_ended(pid) for pid in pids)
    assert len(ray_quad.where()) == 4
    with pytest.raises(Refused, match="cluster quad was shut down; make a new one"):
        pair.where()


def test_a_worker_that_dies_in_the_middle_of_a_call_is_a_lost_host_although_the_other_one_hangs(pair: Quad):
    call = pair.hang([0, 1], blocking=False)
    pair.hosts["quad-1"].kill()
    with pytest.raises(HostLost, match="host quad-1 is gone") as caught:
        call.result(PATIENCE_S)
    assert caught.value.__notes__ == ["quad.hang: raised by worker quad-1 (rank 1 of 2)"]
    with pytest.raises(HostLost, match="host quad-1 is gone"):
        pair.where()
    pair.renew()
    assert [where[1] for where in pair.where()] == [0, 1]


def test_workers_that_cannot_be_made_are_told_with_their_name(ray_devices: RayResourceManager):
    made = Cluster("broken", Unmakable, ray_devices, WorkerConfig(device_mapping=(0, 1)))
    with pytest.raises(ValueError, match="no room for a model") as caught:
        made.start()
    assert "raised while worker broken-1 (rank 1 of 2) was made" in caught.value.__notes__
    made.shutdown()


def test_what_makes_workers_must_travel(ray_devices: RayResourceManager):
    import threading

    lock = threading.Lock()
    made = Cluster("locked", lambda *_: lock, ray_devices, WorkerConfig(device_mapping=(0,)))
    with pytest.raises(ConfigError, match="cluster locked cannot send what makes its workers"):
        made.start()
