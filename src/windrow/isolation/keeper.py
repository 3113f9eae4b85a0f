"""Our side of a nest: it is started, told what to do, listened to, and seen to its end.

Promises: nothing here waits, except that starting the interpreter takes some milliseconds. Whatever happens to the
nest, its end is told exactly once, after everything that it hatched is dead; if it could not see to that itself
(somebody killed it), what carries its mark is looked for and killed. Only what was started with an environment of its
own (`env -i`) and outlived the nest is not found.
"""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from windrow.isolation.below import sweep
from windrow.isolation.messages import NEWS, Born, News, Order, pack, unpack
from windrow.isolation.nest import START, TAIL
from windrow.isolation.wire import Wire

MARK = "WINDROW_NEST"
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Many small processes share the cores, and a nest with threads cannot fork; who sets these keeps what they set."""
CLOSE_GRACE_S = 5.0
"""How long a nest may take to bury everything; then it is killed and we do it."""


class Keeper:
    """One nest."""

    def __init__(self, on_news: Callable[[News, int | None], None], on_end: Callable[[], None]) -> None:
        """`on_news` gets, with `Born`, the socket to the new process, or None if we have no more open files."""
        self.ended = False
        self.said = b""  # the end of what the nest itself wrote
        self._on_news = on_news
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        self._grace: asyncio.TimerHandle | None = None
        with ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                self._output, its_output = os.pipe()
                undo.callback(os.close, self._output)
                try:
                    self._process = self._start(theirs, its_output)
                finally:
                    os.close(its_output)
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._watched = self._watch()
            undo.pop_all()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._listen)
        self._wire = Wire(ours, self._hear, self._lost, with_files=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, order: Order) -> None:
        self._wire.send(pack(order))

    def close(self) -> None:
        """Let it kill everything and end; `on_end` tells when it is done."""
        if self._grace is None and not self.ended:
            self._grace = self._loop.call_later(CLOSE_GRACE_S, self._process.kill)
            self._wire.finish()

    def kill(self) -> None:
        """End it though it may be busy, and kill everything ourselves; `on_end` tells when it is done."""
        self._process.kill()

    def _start(self, theirs: socket.socket, its_output: int) -> "subprocess.Popen[bytes]":
        name, _, value = self._mark.partition("=")
        environment = dict.fromkeys(ONE_THREAD, "1") | os.environ | {name: value}
        numbers = [str(theirs.fileno()), str(os.getpid())]
        return subprocess.Popen(  # noqa: S603 -- ourselves
            [sys.executable, "-c", START.format(what="main()"), json.dumps(sys.path), *numbers],
            stdin=subprocess.DEVNULL,
            stdout=its_output,
            stderr=its_output,
            pass_fds=(theirs.fileno(),),
            env=environment,
            start_new_session=True,  # what is typed at our terminal is not meant for it
        )

    def _watch(self) -> int | None:
        """A file that can be read from when the process is dead; None if this system has no such thing."""
        if sys.platform != "linux":
            return None
        watched = os.pidfd_open(self._process.pid)
        self._loop.add_reader(watched, self._dead)
        return watched

    def _hear(self, frame: bytes) -> None:
        news = unpack(frame, NEWS)
        self._on_news(news, self._wire.files.popleft() if isinstance(news, Born) else None)

    def _listen(self) -> None:
        try:
            piece = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        self.said = (self.said + piece)[-TAIL:]
        if not piece:
            self._loop.remove_reader(self._output)

    def _lost(self, _why: str) -> None:
        """Its connection is at an end, so it is dead, or will be now."""
        self._process.kill()
        if self._watched is None:
            self._dead()

    def _dead(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            os.close(self._watched)
        self._process.wait()  # it is dead: this takes no time
        self._wire.read_all()  # its last words
        self._wire.close()
        if self._grace is not None:
            self._grace.cancel()
        threading.Thread(target=self._sweep, name="windrow-sweep", daemon=True).start()

    def _sweep(self) -> None:
        """In a thread of its own: those of the event loop may all be busy for ever."""
        try:
            sweep(self._mark)
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._over)

    def _over(self) -> None:
        self._listen_to_the_end()
        self.ended = True
        self._on_end()

    def _listen_to_the_end(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self._output, 1 << 16):
                self.said = (self.said + piece)[-TAIL:]
        self._loop.remove_reader(self._output)
        os.close(self._output)
