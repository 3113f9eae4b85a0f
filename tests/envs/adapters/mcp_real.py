"""A server with a few tools, made with the official SDK: over stdio, or over HTTP on a port."""

import os
import sys

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def refuse(why: str) -> str:
    """Raise an error."""
    raise ValueError(why)


@server.tool()
async def wait() -> str:
    """Never answer."""
    await anyio.sleep_forever()
    return ""


@server.tool()
def variable(name: str) -> str:
    """Look at the environment."""
    return os.environ.get(name, "")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
