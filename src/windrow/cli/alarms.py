"""What the library says of its own accord, for whoever sits at the terminal.

Promises: a warning is one line; its traceback and whatever else it has is in the log of the run. Of many alike the
first few are shown. A terminal that is gone disturbs nobody. What the command line logs it says itself, so it is not
said again.
"""

import contextlib
import logging
from collections import Counter
from typing import Self

from windrow.cli.output import Output

ALIKE = 5
"""Warnings of one kind that are shown."""


class Alarms(logging.Handler):
    """Shows warnings and errors of the library; use it as `with Alarms(out)`."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._shown: Counter[str] = Counter()

    def __enter__(self) -> Self:
        logging.getLogger("windrow").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("windrow").removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        kind = f"{record.name}: {record.msg}"
        self._shown[kind] += 1
        if record.name.startswith("windrow.cli") or self._shown[kind] > ALIKE:
            return
        more = "; more of these are in console.log alone" if self._shown[kind] == ALIKE else ""
        line = record.getMessage().partition("\n")[0]
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or closed
            self._out.warn(f"{line}{more}")
