"""Engines in hosts: the same promises, with requests and tokens carried in bulk.

```
whoever plays, in its process                  host of an engine
generate() ─┐                               ┌─ Engine.generate()
generate() ─┼─ Line ── submit, in bulk ───► Switchboard ─┼─ Engine.generate()
generate() ─┘       ◄── listen, in bulk ──┘ └─ Engine.generate()
```

Promises: a turn costs less than one call when several happen at once, and one call and one answer when it is alone.
Orders (suspend, load, release, …) do not wait behind requests. When the host is gone every request of it ends with
`EngineLost`. When a client is gone its requests are withdrawn.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

from windrow.cluster.ray.hosts import Remote
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
LISTEN_S = 15.0
"""How long a client waits for news before it says again that it is there."""


class Heard(Value, frozen=True):
    """What an engine has to say to one request."""

    request: str
    chunk: Chunk | None = None
    error: WindrowError | None = None
    is_last: bool = False
    """Nothing comes after it."""


class Client(Record, gc=True):
    """Somebody who sends requests."""

    wake: asyncio.Event
    outbox: list[Heard] = []
    running: dict[str, "asyncio.Task[None] | None"] = {}
    """All and only the requests that the engine has from it."""

    def say(self, heard: Heard) -> None:
        self.outbox.append(heard)
        self.wake.set()


class Switchboard:
    """In the host: gives requests to the engine, and keeps what it says until it is fetched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clients: dict[str, Client] = {}
        self._crew = Crew(f"switchboard of {engine.name}", _ignored)

    async def start(self) -> tuple[Acknowledgement, Traits]:
        """Start the engine; what it has and what it is."""
        self._crew.start(asyncio.sleep(0), "beginning")
        said = await self._engine.start()
        return said, self._engine.traits

    async def submit(self, client: str, requests: Sequence[Request], withdrawn: Sequence[str]) -> None:
        """New requests of a client, and those that it does not want any more."""
        theirs = self._clients.setdefault(client, Client(asyncio.Event()))
        for name in withdrawn:
            task = theirs.running.get(name)
            if task is not None:
                task.cancel()
        for place, request in enumerate(requests, start=1):
            self._crew.spawn(self._answer(theirs, request), f"answer to {request.id}")
            if place % AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def listen(self, client: str) -> list[Heard]:
        """What there is for a client; waits for something, but not for ever."""
        theirs = self._clients.setdefault(client, Client(asyncio.Event()))
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                await theirs.wake.wait()
        theirs.wake.clear()
        heard, theirs.outbox = theirs.outbox, []
        return heard

    async def forget(self, client: str) -> None:
        """A client is gone."""
        theirs = self._clients.pop(client, None)
        for task in [] if theirs is None else [*theirs.running.values()]:
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """End everything."""
        await self._engine.close()
        await self._crew.stop(LISTEN_S)

    async def _answer(self, client: Client, request: Request) -> None:
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
            del client.running[request.id]

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


class Flow(Record, gc=True):
    """What has come for one request."""

    wake: asyncio.Event
    heard: list[Heard] = []


class Line:
    """In the process of whoever plays: the way to one engine."""

    def __init__(self, remote: Remote, client: str) -> None:
        self.lost = ""  # why the engine is gone
        self._remote = remote
        self._client = client
        self._flows: dict[str, Flow] = {}  # all and only the requests that are under way
        self._some_flows = asyncio.Event()
        self._requests: list[Request] = []
        self._withdrawn: list[str] = []
        self._to_send = asyncio.Event()

    async def run(self) -> None:
        """Carry requests there and tokens back, until it is cancelled or the engine is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(), name=f"requests to {self._remote.name}")
                group.create_task(self._hear(), name=f"tokens of {self._remote.name}")
        except* HostLost as errors:
            self.lost = str(errors.exceptions[0])
            for flow in self._flows.values():
                flow.wake.set()

    @asynccontextmanager
    async def ask(self, request: Request) -> AsyncIterator[Flow]:
        """What comes for a request; it is withdrawn at the end."""
        flow = self._flows[request.id] = Flow(asyncio.Event())
        self._some_flows.set()
        self._requests.append(request)
        self._to_send.set()
        try:
            yield flow
        finally:
            del self._flows[request.id]
            if not flow.heard or not flow.heard[-1].is_last:
                self._withdrawn.append(request.id)
                self._to_send.set()

    async def _send(self) -> None:
        """Send what was asked for.

        consumes      requests, and those that are not wanted any more
        waits for     the engine's host to have taken the last ones
        unblocked by  a request, the host's death
        """
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            requests, self._requests = self._requests, []
            withdrawn, self._withdrawn = self._withdrawn, []
            unsent = {request.id for request in requests} & {*withdrawn}
            requests = [request for request in requests if request.id not in unsent]
            await self._remote.call(f"{BOARD}.submit", self._client, requests, withdrawn)

    async def _hear(self) -> None:
        """Take in what engines say.

        consumes      tokens, in bulk
        waits for     some, while a request is under way
        unblocked by  the engine, the host's death
        """
        while True:
            if not self._flows:
                self._some_flows.clear()
                await self._some_flows.wait()
            for heard in await self._remote.call(f"{BOARD}.listen", self._client):
                flow = self._flows.get(heard.request)
                if flow is not None:
                    flow.heard.append(heard)
                    flow.wake.set()


class RayEngine:
    """An engine in a host."""

    def __init__(self, name: str, remote: Remote, traits: Traits | None = None, client: str = "") -> None:
        """`client` names whoever sends requests from this process; empty: nobody does."""
        self.name = name
        self.remote = remote
        self.line = Line(remote, client) if client else None
        self._traits = traits

    @property
    def traits(self) -> Traits:
        if self._traits is None:
            raise InternalError(f"engine {self.name} has not been started, so nobody knows what it is")
        return self._traits

    async def start(self) -> Acknowledgement:
        """Start it, with a switchboard in front."""
        with _as_lost(self.name):
            await self.remote.attach_beside(BOARD, ENGINE, Switchboard)
            said: tuple[Acknowledgement, Traits] = await self.remote.control(f"{BOARD}.start")
        self._traits = said[1]
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
