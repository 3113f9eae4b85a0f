"""Wires carry messages whole and in order, to those who know the key, and tell of their end."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

from windrow.cluster.ray.wires import KEY_BYTES, Address, Listener, Wire, connect, listen

HERE = "127.0.0.1"
SAFETY_S = 60.0


class Ear:
    """Whoever is at an end, and remembers."""

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire = wire
        self.heard: list[Any] = []
        self.ended: list[str] = []
        self._news = asyncio.Event()

    def take(self, message: Any) -> None:
        self.heard.append(message)
        self._news.set()

    def end(self, why: str) -> None:
        self.ended.append(why)
        self._news.set()

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(SAFETY_S):
            while not happened():
                self._news.clear()
                await self._news.wait()


class Room:
    """Somebody who listens, and all who came in."""

    def __init__(self) -> None:
        self.ears: list[Ear] = []
        self._came = asyncio.Event()
        self.listener: Listener = listen(self._meet, HERE)

    def _meet(self, wire: Wire) -> Ear:
        self.ears.append(Ear(wire))
        self._came.set()
        return self.ears[-1]

    async def guest(self) -> Ear:
        async with asyncio.timeout(SAFETY_S):
            await self._came.wait()
        return self.ears[-1]


def played(scene: Callable[[Room], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(_with_a_room(scene))

    test.__name__ = scene.__name__
    return test


async def _with_a_room(scene: Callable[[Room], Awaitable[None]]) -> None:
    room = Room()
    try:
        await scene(room)
    finally:
        room.listener.close()


@played
async def test_messages_arrive_whole_and_in_order_both_ways(room: Room):
    ours = Ear()
    wire = await connect(room.listener.address, ours)
    large = np.arange(2_000_000)  # more than any buffer takes at once
    for message in ("first", large, {"last": 3}):
        wire.send(message)
    theirs = await room.guest()
    await theirs.until(lambda: len(theirs.heard) == 3)
    assert theirs.heard[0] == "first"
    assert np.array_equal(theirs.heard[1], large)
    assert theirs.heard[2] == {"last": 3}
    assert theirs.wire is not None
    theirs.wire.send(["back"])
    await ours.until(lambda: bool(ours.heard))
    assert ours.heard == [["back"]]
    wire.close()


@played
async def test_the_end_is_told_once_to_the_other_side_alone(room: Room):
    ours = Ear()
    wire = await connect(room.listener.address, ours)
    theirs = await room.guest()
    wire.close()
    wire.close()
    wire.send("nobody hears it")
    await theirs.until(lambda: bool(theirs.ended))
    assert theirs.ended == ["it closed its connection"]
    assert ours.ended == theirs.heard == []


@played
async def test_whoever_stops_listening_hangs_up_everywhere_and_lets_nobody_in(room: Room):
    ours = Ear()
    await connect(room.listener.address, ours)
    await room.guest()
    room.listener.close()
    await ours.until(lambda: bool(ours.ended))
    with pytest.raises(OSError, match="refused"):
        await connect(room.listener.address, Ear())


@pytest.mark.parametrize("said", [b"x" * KEY_BYTES, b"", b"no frame at all, but long enough to be the head of one"])
def test_a_stranger_is_hung_up_on_and_nobody_meets_it(said: bytes):
    async def scene(room: Room) -> None:
        ours = Ear()
        address = room.listener.address
        if len(said) in {0, KEY_BYTES}:
            await connect(Address(address.host, address.port, said), ours)
            await ours.until(lambda: bool(ours.ended))
        else:
            await asyncio.to_thread(_hung_up_on, address, said)
        assert room.ears == []
        friend = await connect(address, Ear())
        await room.guest()
        friend.close()

    asyncio.run(_with_a_room(scene))


def _hung_up_on(address: Address, said: bytes) -> None:
    with socket.create_connection((address.host, address.port), SAFETY_S) as stranger:
        stranger.sendall(said)
        assert stranger.recv(1) == b""


@played
async def test_what_cannot_be_read_ends_the_wire_and_not_the_listener(room: Room):
    ours = Ear()
    wire: Any = await connect(room.listener.address, ours)
    theirs = await room.guest()
    wire.send_bytes(b"no pickle")
    await theirs.until(lambda: bool(theirs.ended))
    assert "cannot be read" in theirs.ended[0]
    await ours.until(lambda: bool(ours.ended))
    other = await connect(room.listener.address, Ear())
    other.close()
