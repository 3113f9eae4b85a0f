"""The journal: a header, then one line per event with its time; from it any moment can be rebuilt.

Promises: the same events give the same bytes; a journal replayed gives the same state; a last line that was cut off
in the middle of writing is left out, any other line that cannot be read is an error with its number. Nothing here
touches a file.
"""

from collections.abc import Callable, Iterable, Iterator

from windrow.core.commands import AnyCommand
from windrow.core.events import AnyEvent
from windrow.core.machine import Machine
from windrow.core.settings import Settings
from windrow.errors import ConfigError, IllegalEvent, Refused
from windrow.types import Value, from_json, to_json

FORMAT = 1
"""Raised whenever an older journal could no longer be replayed."""


class Format(Value, frozen=True):
    """What every first line has, whatever its format."""

    journal: int


class Header(Format, frozen=True):
    """The first line."""

    settings: Settings


class Entry(Value, frozen=True, array_like=True):
    """One event and when it happened."""

    now: float
    event: AnyEvent


def header(settings: Settings) -> bytes:
    """The first line, without its end."""
    return to_json(Header(FORMAT, settings))


def line(now: float, event: AnyEvent) -> bytes:
    """One event as a line, without its end."""
    return to_json((now, event))


def read(lines: Iterable[bytes]) -> tuple[Settings, Iterator[Entry]]:
    """The settings and the events of a journal."""
    numbered = enumerate(lines, 1)
    _, first = next(numbered, (1, b""))
    try:
        found = from_json(first, Format).journal
        if found != FORMAT:
            raise ConfigError(f"the journal has format {found}; this version reads format {FORMAT}")
        return from_json(first, Header).settings, _entries(numbered)
    except ValueError as error:
        raise ConfigError(f"journal line 1 is not a header: {error}") from error


def replay(
    lines: Iterable[bytes],
    *,
    until: int | None = None,
    look: Callable[[Machine, Entry, list[AnyCommand]], None] | None = None,
) -> Machine:
    """The machine after the first `until` events (all, if None); `look` sees each step."""
    settings, entries = read(lines)
    machine = Machine(settings)
    for count, entry in enumerate(entries):
        if count == until:
            break
        try:
            commands = machine.step(entry.event, entry.now)
        except (IllegalEvent, Refused) as error:
            what, *_ = str(error).splitlines()
            raise ConfigError(f"journal line {count + 2} contradicts what came before: {what}") from error
        if look is not None:
            look(machine, entry, commands)
    return machine


def _entries(numbered: Iterator[tuple[int, bytes]]) -> Iterator[Entry]:
    for number, text in numbered:
        try:
            yield from_json(text, Entry)
        except ValueError as error:
            if next(numbered, None) is None and not text.endswith(b"\n"):
                return  # the writer was stopped in the middle of its last line
            raise ConfigError(f"journal line {number} cannot be read: {error}") from error
