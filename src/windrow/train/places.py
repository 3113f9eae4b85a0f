"""What is in a trainer's host on Ray: one object, and its place among the others.

Promises: it does one thing after the other, on the host's thread. Whatever is raised is told with its traceback, and
the host stays, because the others may be waiting for it. The first process opens a port at its node's address, where
the others find it, on whichever nodes they are.
"""

import fcntl
import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import ray
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from windrow.errors import ConfigError
from windrow.isolation.pickles import load
from windrow.train.messages import MADE, Raised
from windrow.train.ranks import failure, perform
from windrow.train.sharding import Shards
from windrow.types import Value

SIOCGIFADDR = 0x8915
"""Linux: the address of a network interface."""


class Address(Value, frozen=True):
    """Where the first process waits for the others."""

    host: str
    port: int


class Done(Value, frozen=True):
    """A process has done what it was asked for."""

    answer: Any
    """What it got; None if nobody asked for it."""


class Place:
    """One of the processes."""

    def __init__(self, rank: int, size: int, device: Literal["cpu", "cuda"], patience_s: float) -> None:
        self._rank = rank
        self._size = size
        self._device: Literal["cpu", "cuda"] = device
        self._patience = timedelta(seconds=patience_s)
        self._store: TCPStore | None = None
        self._object: object = None

    def open(self) -> Address:
        """First process: where the others find it."""
        host = _node()
        self._store = TCPStore(host, 0, self._size, True, self._patience, wait_for_workers=False)  # noqa: FBT003 -- torch names it is_master or isMaster
        return Address(host, self._store.port)

    def make(self, address: Address, make: bytes) -> Done | Raised:
        """Join the others and make the object."""
        return _tried(MADE, partial(self._make, address, make))

    def do(self, number: int, method: str, sent: tuple[Any], *, all_answer: bool) -> Done | Raised:
        """Call something; `sent` is where its arguments are."""
        return _tried(number, partial(self._do, method, sent, all_answer or self._rank == 0))

    def stack(self) -> str:
        """Where the host's thread is."""
        frames = sys._current_frames()  # noqa: SLF001 -- there is no other way to see what another thread does
        threads = [each for each in threading.enumerate() if each.name.startswith("windrow-work") and each.ident]
        stacks = [traceback.format_stack(frames[each.ident]) for each in threads if each.ident in frames]
        return "\n".join("".join(stack) for stack in stacks)

    def _make(self, address: Address, make: bytes) -> None:
        if self._device == "cuda":
            if not torch.cuda.is_available():
                raise ConfigError("it sees no GPU; give each trainer one with the option num_gpus=1 of Ray")
            torch.cuda.set_device(0)  # Ray shows a host only what it has been given
        _speak_from(_node())
        store = self._store or TCPStore(address.host, address.port, self._size, False, self._patience)  # noqa: FBT003 -- as above
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self._device == "cuda" else "gloo",
            store=store,
            rank=self._rank,
            world_size=self._size,
            timeout=self._patience,
        )
        self._object = load(make)(Shards(self._device))

    def _do(self, method: str, sent: tuple[Any], is_asked: bool) -> object:  # noqa: FBT001 -- private
        arguments, options = ray.get(sent[0])
        result = perform(self._object, method, arguments, options)
        return result if is_asked else None


def _tried(number: int, work: Callable[[], object]) -> Done | Raised:
    try:
        return Done(work())
    except BaseException as error:  # noqa: BLE001 -- it is told with its traceback
        return failure(number, error)


def _node() -> str:
    """The address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray has no types here


def _speak_from(address: str) -> None:
    """Have Gloo and NCCL use the network that the cluster uses; who set these keeps them."""
    name = _interface(address)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _interface(address: str) -> str:
    """The network interface that has an address; empty if nobody can say."""
    if sys.platform != "linux":
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
