"""The tools of MCP servers, through the official SDK: a program of one's own over stdio, or any server over HTTP.

Promises: a session is opened when an episode starts and closed with it, or shared by all episodes on an event loop; the
program of a stdio server is gone when its session is closed, also if the opening was cut off. A call ends by the
deadline of the step that makes it. A server that is gone is the environment's fault, named with its last words; an
error that a server answers is told to the policy.

The SDK wants a session left by the task that entered it, while an environment is called from many: so one task holds
the session for as long as it lives.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from windrow.envs.protocol import deadline
from windrow.envs.tools.lines import Http, Stdio, Tail
from windrow.errors import ConfigError, EnvError, blame
from windrow.text import Tool

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

PAGES = 100
"""A list of tools that goes on for longer never ends."""


def mcp_stdio(
    command: str,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    prefix: str = "",
    shared: bool = False,
) -> "McpServer":
    """The tools of a program that speaks MCP over its input and output.

    It gets a small environment of harmless variables and those of `env`. `prefix` is put before the names of its tools.
    With `shared` one program serves all episodes on an event loop, instead of one each.
    """
    return McpServer(Stdio(command, tuple(args), dict(env or {}), cwd), prefix, shared=shared)


def mcp_http(
    url: str, *, headers: Mapping[str, str] | None = None, prefix: str = "", shared: bool = False
) -> "McpServer":
    """The tools of a server that speaks MCP over streamable HTTP; a session each, or a shared one."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"mcp_http({url!r}) needs an address that begins with http:// or https://")
    return McpServer(Http(url, dict(headers or {})), prefix, shared=shared)


class McpServer:
    """A server whose tools can be offered."""

    def __init__(self, line: Stdio | Http, prefix: str = "", *, shared: bool = False) -> None:
        self._line = line
        self._prefix = prefix
        self._is_shared = shared
        self._shared: WeakKeyDictionary[asyncio.AbstractEventLoop, Session] = WeakKeyDictionary()

    def __reduce__(self) -> "tuple[Any, ...]":
        return _again, (self._line, self._prefix, self._is_shared)  # open sessions do not travel

    def session(self) -> "Session | Share":
        """One for an episode, not yet open."""
        if not self._is_shared:
            return Session(self._line, self._prefix)
        loop = asyncio.get_running_loop()
        found = self._shared.get(loop)
        if found is None or found.is_over:
            found = self._shared[loop] = Session(self._line, self._prefix)
        return Share(found)

    async def close(self) -> None:
        """Close what is shared on this event loop; otherwise it lives until the loop ends."""
        found = self._shared.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()


class Session:
    """One connection to a server, held by a task of its own."""

    def __init__(self, line: Stdio | Http, prefix: str) -> None:
        self.name = f"mcp server {line}"
        self._line = line
        self._prefix = prefix
        self._tail = Tail()
        self._client: Client | None = None
        self._tools: list[RemoteTool] = []
        self._ready = asyncio.Event()
        self._leave = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """It was left, or never came to be."""
        return self._leave.is_set() or (self._holder is not None and self._holder.done())

    async def open(self) -> "Sequence[RemoteTool]":
        """Connect, unless it is connected; gives the tools. Whoever opens it closes it, even if this fails."""
        if self._holder is None:
            self._holder = asyncio.get_running_loop().create_task(self._hold(), name=self.name)
            self._holder.add_done_callback(self._over)
        with blame(EnvError, self.name, "start"):
            async with asyncio.timeout_at(deadline()):
                await self._ready.wait()
        if self._client is None:
            self._complain("did not start")
        return self._tools

    async def close(self) -> None:
        """Leave the server; a program that was started for it is gone afterwards."""
        self._leave.set()
        holder = self._holder
        if holder is None or holder.done():
            return
        if self._client is None:
            holder.cancel()  # it may wait for a server that never answers
        await asyncio.wait({holder})

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """What a tool answers."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None or self.is_over:
            raise EnvError(f"{self.name} was asked for {tool} and is closed")
        try:
            with blame(EnvError, self.name, "tool", tool):
                async with asyncio.timeout_at(deadline()):
                    return _text(await self._client.call_tool(tool, arguments))
        except EnvError as error:
            cause = error.__cause__
            if not isinstance(cause, MCPError):
                raise
            if cause.code == CONNECTION_CLOSED:
                self._leave.set()  # nobody else shall be given it
                raise EnvError(f"{self.name} is gone{self._tail.words()}") from cause
            return f"error: {cause.message}"

    async def _hold(self) -> None:
        """Enter the session, wait until it is to be left, leave it: all in one task."""
        if "mcp" not in sys.modules:
            await asyncio.to_thread(import_module, "mcp")  # it takes a second
        async with AsyncExitStack() as stack:
            client = await self._line.connect(stack, self._tail)
            self._tools = [RemoteTool(self, self._prefix, each) for each in await _listed(client)]
            self._client = client
            self._ready.set()
            await self._leave.wait()

    def _over(self, holder: "asyncio.Task[None]") -> None:
        self._ready.set()  # whoever waits for it looks at what became of it
        if not holder.cancelled():
            holder.exception()  # seen, so that asyncio does not complain
        self._tail.close()

    def _complain(self, what: str) -> None:
        holder = self._holder
        error = None if holder is None or not holder.done() or holder.cancelled() else holder.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ImportError):
            raise ConfigError(f"{self.name} needs the package mcp: {error}; install windrow[mcp]") from error
        if isinstance(error, OSError) and isinstance(self._line, Stdio) and not self._tail.words():
            raise ConfigError(f"{self.name} cannot be started: {error}") from error
        why = f": {type(error).__name__}: {error}" if error is not None else ": it was closed"
        raise EnvError(f"{self.name} {what}{why}{self._tail.words()}") from error


class Share:
    """A session that others use as well."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def open(self) -> "Sequence[RemoteTool]":
        return await self._session.open()

    async def close(self) -> None:
        """Nothing: it is not one's own."""


class RemoteTool:
    """A tool of a server."""

    def __init__(self, session: Session, prefix: str, listed: Any) -> None:  # noqa: ANN401 -- mcp.types.Tool
        self._session = session
        self._tool: str = listed.name
        self.name = prefix + self._tool
        about = {"name": self.name, "description": listed.description or "", "parameters": listed.input_schema}
        self.schema: Tool = {"type": "function", "function": about}

    async def call(self, arguments: Mapping[str, Any]) -> str:
        return await self._session.call(self._tool, dict(arguments))


def _again(line: Stdio | Http, prefix: str, shared: bool) -> McpServer:  # noqa: FBT001 -- pickle calls it
    """A server in another process, which imports what is slow once for all episodes there."""
    with suppress(ImportError):  # told when it is opened
        import_module("mcp")
    return McpServer(line, prefix, shared=shared)


async def _listed(client: "Client") -> list[Any]:
    """All tools of a server, page by page."""
    listed: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        listed.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return listed
    raise EnvError(f"the list of its tools has more than {PAGES} pages")


def _text(result: "CallToolResult") -> str:
    """What a tool answered, as text; what is none is named."""
    from mcp.types import EmbeddedResource, TextContent, TextResourceContents

    parts: list[str] = []
    for block in result.content:
        match block:
            case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
                parts.append(text)
            case _:
                parts.append(f"({block.type})")
    said = "\n".join(parts)
    return f"error: {said}" if result.is_error else said
