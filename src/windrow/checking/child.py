"""The process in which an environment is checked; `parent` starts it.

Promises: it ends with its parent. What it finds is told at once, so nothing is lost if the environment hangs or
crashes; before each call it says which. A copy of it that an environment forked ends as soon as it would say something.
On SIGUSR1 it writes down where it is, even if the environment never lets go.
"""

import faulthandler
import logging
import os
import signal
import socket
import sys
from typing import BinaryIO

import msgspec

from windrow.checking.asking import Where
from windrow.checking.examining import Listener, Script, examine, replay
from windrow.checking.loading import load
from windrow.checking.messages import Doing, Finished, Found, Job, Message, Played, Unusable, line
from windrow.checking.rules import Finding
from windrow.checking.settings import Report
from windrow.errors import ConfigError
from windrow.linux import die_with_parent

SHORT = 200
"""Bytes of what was overheard that are told."""
COPIED = Finding(
    rule="dies",
    severity="error",
    message="the environment forked its process, and the copy went on with everything that the process does",
    way_out="end a copy with os._exit, or start a process with subprocess or multiprocessing",
)


class Teller(Listener):
    """Tells the parent."""

    def __init__(self, pipe: BinaryIO, outlet: int) -> None:
        self._pipe = pipe
        self._outlet = outlet  # a file that this process, and all that it starts, writes to
        self._heard = 0
        self._process = os.getpid()

    def calling(self, call: str, where: Where) -> None:
        self.tell(Doing(call, str(where), where.seed, where.turn))

    def overheard(self) -> str:
        written, before = os.lseek(self._outlet, 0, os.SEEK_CUR), self._heard  # all that write share one place in it
        self._heard = max(written, before)
        if written <= before:
            return ""
        text = os.pread(self._outlet, SHORT, before).decode(errors="replace").strip("\0")
        return text or "too much to be kept"

    def played(self, episodes: int, tasks: int) -> None:
        self.tell(Played(episodes, tasks))

    def found(self, finding: Finding) -> None:
        self.tell(Found(finding))

    def finished(self, report: Report, scripts: tuple[Script, ...]) -> None:
        self.tell(Finished(report, scripts))

    def tell(self, message: Message) -> None:
        if os.getpid() != self._process:
            message = Found(COPIED)
        self._pipe.write(line(message))
        self._pipe.flush()
        if os.getpid() != self._process:
            os._exit(1)


def main() -> None:
    """Take a job from the socket that the parent gave, do it, and tell."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever sends it means to end the process: nobody types here
    logging.getLogger().addHandler(logging.NullHandler())  # what is logged goes where somebody says, and warnings too
    logging.captureWarnings(capture=True)
    with socket.socket(fileno=int(sys.argv[1])) as wire, wire.makefile("rb") as ear, wire.makefile("wb") as mouth:
        os.set_inheritable(wire.fileno(), False)  # noqa: FBT003 -- the standard library's own signature
        job = msgspec.json.decode(ear.readline(), type=Job)
        _do(job, Teller(mouth, os.dup(1)))


def _do(job: Job, teller: Teller) -> None:
    teller.tell(Doing("loading", job.target))
    try:
        subject = load(job.target, job.args, job.reward)
    except ConfigError as error:
        teller.tell(Unusable(str(error)))
        return
    teller.overheard()
    if job.scripts is not None:
        replay(subject, job.settings, job.scripts, teller)
    else:
        examine(subject, job.settings, teller)


if __name__ == "__main__":
    main()
