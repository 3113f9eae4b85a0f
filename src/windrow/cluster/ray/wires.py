"""Wires: what passes between two hosts all the time, and would cost a call of Ray each time.

A call of Ray takes both sides about a millisecond of their processors, whatever it carries. A wire is a connection
between the two processes, on which a message takes a small part of that.

Promises
- Messages arrive whole and in order. Nothing here waits: what cannot be sent at once is sent as soon as there is room.
- Whoever connects has to know the key, which travels through Ray; nothing that a stranger says is taken for a message.
- The end of a wire is told once, with the reason, to the side that did not close it.

What it does not do: it does not find out that a machine has vanished without a word. Whoever holds a wire watches the
host at its other end too.
"""

import asyncio
import pickle
import secrets
import socket
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from typing import Any, Protocol

from windrow.errors import HostLost, blame
from windrow.isolation.messages import HEAD, MARK
from windrow.isolation.wire import Wire as Frames
from windrow.types import Value

CONNECT_S = 10.0
"""How long somebody may take to pick up."""
KEY_BYTES = 32


class Address(Value, frozen=True):
    """Where somebody listens, and what has to be said there first."""

    host: str
    port: int
    key: bytes

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Wire(Protocol):
    """One end, for whoever says something."""

    def send(self, message: object) -> None:
        """Say something that can be pickled; if nobody is there any more, that is told as the end."""

    def close(self) -> None:
        """Hang up; nothing more is told."""


class Party(Protocol):
    """Whoever is at one end of a wire."""

    def take(self, message: Any, /) -> None:  # noqa: ANN401 -- whatever the other one says
        """The other side said something."""

    def end(self, why: str, /) -> None:
        """The other side is gone."""


Meet = Callable[[Wire], Party]
"""Finds somebody for a wire that has come in."""


class Listener:
    """Where wires come in."""

    def __init__(self, meet: Meet, host: str) -> None:
        self._meet = meet
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.settimeout(0)
        self._cables: set[Cable] = set()  # all and only those that came in and have not ended
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes(KEY_BYTES))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Hang up everywhere, and let nobody in any more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for cable in [*self._cables]:
            cable.close()
        self._cables.clear()

    def _accept(self) -> None:
        try:
            taken, _ = self._socket.accept()
        except OSError:  # whoever it was has gone again
            return
        cable = Cable(taken, partial(_Greeted, self._meet, self.address.key))
        cable.when_over = partial(self._cables.discard, cable)
        self._cables.add(cable)


class Cable:
    """One end of a connection."""

    def __init__(self, sock: socket.socket, meet: Meet) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.when_over: Callable[[], None] = _nothing
        self.party = meet(self)
        self._frames = Frames(sock, self._hear, self._end)

    def send(self, message: object) -> None:
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, data: bytes) -> None:
        """The same, for what is no message yet."""
        self._frames.send(HEAD.pack(MARK, len(data)) + data)

    def close(self) -> None:
        self._frames.close()
        self.when_over()

    def _hear(self, data: bytes) -> None:
        if isinstance(self.party, _Greeted):
            if not self.party.let_in(self, data):
                self.close()
            return
        try:
            with blame(HostLost, "it said something that cannot be read"):
                message = pickle.loads(data)  # noqa: S301 -- of whoever knows the key
        except HostLost as error:
            self.close()
            self._end(str(error))
        else:
            self.party.take(message)

    def _end(self, why: str) -> None:
        self.when_over()
        self.party.end(why)


class _Greeted:
    """Stands at the end of a wire until the other side has said the key."""

    def __init__(self, meet: Meet, key: bytes, _: Wire) -> None:
        self._meet = meet
        self._key = key

    def let_in(self, cable: Cable, data: bytes) -> bool:
        """Leave one's place to whoever the wire is for, if this is the key."""
        is_known = compare_digest(data, self._key)
        if is_known:
            cable.party = self._meet(cable)
        return is_known

    def take(self, _: object) -> None:
        """Strangers are not listened to."""

    def end(self, _: str) -> None:
        """Nor missed."""


def listen(meet: Meet, host: str) -> Listener:
    """Let wires come in at an address of this machine."""
    return Listener(meet, host)


async def connect(address: Address, party: Party) -> Wire:
    """A wire to whoever listens there; raises OSError if nobody does."""
    dial = partial(socket.create_connection, (address.host, address.port), CONNECT_S)
    sock = await asyncio.get_running_loop().run_in_executor(None, dial)
    cable = Cable(sock, lambda _: party)
    cable.send_bytes(address.key)
    return cable


def _nothing() -> None:
    """Nobody keeps a list."""
