"""The process in which an environment is checked; `parent` starts it.

Promises: it ends with its parent. What it finds is told at once, so nothing is lost if the environment hangs or
crashes; before each call it says which. On SIGUSR1 it writes down where it is, even if the environment never lets go.
"""

import faulthandler
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


class Teller(Listener):
    """Tells the parent."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def calling(self, call: str, where: Where) -> None:
        self.tell(Doing(call, str(where), where.seed, where.turn))

    def played(self, episodes: int) -> None:
        self.tell(Played(episodes))

    def found(self, finding: Finding) -> None:
        self.tell(Found(finding))

    def finished(self, report: Report, scripts: tuple[Script, ...]) -> None:
        self.tell(Finished(report, scripts))

    def tell(self, message: Message) -> None:
        self._pipe.write(line(message))
        self._pipe.flush()


def main() -> None:
    """Take a job from the socket that the parent gave, do it, and tell."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    with socket.socket(fileno=int(sys.argv[1])) as wire, wire.makefile("rb") as ear, wire.makefile("wb") as mouth:
        os.set_inheritable(wire.fileno(), False)  # noqa: FBT003 -- the standard library's own signature
        job = msgspec.json.decode(ear.readline(), type=Job)
        _do(job, Teller(mouth))


def _do(job: Job, teller: Teller) -> None:
    teller.tell(Doing("loading", job.target))
    try:
        subject = load(job.target, job.args, job.reward)
    except ConfigError as error:
        teller.tell(Unusable(str(error)))
        return
    if job.scripts is not None:
        replay(subject, job.settings, job.scripts, teller)
    else:
        examine(subject, job.settings, teller)


if __name__ == "__main__":
    main()
