"""The sandbox for whoever may not do everything: an ordinary user, and where there are no namespaces to be had."""

import subprocess
import sys

ORDINARY = 65534

SHOW = """
async def show(**settings):
    async with Sandbox(SandboxSettings(**settings)) as sandbox:
        ran = await sandbox.run(Program(source="import os, ssl; print(os.getuid())"))
        print(ran.level, ran.outcome, ran.stdout.strip() + ran.stderr.strip())
        ran = await sandbox.run(Program(source="import os\\nwhile True: os.fork()"))
        # its children complain too, into the same file, until they are ended with it
        print(ran.outcome, *(name for name in ("BlockingIOError", "PermissionError") if name in ran.stderr))
"""

BEGIN = """
import asyncio, os, sys
from windrow.sandbox import kernel
from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import Program, SandboxSettings
from windrow.errors import ConfigError
"""

AS_ORDINARY = f"""
def uncover(path):
    # an interpreter in a home that others may not enter is shown to them, in mounts that only this process sees
    top = "/" + path.strip("/").split("/")[0]
    held = os.open(path, os.O_PATH)
    kernel.mount("tmpfs", top, "tmpfs", 0, "mode=755")
    os.makedirs(path)
    kernel.mount(f"/proc/self/fd/{{held}}", path, "", kernel.MS_BIND | kernel.MS_REC)
    os.close(held)

if os.geteuid() == 0:
    kernel.call("unshare", kernel.CLONE_NEWNS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    if os.stat("/" + sys.base_prefix.strip("/").split("/")[0]).st_mode & 5 != 5:
        uncover(sys.base_prefix)
    kernel.become({ORDINARY})
"""


def said(script: str) -> list[str]:
    """What a script prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_ordinary_user_has_the_best_level_too():
    script = f"{BEGIN}{AS_ORDINARY}{SHOW}\nprint(os.geteuid() != 0)\nasyncio.run(show())"
    assert said(script) == ["True", "namespaces ok 1000", "error BlockingIOError"]


def test_an_ordinary_user_has_the_second_level_too():
    script = f"{BEGIN}{AS_ORDINARY}{SHOW}\nasyncio.run(show(at_most='landlock'))"
    lines = said(script)
    assert lines[0].startswith("landlock ok ")
    assert lines[1] == "error PermissionError"


NO_NAMESPACES = """
user, group = os.geteuid(), os.getegid()
proc = os.open("/proc", os.O_PATH)
kernel.call("unshare", kernel.CLONE_NEWUSER)
kernel.map_ids(proc, user, group, 0)  # root of a namespace in which there is nobody else to become
"""


def test_where_there_are_no_namespaces_the_next_level_is_taken():
    assert said(f"{BEGIN}{NO_NAMESPACES}{SHOW}\nasyncio.run(show())") == [
        "landlock ok 0",
        "error PermissionError",
    ]


def test_less_than_what_is_wanted_is_refused_with_what_is_missing():
    attempt = "try: asyncio.run(show(at_least='namespaces'))\nexcept ConfigError as error: print(error)"
    (line,) = said(f"{BEGIN}{NO_NAMESPACES}{SHOW}\n{attempt}")
    assert line.startswith("no sandbox of level namespaces or better here (namespaces: ")
    assert "root cannot become user 65534: Operation not permitted" in line
    assert line.endswith("; allow what is missing, or lower sandbox.at_least if the programs can be trusted")
