"""Programs, their limits, and what became of them."""

from typing import Annotated, Literal

from windrow.types import Meta, Value

Level = Literal["namespaces", "landlock", "limits"]
"""How a program is held, best first.

`namespaces`: it sees nothing of the machine; `landlock`: it can open nothing of the machine, and stays one thread;
`limits`: only its use of resources is limited, which stops accidents and no attack.
"""

LEVELS: tuple[Level, ...] = ("namespaces", "landlock", "limits")

DAY_S = 86_400

MOST_AT_ONCE = 64
"""Programs that one warden is given at the same time; what goes to it is never more than a socket holds."""

Outcome = Literal["ok", "error", "timeout", "cpu", "memory", "output", "crashed", "killed"]
"""How a program ended.

`ok`: it exited with 0; `error`: with another code, an exception for example; `timeout`, `cpu`, `memory`, `output`: it
used more than its limit; `crashed`: it died of a fault of its own, such as a segmentation fault; `killed`: somebody
else ended it, such as the system when it had no more memory.
"""


class Limits(Value, frozen=True, kw_only=True):
    """What a program may use."""

    cpu_s: Annotated[int, Meta(ge=1, le=DAY_S)] = 5
    """Seconds of processor time of each of its processes."""
    wall_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 10.0
    memory_mb: Annotated[int, Meta(ge=16, le=1 << 20)] = 256
    """Address space of each of its processes, beyond what the interpreter has."""
    output_bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 1 << 16
    """Of its output, and again of its complaints."""
    processes: Annotated[int, Meta(ge=1, le=1 << 15)] = 8
    """Processes and threads at once, itself included. At level `landlock` there is always one."""
    open_files: Annotated[int, Meta(ge=8, le=1 << 16)] = 64
    scratch_mb: Annotated[int, Meta(ge=1, le=1 << 20)] = 16
    """Size of its scratch folder. At level `landlock` there is none."""
    scratch_files: Annotated[int, Meta(ge=1, le=1 << 24)] = 1024


class Program(Value, frozen=True, kw_only=True):
    """Python to be run, as `python program.py args…` runs it; the standard library is all it can import."""

    source: str
    stdin: str = ""
    args: tuple[str, ...] = ()
    limits: Limits | None = None
    """Those of the sandbox if not given."""


class Ran(Value, frozen=True, kw_only=True):
    """What became of a program."""

    outcome: Outcome
    exit_code: int | None
    """None if a signal ended it."""
    stdout: str
    stderr: str
    seconds: float
    cpu_s: float
    """Of itself and of those of its processes that it waited for."""
    peak_mb: float
    level: Level
    """What held it."""


class SandboxSettings(Value, frozen=True, kw_only=True):
    """How programs are run."""

    limits: Limits = Limits()
    at_once: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] | None = None
    """Programs at the same time; twice as many as there are processors if not given."""
    at_least: Level = "landlock"
    """Below this level nothing is run."""
    at_most: Level = "namespaces"
    """Above this level nothing is tried."""
