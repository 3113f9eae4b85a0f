"""Our end of a socket to another process, on the event loop, without a task.

Promises: nothing here waits. What is sent goes out at once, or as soon as there is room; what comes in is told frame by
frame; the end of it, or the first thing that is no frame, is told once. A wire that was closed says nothing more.
"""

import asyncio
import socket
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from windrow.isolation.messages import Frames

PIECE = 1 << 16
READS = 16
"""Pieces that are read before others on the event loop have their turn."""


class Wire:
    """One end of a connected socket."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_end: Callable[[str], None],
        *,
        with_files: bool = False,
    ) -> None:
        """`with_files`: open files may come along; else the kernel closes them before they are here."""
        self.files: deque[int | None] = deque()  # all and only those that came and were not taken; None if one was lost
        self._socket = sock
        self._room = socket.CMSG_SPACE(array("i").itemsize) if with_files else 0
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        sock.settimeout(0)
        self._loop.add_reader(sock, self.read)

    def send(self, data: bytes) -> None:
        """Send a frame; if the other side is gone that is told where the end is told."""
        if not self._open:
            return
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self._write()
            if self._unsent and self._open:
                self._loop.add_writer(self._socket, self._write)

    def read(self) -> None:
        """Take what is there."""
        for _ in range(READS):
            if not self._open or not self._read_piece():
                return

    def read_all(self) -> None:
        """Take everything that the other side has sent; it is dead and sends no more."""
        while self._open and self._read_piece():
            pass

    def finish(self) -> None:
        """Say nothing more; the other side hears the end of it."""
        if self._open:
            with suppress(OSError):  # it has heard the end already
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of it."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._unsent.clear()
        while self.files:
            _close_file(self.files.popleft())

    def _read_piece(self) -> bool:
        """Read once; false if there is no more for now."""
        try:
            data, extra, flags, _ = self._socket.recvmsg(PIECE, self._room)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(f"its connection broke: {error}")
            return False
        if not data:
            self._end("it closed its connection")
            return False
        if self._room:
            self._take_files(extra, flags)
        try:
            for frame in self._frames.feed(data):
                self._on_frame(frame)
                if not self._open:
                    return False
        except ValueError as error:
            self._end(f"it wrote something else than messages to its connection: {error}")
            return False
        return True

    def _take_files(self, extra: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.files.extend(numbers)
        if flags & socket.MSG_CTRUNC:
            self.files.append(None)

    def _write(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the end is told by whoever reads
                self._unsent.clear()
                break
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]
        self._loop.remove_writer(self._socket)

    def _end(self, why: str) -> None:
        self.close()
        self._on_end(why)


def _close_file(number: int | None) -> None:
    if number is not None:
        socket.close(number)
