"""What is kept in processes of its own, and how."""

from typing import Literal

from windrow.errors import WindrowError
from windrow.types import Value

Reuse = Literal["never", "process", "object"]
"""Whether the next borrower gets a process of its own; an old one with a new object in it; or the same object."""


class HostSettings(Value, frozen=True, kw_only=True):
    """Of one kind of object."""

    name: str
    """For messages."""
    error: type[WindrowError]
    """Whose fault it is if one fails."""
    reuse: Reuse = "never"
    ahead: int = 2
    """Processes kept ready before they are needed."""
    memory_mb: int | None = None
    """What each may have beyond what it began with."""
    preload: tuple[str, ...] = ()
    """Modules to import once, before any process is made, because the factory or its object imports them late."""
