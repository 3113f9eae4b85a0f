"""Whether an event loop keeps the time that everybody else has."""

import asyncio
import time

from windrow.errors import ConfigError


def on_the_real_clock(name: str) -> None:
    """Refuse a loop with a time of its own: a point in time would mean something else in a thread or a process."""
    if abs(asyncio.get_running_loop().time() - time.monotonic()) > 1.0:
        raise ConfigError(f"{name} can only be isolated on the real clock; use isolation inline on virtual time")
