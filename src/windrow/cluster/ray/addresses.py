"""Where a Ray cluster is, and whether one answers there.

Promises: an answer within bounded time, whatever listens at the address: Ray itself would try for many minutes. It is
asked by a process of its own, which can be ended, and nothing is joined or started.
"""

import os
import subprocess
import sys
from socket import create_connection

from windrow.errors import ConfigError

AUTO = "auto"
"""The cluster of this machine."""
KNOCK_S = 5.0
"""How long a machine may take to accept a connection."""
ANSWER_S = 20.0
"""How long Ray may take to answer, the start of the process that asks included: some seconds on a busy machine."""
ASKING = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
try:
    address = canonicalize_bootstrap_address(sys.argv[1])
    if address is None:
        sys.exit("RAY_ADDRESS is local, where nobody else can be joined; unset it")
    GcsClient(address=address)
except (OSError, RuntimeError, ValueError) as error:
    sys.exit(str(error))
print(address)
"""
"""What that process does; Ray has no public name for its own health check."""


def knock(address: str) -> str:
    """The host and the port at which a Ray cluster answers; a ConnectionError or a TimeoutError if none does."""
    if address != AUTO:
        host, port = _parted(address)
        with create_connection((host, port), timeout=KNOCK_S):
            pass
    try:
        done = subprocess.run(  # noqa: S603 -- our own text; the address is an argument of it
            [sys.executable, "-P", "-c", ASKING, address],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        named = _named(address)
        raise TimeoutError(f"whatever listens at {named} has not answered like Ray within {ANSWER_S:g} s") from error
    if done.returncode:
        raise ConnectionError(_last_line(done.stderr))
    return done.stdout.splitlines()[-1]


def _parted(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"the address of a Ray cluster is auto or HOST:PORT, as ray start --head shows it; got {address!r}"
        )
    return host.strip("[]"), int(port)


def _named(address: str) -> str:
    """An address as people know it: auto may mean what stands in the environment."""
    given = os.environ.get("RAY_ADDRESS")
    return f"{address} (RAY_ADDRESS is {given!r})" if address == AUTO and given else address


def _last_line(text: str) -> str:
    """What was said last, which is why it ended."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
