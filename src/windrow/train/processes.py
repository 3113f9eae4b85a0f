"""Trainer processes, as their driver sees them.

```
driver                                        process 0, 1, …: one object each
  TrainerProcesses ── connection ───────────── ranks.serve ── object ── torch.distributed ── the others
        └── room: arguments, answers, weights ──┘
```

Promises
- A call is made on all processes, in the order in which calls are made, and ends: with an answer, or within `timeout_s`
  with an error. A process that raises or dies fails the call, with what it said last, and ends the others: they share
  their work, so none can go on without the rest.
- Arguments and answers are written once, to memory that all share.
- Processes are not interrupted by what is typed at the terminal. They end with the driver, however it ends; `close`
  leaves nothing behind.

What it does not do: it knows nothing of models. What the object is and how it works together with those in the other
processes is up to whoever makes it.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Literal, NoReturn

from windrow.errors import ConfigError, TrainError
from windrow.isolation.pickles import Unsendable, dump
from windrow.train.messages import MADE, Answer, Ask, Plan, Raised, hear, read, send, write
from windrow.train.ranks import MAKE
from windrow.train.rooms import Room
from windrow.train.sharding import Shards
from windrow.train.together import Together
from windrow.train.troubles import Trouble, overdue, raised, told
from windrow.types import to_json

log = logging.getLogger(__name__)

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from windrow.train import ranks; ranks.main()"
ROOM = "trainers"
"""The kind of folder that they share."""
ROOM_BYTES = 1 << 30
"""Free memory from which on batches travel through it; a container may have next to none."""
NEWS_S = 2.0
"""After the first bad news: how long others have to say what they know, since the first to speak is often a victim."""
STACK_S = 0.5
"""How long a process that is overdue may take to write down where it is."""
CLOSE_S = 5.0
"""How long processes may take to end by themselves."""
TAIL = 2000
"""Characters of a process's output that are shown when it dies."""

Make = Callable[[Shards], object]
"""Makes the object of a process, given its place among the others."""


class TrainerProcesses(Together):
    """Processes that do the same thing at the same time, each with its share of it."""

    def __init__(
        self,
        size: int,
        make: Make,
        timeout_s: float,
        device: Literal["cpu", "cuda"] = "cpu",
        *,
        gpus: Sequence[int] = (),
    ) -> None:
        """`make` must be something that can be pickled; it makes the object in every process.

        `gpus` are theirs, one for each, if they compute on GPUs; none: the first ones.
        """
        if size < 1:
            raise ConfigError(f"train.processes must be 1 or more to have trainer processes, got {size}")
        super().__init__()
        self._gpus = gpu_of_each(size, gpus)
        self.size = size
        self.on_this_machine = True
        self._timeout_s = timeout_s
        self._device: Literal["cpu", "cuda"] = device
        self._number = MADE
        self._ended = ""  # why there are no processes any more
        self._over = threading.Event()
        self._room = Room(ROOM, needs_bytes=ROOM_BYTES)
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(make)
            with self._calling:
                self._collect("being made")
        except BaseException:
            self._end("they could not be started", now=True)
            raise

    @property
    def room(self) -> Path:
        """A folder that all processes share; what is in it goes when they go."""
        return self._room.path

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _begin(self, make: Make) -> None:
        try:
            (self.room / MAKE).write_bytes(dump(make))
        except Unsendable as error:
            raise ConfigError(f"trainer processes cannot be sent what makes their object: {error}") from error
        started: Future[None] = Future()
        # the kernel ends a child when the thread that started it ends, so that one must live as long as they do
        threading.Thread(target=self._keep, args=(started,), name="windrow-trainers", daemon=True).start()
        started.result()

    def _keep(self, started: "Future[None]") -> None:
        try:
            for rank in range(self.size):
                self._start(rank)
        except BaseException as error:  # noqa: BLE001 -- whoever waits for it gets it
            started.set_exception(error)
        else:
            started.set_result(None)
        self._over.wait()

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        self._connections.append(ours)
        plan = Plan(
            rank=rank,
            size=self.size,
            room=str(self.room),
            connection=theirs.fileno(),
            driver=os.getpid(),
            device=self._device,
            gpu=self._gpus[rank],
            patience_s=2 * self._timeout_s,  # whoever is late is found by us, who can say more about it
        )
        with theirs, self._output(rank).open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 -- ourselves
                [sys.executable, "-c", START, json.dumps(sys.path), to_json(plan).decode()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=_environment(self.size),
                start_new_session=True,  # what is typed at our terminal is not meant for it
            )
        self._processes.append(process)

    def _ask(
        self, method: str, arguments: tuple[object, ...], options: Mapping[str, object], *, all_answer: bool
    ) -> list[Any]:
        with self._calling:
            what = method or "run"
            if self._ended:
                raise TrainError(f"trainer processes cannot {what}: {self._ended}; start them again")
            self._number += 1
            name = f"ask-{self._number}"
            write(self.room / name, (arguments, dict(options)))
            for connection in self._connections:
                with suppress(BrokenPipeError, ConnectionResetError):  # it is dead, as we shall hear
                    send(connection, Ask(self._number, method, name, all_answer))
            files = self._collect(what)
            answers = [read(self.room / files[rank]) for rank in sorted(files) if files[rank]]
            self._clean()
            return answers

    def _collect(self, what: str) -> dict[int, str]:
        """The files with what each process has to say to the present call; raises when one of them is in trouble.

        consumes      news of the processes
        waits for     one from each
        unblocked by  a process, its death, the clock
        """
        waiting = dict(zip(self._connections, range(self.size), strict=True))
        files: dict[int, str] = {}
        troubles: list[Trouble] = []
        until = time.monotonic() + self._timeout_s
        try:
            while waiting and (ready := wait([*waiting], max(0.0, until - time.monotonic()))):
                for connection in ready:
                    assert isinstance(connection, Connection)
                    news = self._news(waiting[connection], connection)
                    if news is None:
                        continue
                    rank = waiting.pop(connection)
                    if isinstance(news, Answer):
                        files[rank] = news.file
                    else:
                        troubles.append(news)
                        until = min(until, time.monotonic() + NEWS_S)
        except BaseException:
            if troubles:  # nobody will hear of them again
                self._end("one of them failed", now=True)
            raise
        if waiting and not troubles:
            troubles = self._overdue([*waiting.values()])
        if troubles:
            self._fail(what, troubles)
        return files

    def _news(self, rank: int, connection: Connection) -> Answer | Trouble | None:
        """What a process says; None if it is the answer to a call that nobody waits for any more."""
        try:
            said = hear(connection)
        except (EOFError, OSError):
            return self._death(rank)
        if isinstance(said, Raised):
            return raised(rank, said)
        return said if said.number == self._number else None

    def _death(self, rank: int) -> Trouble:
        process = self._processes[rank]
        try:
            code = process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            why = "it closed its connection"
        else:
            why = f"its process was killed by {_signal(-code)}" if code < 0 else f"its process ended with code {code}"
        return Trouble(rank=rank, died=True, kind="", why=why, seen=self._last_words(rank))

    def _overdue(self, ranks: list[int]) -> list[Trouble]:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        time.sleep(STACK_S)
        return [overdue(rank, self._timeout_s, self._last_words(rank)) for rank in ranks]

    def _fail(self, what: str, troubles: list[Trouble]) -> NoReturn:
        """End everything, and tell why."""
        error = told(troubles, self.size, what)
        self._end(str(error), now=True)
        raise error

    def _end(self, why: str, *, now: bool = False) -> None:
        if self._ended:
            return
        self._ended = why
        for connection in self._connections:
            connection.close()  # whoever is not busy ends of itself
        if now:
            self._kill()
        until = time.monotonic() + CLOSE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("trainer process %d does not end and is killed", process.pid)
                self._kill()
                process.wait()
        self._over.set()
        self._room.close()

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:  # whoever was waited for has given its number back
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own

    def _clean(self) -> None:
        """Remove what was read; whatever still uses it has it in memory."""
        for pattern in ("ask-*", "answer-*"):
            for file in self.room.glob(pattern):
                file.unlink(missing_ok=True)

    def _output(self, rank: int) -> Path:
        return self.room / f"output-{rank}"

    def _last_words(self, rank: int) -> str:
        with suppress(OSError):
            return self._output(rank).read_text("utf-8", "replace")[-TAIL:]
        return ""


def _environment(size: int) -> dict[str, str]:
    """Each process gets its share of the cores, and talks to the others on this machine; who set these keeps them."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    ours = {"OMP_NUM_THREADS": str(max(1, cores // size))}
    if sys.platform == "linux":
        ours["GLOO_SOCKET_IFNAME"] = "lo"
    return ours | os.environ


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def gpu_of_each(size: int, gpus: Sequence[int]) -> tuple[int, ...]:
    """The GPU of each process, in their order; nothing said: as many as there are processes, from the first on."""
    if not gpus:
        return tuple(range(size))
    if len(gpus) != size:
        raise ConfigError(f"{size} trainer processes cannot share {len(gpus)} GPUs; give each of them one")
    return tuple(gpus)
