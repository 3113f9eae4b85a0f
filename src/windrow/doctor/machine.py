"""The machine we are on: cores, memory, room, limits, ports, clock, devices."""

import os
import resource
import shutil
import socket
import time
from pathlib import Path

from windrow.doctor.findings import Finding, graded

GB = 1e9
PORTS = {6379: "the head of a Ray cluster", 8265: "its dashboard", 10001: "its clients"}
"""Those that Ray takes unless it is told otherwise."""
SHARED = Path("/dev/shm")  # noqa: S108 -- where Linux keeps shared memory, not a place for files of ours
MEMORY = Path("/proc/meminfo")
SKEW_S = 120.0
"""A clock may be so far behind the newest of our own files, which another machine may have written."""


def findings() -> list[Finding]:
    """Everything about this machine."""
    soft_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return [
        cores(len(os.sched_getaffinity(0))),
        memory(available_memory()),
        shared_memory(shutil.disk_usage(SHARED).free if SHARED.is_dir() else None),
        open_files(soft_files),
        processes(soft_processes),
        ports([port for port in PORTS if not is_free(port)]),
        clock(time.time(), max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))),
    ]


def cores(number: int) -> Finding:
    advice = "episodes, engines and training take turns on one core; give the process more"
    return graded("cores", number, f"{number} that this process may use", advice, enough=2, least=1)


def memory(available: float | None) -> Finding:
    if available is None:
        return Finding("memory", "warn", f"unknown: there is no {MEMORY} here", "see to it that 2 GB are free")
    advice = "the demo needs about 2 GB; end other programs, or use a smaller model and fewer environments"
    return graded("memory", available, f"{available / GB:.1f} GB available", advice, enough=2 * GB, least=0.5 * GB)


def shared_memory(free: float | None) -> Finding:
    if free is None:
        return Finding("shared memory", "warn", f"there is no {SHARED}", "on Linux mount a tmpfs there; Ray needs it")
    advice = f"Ray keeps objects there and is slow without; in Docker use --shm-size=8g, else remount {SHARED} larger"
    return graded("shared memory", free, f"{free / GB:.1f} GB free in {SHARED}", advice, enough=2 * GB, least=0.06 * GB)


def open_files(limit: int) -> Finding:
    return _limited("open files", limit, "ulimit -n 65536", enough=4096, least=256)


def processes(limit: int) -> Finding:
    return _limited("processes", limit, "ulimit -u 65536", enough=4096, least=128)


def ports(taken: list[int]) -> Finding:
    if not taken:
        return Finding("ports", "ok", f"{', '.join(map(str, PORTS))} are free")
    named = ", ".join(f"{port} ({PORTS[port]})" for port in taken)
    advice = "a Ray cluster runs here already, to be joined with --address, or give Ray other ports"
    return Finding("ports", "warn", f"taken: {named}", advice)


def clock(now: float, written: float) -> Finding:
    """Whether it is later than when our own files were written."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < written - SKEW_S:
        return Finding("clock", "bad", f"{shown}, before our own files were written", "set the clock; ntpd keeps it")
    return Finding("clock", "ok", shown)


def available_memory() -> float | None:
    """Bytes that programs can still have; None where the system does not say."""
    if not MEMORY.exists():
        return None
    for line in MEMORY.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return 1024.0 * int(rest.split()[0])
    return None


def is_free(port: int) -> bool:
    """Nobody listens there."""
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ours.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _limited(name: str, limit: int, command: str, *, enough: int, least: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return Finding(name, "ok", "no limit")
    advice = f"{command} before you begin, or raise the limit in /etc/security/limits.conf"
    return graded(name, limit, f"at most {limit}", advice, enough=enough, least=least)
