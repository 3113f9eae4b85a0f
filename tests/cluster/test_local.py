"""Devices and workers in one process."""

import pytest

from windrow.cluster.local import Cluster, ResourceManager, WorkerConfig
from windrow.errors import ConfigError

Placed = tuple[str, tuple[int, ...]]


def cluster(devices: int, **config: object) -> Cluster[Placed, WorkerConfig]:
    settings = WorkerConfig(**config)  # type: ignore[arg-type]
    return Cluster("infer", lambda name, devices, _: (name, devices), ResourceManager(devices), settings)


def test_every_worker_has_a_name_and_devices_of_its_own():
    assert cluster(3).workers == {
        "infer-0": ("infer-0", (0,)),
        "infer-1": ("infer-1", (1,)),
        "infer-2": ("infer-2", (2,)),
    }


def test_a_worker_may_have_several_devices_in_the_order_of_the_mapping():
    made = cluster(8, device_mapping=(7, 2, 4, 5), devices_per_worker=2)
    assert made.workers == {"infer-0": ("infer-0", (7, 2)), "infer-1": ("infer-1", (4, 5))}
    assert made.world_size == 2


@pytest.mark.parametrize(
    ("devices", "config", "why"),
    [
        (2, {"device_mapping": (0, 5, 9)}, r"cluster infer: no devices \[5, 9\]; there are \[0, 1\]"),
        (2, {"device_mapping": (1, 1)}, r"cluster infer: device_mapping \[1, 1\] names a device twice"),
        (3, {"devices_per_worker": 2}, "cluster infer: 3 devices cannot be shared out by 2 for each worker"),
        (3, {"devices_per_worker": 0}, "cannot be shared out by 0"),
        (3, {"device_mapping": ()}, "0 devices cannot be shared out"),
    ],
)
def test_what_cannot_be_placed_is_refused(devices: int, config: dict[str, object], why: str):
    with pytest.raises(ConfigError, match=why):
        cluster(devices, **config)


def test_there_is_at_least_one_device():
    with pytest.raises(ConfigError, match="num_devices must be 1 or more, got 0"):
        ResourceManager(0)


def test_an_attribute_that_a_worker_lacks_when_it_is_made_is_told_as_it_is():
    made = Cluster("infer", lambda name, *_: name.sise, ResourceManager(1), WorkerConfig())
    with pytest.raises(AttributeError, match="'str' object has no attribute 'sise'"):
        _ = made.workers


def test_tenants_belong_to_one_cluster():
    one, other = cluster(1), cluster(1)
    one.tenants["queue"] = object()
    assert other.tenants == {}
