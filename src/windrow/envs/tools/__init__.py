"""Tools that a policy can call: Python functions and MCP servers, around any environment.

`functions` makes a tool of a function, `servers` of what a server has (`lines` reach it), `calls` reads what a policy
wrote, `toolbox` carries calls out, `offering` puts all of it around an environment.
"""

from windrow.envs.tools.calls import Call, Unreadable, find_calls, write_call
from windrow.envs.tools.functions import ToolFunction, as_tool
from windrow.envs.tools.offering import with_tools
from windrow.envs.tools.servers import McpServer, mcp_http, mcp_stdio

__all__ = [
    "Call", "McpServer", "ToolFunction", "Unreadable", "as_tool", "find_calls", "mcp_http", "mcp_stdio", "with_tools",
    "write_call",
]  # fmt: skip
