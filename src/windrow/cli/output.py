"""Where a command speaks: text for people, or one JSON object for programs.

Promises: with `json` nothing but the result reaches standard output, on one line, once, at the end;
everything for people goes to standard error. Without it the text goes to standard output and `result` writes
nothing. A progress bar is drawn only on a terminal; elsewhere a line appears now and then.

Nothing here decides what is said.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from windrow.errors import InternalError

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 160  # a file or a pipe has no edge; wide enough that tables do not wrap
REPORT_EVERY_S = 5.0  # between lines of progress where there is no terminal


class Report(Protocol):
    """Tells how far a piece of work is."""

    def __call__(self, done: float, note: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers go right, words go left."""

    name: str
    align: Literal["left", "right"] = "right"


class Output:
    """The one door through which a command speaks."""

    def __init__(
        self,
        *,
        json: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.json = json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._clock = clock
        self._result: bytes | None = None
        self.live: Console | None = None
        """The terminal while bars are drawn on it; warnings go above them."""

    @property
    def has_result(self) -> bool:
        return self._result is not None

    def say(self, text: str = "") -> None:
        """A line for people."""
        self._human.write(f"{text}\n")

    def warn(self, text: str) -> None:
        """A line for people that must not be lost in a pipe: always on standard error."""
        line = f"windrow: warning: {text}"
        if self.live is not None:
            self.live.print(line, markup=False, soft_wrap=True)
        else:
            self._stderr.write(f"{line}\n")

    def table(
        self, columns: Sequence[Column | str], rows: Sequence[Sequence[object]], *, title: str | None = None
    ) -> None:
        """A table for people; a bare string is a column of numbers, the first one a column of names."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for place, column in enumerate(columns):
            if isinstance(column, str):
                column = Column(column, "left" if place == 0 else "right")  # noqa: PLW2901 the short form is expanded
            table.add_column(Text(column.name), justify=column.align)
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row))
        self._console(self._human).print(table)

    @contextlib.contextmanager
    def progress(self, what: str, total: float) -> Iterator[Report]:
        """Shows how far a long piece of work is: `with out.progress("steps", 100) as at: at(7, "keep_1")`."""
        show = self._bar if self._stderr.isatty() else self._lines
        with show(what, total) as report:
            yield report

    def result(self, value: object) -> None:
        """What the command found, for programs: one object, once."""
        import msgspec

        encoded = msgspec.json.encode(value, enc_hook=_plain)
        if self._result is not None:
            raise InternalError("a command has one result, got a second one")
        if not encoded.startswith(b"{"):
            raise InternalError(f"the result of a command is one object, got {type(value).__name__}")
        self._result = encoded

    def finish(self) -> None:
        """Write the result if programs want it, and make sure that everything has left."""
        if self.json and self._result is not None:
            self._stdout.write(f"{self._result.decode()}\n")
        self._stdout.flush()

    def live_console(self) -> "Console | None":
        """Where bars can be drawn; None if nobody looks at a terminal."""
        return self._console(self._stderr) if self._stderr.isatty() else None

    @property
    def _human(self) -> TextIO:
        return self._stderr if self.json else self._stdout

    def _console(self, stream: TextIO) -> "Console":
        from rich.console import Console

        return Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)

    @contextlib.contextmanager
    def _bar(self, what: str, total: float) -> Iterator[Report]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console(self._stderr), transient=True) as bar:
            task = bar.add_task(what, total=total, note="")

            def report(done: float, note: str = "") -> None:
                bar.update(task, completed=done, note=note)

            yield report

    @contextlib.contextmanager
    def _lines(self, what: str, total: float) -> Iterator[Report]:
        spoke_at = self._clock()

        def report(done: float, note: str = "") -> None:
            nonlocal spoke_at
            now = self._clock()
            if now - spoke_at < REPORT_EVERY_S:
                return
            spoke_at = now
            self._stderr.write(f"{what}: {done:g} of {total:g} {note}".rstrip() + "\n")
            self._stderr.flush()

        yield report


def _cell(value: object) -> str:
    """Three significant digits for fractions; everything else as it is."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _plain(value: object) -> object:
    """Numbers and paths of other packages as JSON knows them."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    raise InternalError(f"a result cannot hold a {type(value).__name__}: {value!r}")
