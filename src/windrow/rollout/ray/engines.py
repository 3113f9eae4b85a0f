"""Engines in hosts: the same promises, with requests and tokens carried by wire.

```
whoever plays, in its process                  host of an engine
generate() ─┐                                          ┌─ Engine.generate()
generate() ─┼─ Line ── requests, by wire ──► Switchboard ─┼─ Engine.generate()
generate() ─┘       ◄── tokens, by wire ───┘           └─ Engine.generate()
```

Promises: a turn is one message there and one back, or a part of one: whatever comes up in one moment goes together.
Orders (suspend, load, release, …) are calls of Ray and do not wait behind requests. A wire that breaks is mended, and
the requests that were on it go on from the last token that was heard. When the host is gone every request of it ends
with `EngineLost`. When a client is gone its requests are withdrawn.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

import numpy as np

from windrow.cluster.meeting import own_address
from windrow.cluster.ray.hosts import Remote
from windrow.cluster.ray.wires import Address, Listener, Wire, connect, listen
from windrow.engines.protocol import Acknowledgement, Engine, Health, LoadReport, Traits, Weights
from windrow.errors import EngineError, EngineLost, HostLost, InternalError, WindrowError, blame
from windrow.requests import Chunk, Request
from windrow.rollout.supervision import Crew, is_stray
from windrow.types import How, Record, Value

ENGINE = "worker"
"""Under which name a host holds its engine."""
BOARD = "board"
AT_A_TIME = 16
"""Requests that begin before others have a word: orders do not wait for all that came together."""
FORGET_S = 5.0
"""How long an engine may take to forget a client."""
CLOSE_S = 15.0
"""How long answers may take to end when their engine is closed."""
PAUSES_S = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Before each attempt to connect: a host that is gone is heard of meanwhile, one that is busy picks up later."""


class Heard(Value, frozen=True):
    """What an engine has to say to one request."""

    request: str
    chunk: Chunk | None = None
    error: WindrowError | None = None
    is_last: bool = False
    """Nothing comes after it."""


class Post(Value, frozen=True, gc=True):
    """What a client says."""

    client: str
    requests: list[Request]
    withdrawn: list[str]
    """Requests that it does not want any more."""


class Way(Value, frozen=True, gc=True):
    """What has to be known of an engine to send it requests."""

    traits: Traits
    address: Address


class Client:
    """In the host: somebody who sends requests."""

    def __init__(self, board: "Switchboard", wire: Wire) -> None:
        self.name = ""  # until it has said something
        self.running: dict[str, asyncio.Task[None] | None] = {}
        """All and only the requests that the engine has from it, or is about to have."""
        self._board = board
        self._wire = wire
        self._outbox: list[Heard] = []

    def take(self, post: Post) -> None:
        self.name = post.client
        for name in post.withdrawn:
            self._withdraw(name)
        if post.requests:
            self.running |= dict.fromkeys(request.id for request in post.requests)
            self._board.begin(self, post.requests)

    def end(self, _: str = "") -> None:
        """It is gone."""
        for name in [*self.running]:
            self._withdraw(name)
        self._board.clients.discard(self)

    def say(self, heard: Heard) -> None:
        """Say something, together with all that is said in this moment."""
        self._outbox.append(heard)
        if len(self._outbox) == 1:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        heard, self._outbox = self._outbox, []
        self._wire.send(heard)

    def _withdraw(self, name: str) -> None:
        task = self.running.pop(name, None)
        if task is not None:
            task.cancel()


class Switchboard:
    """In the host: gives requests to the engine, and says on what it says."""

    def __init__(self, engine: Engine) -> None:
        self.clients: set[Client] = set()  # all and only those with a wire
        self._engine = engine
        self._crew = Crew(f"switchboard of {engine.name}", _ignored)
        self._listener: Listener | None = None

    async def start(self) -> tuple[Acknowledgement, Way]:
        """Start the engine, and let clients in."""
        self._crew.start(asyncio.sleep(0), "beginning")
        said = await self._engine.start()
        self._listener = listen(self._meet, own_address("ray"))
        return said, Way(self._engine.traits, self._listener.address)

    def begin(self, client: Client, requests: Sequence[Request]) -> None:
        """Have requests answered."""
        self._crew.spawn(self._begin(client, requests), f"requests of {client.name}")

    async def forget(self, name: str) -> None:
        """A client is gone, though its wire may not have said so."""
        for client in [each for each in self.clients if each.name == name]:
            client.end()

    async def close(self) -> None:
        """End everything."""
        if self._listener is not None:
            self._listener.close()
        await self._engine.close()
        await self._crew.stop(CLOSE_S)

    def _meet(self, wire: Wire) -> Client:
        client = Client(self, wire)
        self.clients.add(client)
        return client

    async def _begin(self, client: Client, requests: Sequence[Request]) -> None:
        for place, request in enumerate(requests, start=1):
            if request.id in client.running:  # nobody has withdrawn it meanwhile
                self._crew.spawn(self._answer(client, request), f"answer to {request.id}")
            if place % AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def _answer(self, client: Client, request: Request) -> None:
        if request.id not in client.running:
            return
        client.running[request.id] = asyncio.current_task()
        try:
            with blame(EngineError, "engine", self._engine.name, "answers", request.id):
                client.say(Heard(request.id, await self._say_all(client, request), is_last=True))
        except WindrowError as error:
            client.say(Heard(request.id, error=error, is_last=True))
        except asyncio.CancelledError:
            if not is_stray():
                raise
            stray = EngineError(f"engine {self._engine.name} cancelled {request.id} from inside")
            client.say(Heard(request.id, error=stray, is_last=True))
        finally:
            client.running.pop(request.id, None)

    async def _say_all(self, client: Client, request: Request) -> Chunk | None:
        """Say on what the engine says; returns how it ends, if it ends as it should."""
        ending: Chunk | None = None
        async with aclosing(self._engine.generate(request)) as chunks:
            async for chunk in chunks:
                if ending is not None:  # it was not the end
                    client.say(Heard(request.id, ending))
                ending = chunk if chunk.finish is not None else None
                if ending is None:
                    client.say(Heard(request.id, chunk))
        return ending


INTERRUPTED = Chunk(token_ids=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), version=0, finish="interrupted")
"""The end of an answer whose rest is to be asked for again."""


class Flow(Record, gc=True):
    """What has come for one request."""

    wake: asyncio.Event
    heard: list[Heard] = []


class Line:
    """In the process of whoever plays: the way to one engine."""

    def __init__(self, remote: Remote, client: str, address: Address) -> None:
        self.lost = ""  # why the engine is gone
        self._remote = remote
        self._client = client
        self._address = address
        self._flows: dict[str, Flow] = {}  # all and only the requests that are under way
        self._requests: list[Request] = []  # that were not sent yet
        self._withdrawn: list[str] = []
        self._is_due = False  # what there is to send will be sent at the end of this moment
        self._wire: Wire | None = None
        self._broken = asyncio.Event()

    async def run(self) -> None:
        """Carry requests there and tokens back, until it is cancelled or the engine is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name=f"watch over {self._remote.name}")
                group.create_task(self._keep_up(), name=f"wire to {self._remote.name}")
        except* HostLost as errors:
            self.lost = str(errors.exceptions[0])
            for flow in self._flows.values():
                flow.wake.set()

    @asynccontextmanager
    async def ask(self, request: Request) -> AsyncIterator[Flow]:
        """What comes for a request; it is withdrawn at the end."""
        flow = self._flows[request.id] = Flow(asyncio.Event())
        self._requests.append(request)
        self._send_soon()
        try:
            yield flow
        finally:
            del self._flows[request.id]
            if not flow.heard or not flow.heard[-1].is_last:
                self._withdrawn.append(request.id)
                self._send_soon()

    def take(self, heard: Sequence[Heard]) -> None:
        """The engine said something."""
        for each in heard:
            flow = self._flows.get(each.request)
            if flow is not None:
                flow.heard.append(each)
                flow.wake.set()

    def end(self, _: str) -> None:
        """The wire broke."""
        self._broken.set()

    async def _watch(self) -> None:
        """Hear of the host's end, also when its node vanishes without a word.

        consumes      nothing
        waits for     the host
        unblocked by  its death
        """
        await self._remote.staying()

    async def _keep_up(self) -> None:
        """Have a wire to the engine.

        consumes      wires that broke
        waits for     the one that there is to break
        unblocked by  the other end
        """
        while True:
            self._broken.clear()
            self._wire = await self._connected()
            try:
                self._send()
                await self._broken.wait()
            finally:
                self._wire.close()
                self._wire = None
            self._interrupt()

    async def _connected(self) -> Wire:
        failed: OSError | None = None
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                return await connect(self._address, self)
            except OSError as error:
                failed = error
        raise HostLost(f"host {self._remote.name} does not answer at {self._address}: {failed}")

    def _interrupt(self) -> None:
        """Whatever was sent goes on from what was heard of it; whoever asked asks again for the rest."""
        self._requests = [request for request in self._requests if request.id not in self._withdrawn]
        unsent = {request.id for request in self._requests}
        self.take([Heard(name, INTERRUPTED, is_last=True) for name in self._flows if name not in unsent])
        self._withdrawn.clear()

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        if self._wire is None:
            return
        withdrawn, self._withdrawn = self._withdrawn, []
        given_up = {*withdrawn}
        requests = [each for each in self._requests if each.id not in given_up]
        self._requests = []
        if requests or withdrawn:
            self._wire.send(Post(self._client, requests, withdrawn))


class RayEngine:
    """An engine in a host."""

    def __init__(self, name: str, remote: Remote, way: Way | None = None, client: str = "") -> None:
        """`way` is known once it was started; `client` names whoever sends requests from this process, if anybody."""
        self.name = name
        self.remote = remote
        self.line = Line(remote, client, way.address) if client and way is not None else None
        self._way = way

    @property
    def way(self) -> Way:
        if self._way is None:
            raise InternalError(f"engine {self.name} has not been started, so nobody knows what it is")
        return self._way

    @property
    def traits(self) -> Traits:
        return self.way.traits

    async def start(self) -> Acknowledgement:
        """Start it, with a switchboard in front."""
        with _as_lost(self.name):
            await self.remote.attach_beside(BOARD, ENGINE, Switchboard)
            said: tuple[Acknowledgement, Way] = await self.remote.control(f"{BOARD}.start")
        self._way = said[1]
        return said[0]

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Answer a request."""
        line = self.line
        if line is None:
            raise InternalError(f"nobody sends requests to engine {self.name} from here")
        async with line.ask(request) as flow:
            read = 0
            while True:
                while read < len(flow.heard):
                    heard = flow.heard[read]
                    read += 1
                    if heard.error is not None:
                        raise heard.error
                    if heard.chunk is not None:
                        yield heard.chunk
                    if heard.is_last:
                        return
                if line.lost:
                    raise EngineLost(f"engine {self.name}: {line.lost}")
                flow.wake.clear()
                await flow.wake.wait()

    async def interrupt(self, requests: Sequence[str]) -> None:
        await self._order("interrupt", requests)

    async def suspend(self, how: How) -> None:
        await self._order("suspend", how)

    async def resume(self) -> None:
        await self._order("resume")

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        said: Acknowledgement = await self._order("load", version, weights)
        return said

    async def release(self) -> None:
        await self._order("release")

    async def restore(self) -> None:
        await self._order("restore")

    async def health(self) -> Health:
        said: Health = await self._order("health")
        return said

    async def load_report(self) -> LoadReport:
        said: LoadReport = await self._order("load_report")
        return said

    async def forget(self, client: str) -> None:
        """A client of it is gone; an engine that does not answer has nothing to forget for long."""
        with suppress(HostLost, TimeoutError):
            async with asyncio.timeout(FORGET_S):
                await self.remote.insist(f"{BOARD}.forget", client)

    async def close(self) -> None:
        with suppress(HostLost):  # what is gone is closed
            await self.remote.control(f"{BOARD}.close")

    async def _order(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 -- whatever it says
        with _as_lost(self.name):
            return await self.remote.insist(f"{ENGINE}.{method}", *arguments)


@contextmanager
def _as_lost(engine: str) -> Iterator[None]:
    try:
        yield
    except HostLost as error:
        raise EngineLost(f"engine {engine}: {error}") from error


def _ignored(_: BaseException) -> None:
    """Whoever asked for it was told."""
