"""Ways to reach an MCP server, as values that travel, and the last words of a program.

Promises: what is entered is left by the stack that it was entered on. A program's complaints go nowhere but here, and
only their end is kept.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from windrow.types import Value

if TYPE_CHECKING:
    from mcp import Client

KEPT = 2_000
"""Bytes of a program's last words."""
CONNECT_S, READ_S = 30.0, 300.0
"""How long HTTP may take where no deadline is nearer."""


class Tail:
    """The end of what a program writes to its standard error."""

    def __init__(self) -> None:
        self._kept = b""
        self._read = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> int:
        """Where to write; whoever asked closes it when the program has it."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._take)
        return write

    def words(self) -> str:
        """The end of a message: what it said last."""
        self._take()
        last = self._kept.decode("utf-8", "replace").strip()
        return f"; it said last: {last}" if last else ""

    def close(self) -> None:
        """Take what is left and stop listening."""
        self._take()
        self._forget()

    def _take(self) -> None:
        try:
            while self._read >= 0:
                new = os.read(self._read, 65_536)
                self._kept = (self._kept + new)[-KEPT:]
                if not new:
                    self._forget()
        except BlockingIOError:
            return

    def _forget(self) -> None:
        if self._read >= 0 and self._loop is not None:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1


class Stdio(Value, frozen=True, gc=True):
    """A program that is started, and speaks over its input and output."""

    command: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None

    def __str__(self) -> str:
        return repr(" ".join([self.command, *self.args]))

    async def connect(self, stack: AsyncExitStack, tail: Tail) -> "Client":
        """Start it and say hello."""
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        given = StdioServerParameters(command=self.command, args=[*self.args], env=self.env, cwd=self.cwd)
        errors = stack.enter_context(os.fdopen(tail.open(), "w"))
        return await stack.enter_async_context(Client(stdio_client(given, errors)))


class Http(Value, frozen=True, gc=True):
    """A server that is there already."""

    url: str
    headers: dict[str, str]

    def __str__(self) -> str:
        return repr(self.url)

    async def connect(self, stack: AsyncExitStack, tail: Tail) -> "Client":  # noqa: ARG002 -- its words are its own
        """Say hello."""
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=self.headers, timeout=timeout))
        return await stack.enter_async_context(Client(streamable_http_client(self.url, http_client=http)))
