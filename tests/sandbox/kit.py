"""What the tests of the sandbox have in common: things outside that programs have no business with."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from windrow.sandbox.pool import Sandbox

CANARY = "this is nobody's business"


@dataclass
class Outside:
    """A folder with a file that everybody may read and write, and servers that everybody may speak to."""

    folder: Path
    canary: Path
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket
    abstract: socket.socket
    datagrams: socket.socket

    def names(self) -> dict[str, object]:
        """What the programs call these."""
        return {
            "canary": self.canary, "folder": self.folder, "home": Path.home(), "parent": os.getpid(),
            "tcp": self.tcp.getsockname()[1], "udp": self.udp.getsockname()[1], "unix": self.unix.getsockname(),
            "packages": Path(os.__file__).parent / "site-packages",
            "abstract": self.abstract.getsockname()[1:].decode(), "datagrams": self.datagrams.getsockname(),
        }  # fmt: skip

    def state(self) -> tuple[object, ...]:
        """Everything that no program may change; the same before and after."""
        status = self.canary.stat()
        return (
            self.canary.read_text(), status.st_mode, status.st_mtime, status.st_nlink, os.listxattr(self.canary),
            sorted(self.folder.iterdir()), litter(), socket.gethostname(),
        )  # fmt: skip

    def visitors(self) -> list[str]:
        """Servers to which somebody came."""
        return [name for name in ("tcp", "unix", "abstract", "udp", "datagrams") if self._was_visited(name)]

    def _was_visited(self, name: str) -> bool:
        server: socket.socket = vars(self)[name]
        try:
            if server.type == socket.SOCK_STREAM:
                server.accept()[0].close()
            else:
                server.recv(100)
        except BlockingIOError:
            return False
        return True


@contextmanager
def outside() -> Iterator[Outside]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windrow-outside-")))
        folder.chmod(0o777)
        canary = folder / "canary"
        canary.write_text(CANARY)
        canary.chmod(0o666)
        servers = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{folder.name}"),
            "datagrams": (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams")),
        }
        made = {name: stack.enter_context(_server(*address)) for name, address in servers.items()}
        yield Outside(folder, canary, **made)


def _server(family: int, kind: int, address: object) -> socket.socket:
    server = socket.socket(family, kind)
    server.bind(address)  # type: ignore[arg-type]  # each family has its own kind of address
    if family == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0"):
        Path(address).chmod(0o777)
    if kind == socket.SOCK_STREAM:
        server.listen()
    server.setblocking(False)
    return server


def litter() -> list[str]:
    """What a program left in the machine's folders."""
    places = [Path(tempfile.gettempdir()), Path("/dev/shm"), Path.home(), Path(os.__file__).parent]  # noqa: S108
    found = [str(place / name) for place in places for name in ("windrow-was-here", "windrow_was_here.py", "core")]
    return [path for path in found if Path(path).exists()]


def warden_of(sandbox: Sandbox) -> int:
    """The process that runs its programs."""
    assert sandbox._gate is not None
    return sandbox._gate._process.pid


def processes_of(starter: int) -> set[int]:
    """Every process that descends from a warden which a process started, wherever it hangs in the tree now."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"windrow.sandbox.warden" in b" ".join(words) and str(starter).encode() in words:
                found.add(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
