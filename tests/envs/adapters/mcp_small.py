"""A server over stdio in a few lines, which starts in no time and misbehaves as it is told to."""

import json
import os
import signal
import sys
import time
from typing import Any

MANNER = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = ("count", "die", "deaf", "odd", "pid")


def answer(method: str, params: dict[str, Any], state: dict[str, int]) -> dict[str, Any] | None:
    if method == "initialize":
        told = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        return told | {"serverInfo": {"name": "small", "version": "1"}}
    if method == "tools/list":
        page = int(params.get("cursor") or 0)
        listed = {"tools": [{"name": TOOLS[page % len(TOOLS)], "inputSchema": {"type": "object"}}]}
        return listed | ({"nextCursor": str(page + 1)} if page + 1 < len(TOOLS) or MANNER == "endless" else {})
    if method == "tools/call":
        return {"content": call(params["name"], state)}
    return None


def call(name: str, state: dict[str, int]) -> list[dict[str, Any]]:
    if name == "die":
        sys.stderr.write("x" * 100_000 + "\nout of luck\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "deaf":
        time.sleep(3600)
    if name == "odd":
        return [{"type": "image", "data": "", "mimeType": "image/png"}, {"type": "text", "text": "and words"}]
    if name == "pid":
        return [{"type": "text", "text": str(os.getpid())}]
    state["count"] += 1
    return [{"type": "text", "text": str(state["count"])}]


def serve() -> None:
    state = {"count": 0}
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        said = answer(asked["method"], asked.get("params") or {}, state)
        reply = {"jsonrpc": "2.0", "id": asked["id"]}
        reply |= {"error": {"code": -32601, "message": "unknown"}} if said is None else {"result": said}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if MANNER == "broken":
        sys.exit("cannot work like this")
    if MANNER == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MANNER in {"silent", "stubborn"}:
        sys.stderr.write(f"{os.getpid()}\n")
        sys.stderr.flush()
        while True:
            time.sleep(3600)
    serve()
