"""What a check and the process that it runs in tell each other: one line of JSON each."""

from typing import Any

import msgspec

from windrow.checking.examining import Script
from windrow.checking.rules import Finding
from windrow.checking.settings import CheckSettings, Report
from windrow.types import Value


class Job(Value, frozen=True, kw_only=True, gc=True):
    """What to do: check an environment, or play these episodes of it again."""

    target: str
    args: dict[str, Any] = {}  # of its class
    reward: str = ""
    settings: CheckSettings = CheckSettings()
    scripts: tuple[Script, ...] | None = None
    """To be played again; none: everything is checked."""


class Doing(Value, frozen=True, tag="doing"):
    """A call is about to be made; if nothing more is heard, this is where it hangs."""

    call: str
    where: str
    task: int | None = None
    turn: int | None = None


class Played(Value, frozen=True, tag="played"):
    """How far it is."""

    episodes: int
    tasks: int = 0


class Found(Value, frozen=True, tag="found", gc=True):
    """Something is wrong with the environment."""

    finding: Finding


class Unusable(Value, frozen=True, tag="unusable"):
    """There is nothing to check."""

    why: str


class Finished(Value, frozen=True, tag="finished", gc=True):
    """All is done."""

    report: Report
    scripts: tuple[Script, ...] = ()


Message = Doing | Played | Found | Unusable | Finished

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def line(message: Message | Job) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def read(data: bytes) -> Message:
    return _decoder.decode(data)
