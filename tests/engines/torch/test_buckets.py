"""Weights come out of buckets as they went in, on whatever way they were."""

import asyncio
import math
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.engines.buckets import ALIGNED, Bucket, Named, packed, received, ship, shipped, unpacked
from windrow.engines.torch.weights import checksum, checksum_of
from windrow.errors import ConfigError, EngineError, InternalError
from windrow.tiny import tiny_model
from windrow.train.weights import SharedWeights
from windrow.types import but

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def made(place: int, shape: tuple[int, ...], dtype: torch.dtype, names: int) -> Named:
    torch.manual_seed(place)
    tensor = (100 * torch.randn(shape)).to(dtype)
    return tuple(f"layer.{place}.{name}" for name in range(names)), tensor


@st.composite
def weights(draw: Any) -> list[Named]:
    """Of all kinds and sizes: scalars, empty ones, such that no two fit into a bucket, under one name or more."""
    shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
    kinds = st.tuples(shapes, st.sampled_from(DTYPES), st.integers(1, 3))
    return [made(place, *kind) for place, kind in enumerate(draw(st.lists(kinds, max_size=8)))]


@given(weights(), st.integers(1, 2000))
def test_what_is_packed_is_what_is_unpacked(tensors: list[Named], limit: int):
    buckets = list(packed(tensors, limit))
    found = unpacked(buckets, [name for names, _ in tensors for name in names])
    for names, tensor in tensors:
        for name in names:
            assert found[name] is found[names[0]]
        again = found[names[0]]
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(again.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


@given(weights(), st.integers(1, 2000))
def test_buckets_keep_to_their_limit_and_are_not_made_in_vain(tensors: list[Named], limit: int):
    buckets = list(packed(tensors, limit))
    assert [bucket.number for bucket in buckets] == [*range(len(buckets))]
    for bucket in buckets:
        assert len(bucket.data) <= limit or len(bucket.entries) == 1
        assert all(entry.offset % ALIGNED == 0 for entry in bucket.entries)
    for one, other in pairwise(buckets):
        next_one = other.entries[0].nbytes
        assert math.ceil(len(one.data) / ALIGNED) * ALIGNED + next_one > limit


def test_tensors_are_views_of_their_bucket():
    (bucket,) = packed([(("a",), torch.arange(4.0)), (("b",), torch.arange(3).bfloat16())])
    found = unpacked([bucket])
    bucket.data[:] = 0  # what nobody but a test does
    assert found["a"].tolist() == [0.0] * 4
    assert found["b"].tolist() == [0.0] * 3


def test_what_cannot_be_written_to_is_read_without_a_word():
    (bucket,) = packed([(("a",), torch.arange(4.0))])
    frozen = bucket.data.copy()
    frozen.setflags(write=False)
    tensor = unpacked([but(bucket, data=frozen)])["a"]
    del frozen, bucket
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


@given(st.data())
def test_a_damaged_byte_is_found_and_its_bucket_named(data: st.DataObject):
    buckets = list(packed([made(place, (5, 3), torch.float32, 1) for place in range(6)], 150))
    assert len(buckets) == 3
    number = data.draw(st.integers(0, 2))
    bad = buckets[number].data.copy()
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    buckets[number] = but(buckets[number], data=bad)
    with pytest.raises(EngineError, match=rf"bucket {number} \(layer\.{2 * number}\.0 and 1 more\) was damaged"):
        unpacked(buckets)


def test_names_are_there_once_and_all_of_them():
    twice: list[Named] = [(("a",), torch.ones(1)), (("b", "a"), torch.ones(1))]
    with pytest.raises(EngineError, match=r"the names \('b', 'a'\), of which \['a'\] were there before"):
        list(packed(twice))
    one, two = packed([(("a",), torch.ones(1)), (("b",), torch.ones(1))], 4)
    with pytest.raises(EngineError, match=r"were there before"):
        unpacked([one, one])
    with pytest.raises(EngineError, match=r"lack \['b'\] and have \[\]"):
        unpacked([one], ["a", "b"])
    with pytest.raises(EngineError, match=r"lack \[\] and have \['b'\]"):
        unpacked([one, two], ["a"])
    with pytest.raises(ConfigError, match=r"limit_bytes=0"):
        list(packed([], 0))


class Held:
    """A stream of tensors that knows how many bytes of it are alive."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.alive: set[int] = set()
        self.most = 0

    def __iter__(self):
        for place in range(self.count):
            tensor = torch.full((10,), float(place))
            self.alive.add(place)
            weakref.finalize(tensor, self.alive.discard, place)
            self.most = max(self.most, len(self.alive))
            yield (f"t{place:02}",), tensor
            del tensor


def test_whoever_packs_holds_one_tensor_at_a_time():
    held = Held(20)
    assert len(list(packed(held, 200))) == 7
    assert held.most == 1


def kept(buckets: list[Bucket]) -> Any:
    """Puts buckets into a list, where they are found by their number."""

    def put(bucket: Bucket) -> int:
        buckets.append(bucket)
        return bucket.number

    return put


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_travels_with_the_checksum_that_an_engine_confirms(dtype: torch.dtype):
    model, other = tiny_model(seed=1), tiny_model(seed=2)
    for each in (model, other):
        torch.nn.Module.to(each, dtype)
    buckets: list[Bucket] = []
    stream = sorted(((name,), tensor) for name, tensor in model.state_dict().items())
    sent = shipped(3, packed(stream, 10_000), kept(buckets))
    assert len(buckets) > 2
    assert sent.places == tuple(range(len(buckets)))
    found = unpacked(buckets, sent.manifest)
    assert sent.checksum == checksum(model) == checksum_of(found)
    assert sent.nbytes == sum(tensor.nbytes for tensor in model.state_dict().values())
    other.load_state_dict(found)
    assert checksum(other) == sent.checksum


def test_a_checksum_that_would_depend_on_the_order_is_refused():
    with pytest.raises(InternalError, match=r"needs them in order"):
        shipped(1, packed([(("b",), torch.ones(1)), (("a",), torch.ones(1))]), kept([]))


class Reader:
    """Receives weights, in a process of its own."""

    async def checksum(self, shipment: Any) -> tuple[str, int]:
        found = await received(shipment)
        return checksum_of(found), len({tensor.data_ptr() for tensor in found.values()})


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_two_processes_receive_the_same_weights(tmp_path: Path):
    from windrow.cluster.ray.hosts import start

    model = tiny_model(seed=1).bfloat16()
    state: dict[str, Tensor] = {**model.state_dict(), "tied": model.state_dict()["lm_head.weight"]}

    async def play() -> None:
        hosts = [start(f"reader-{place}") for place in range(2)]
        try:
            with SharedWeights(tmp_path) as folder:
                wrote = folder.pack(2, model)
                assert isinstance(wrote.weights, Path)
                sent = [ship(1, state, 5000), ship(2, wrote.weights)]
            assert (sent[0].checksum, sent[1].checksum) == (checksum_of(state), wrote.checksum)
            assert len(sent[0].places) > 2
            for host in hosts:
                await host.attach("reader", Reader)
                for shipment in sent:
                    word, pieces = await host.call("reader.checksum", shipment)
                    assert (word, pieces) == (shipment.checksum, len(model.state_dict()))
        finally:
            for host in hosts:
                host.kill()

    asyncio.run(play())


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_weights_that_are_gone_are_said_to_be():
    from windrow.cluster.ray.hosts import start

    async def play() -> None:
        owner = start("owner")
        await owner.attach("owner", Owner)
        shipment = await owner.call("owner.ship")
        assert torch.equal((await received(shipment))["a"], torch.ones(200_000))
        owner.kill()
        with pytest.raises(EngineError, match=r"weights of version 4 cannot be fetched: .*; pack them again"):
            await until_gone(shipment)

    asyncio.run(play())


class Owner:
    """Puts weights where others find them."""

    def ship(self) -> Any:
        return ship(4, {"a": torch.ones(200_000)})


async def until_gone(shipment: Any) -> None:
    """The cluster needs a moment to notice that nobody owns them any more."""
    while True:
        await received(shipment)
