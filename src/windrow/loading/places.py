"""Where in somebody's code something happens: the innermost line that is theirs.

Lines of the standard library, of installed packages and of Windrow are passed over while there is another; those of
shipped environments come next.
"""

import linecache
import re
import sysconfig
import traceback
from asyncio import CancelledError
from pathlib import Path
from types import FrameType, TracebackType

Line = tuple[str, int]
"""A file and a number; innermost first where there are several."""
NOWHERE: Line = ("", 0)

WINDROW = str(Path(__file__).parent.parent)
OURS = tuple(str(Path(WINDROW) / name) for name in ("checking", "loading"))
FROZEN = "<frozen"
FOREIGN = (*OURS, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, FROZEN)


def of_error(error: BaseException) -> str:
    """Where an error was raised, or what cannot be read as Python."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return spelt((error.filename, error.lineno))
    lines = _lines(error.__traceback__)
    otherwise = NOWHERE if isinstance(error, CancelledError) else None  # which comes from the loop
    return spelt(_choose([line for line in lines if not line[0].startswith(FROZEN)], otherwise))


def of_frame(frame: FrameType | None) -> Line:
    """Where a thread is; quick, because it is asked often."""
    return _choose([(each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)])


def of_dump(text: str) -> str:
    """Where a thread was, from what `faulthandler` or a traceback says; empty if nowhere in somebody's own code."""
    lines: list[Line] = []
    for written in text.splitlines():
        head, found, rest = written.strip().partition('", line ')
        if found and head.startswith('File "'):
            lines += [(head.removeprefix('File "'), int(number)) for number in re.findall(r"^\d+", rest)]
    if "most recent call last" in text:
        lines.reverse()
    return spelt(_choose(lines, NOWHERE))


def spelt(line: Line) -> str:
    """`file:line`, as seen from here where that is shorter; empty if it is nowhere."""
    file, number = line
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else file}:{number}" if file else ""


def source(place: str) -> str:
    """What stands there, if it can be read."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def told(place: str) -> str:
    """` at file:line: what stands there`, for the end of a message; empty if the place is not known."""
    if not place:
        return ""
    line = source(place)
    return f" at {place}{f': {line:.80}' if line else ''}"


def _lines(trace: TracebackType | None) -> list[Line]:
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)][::-1]


def _choose(lines: list[Line], otherwise: Line | None = None) -> Line:
    near = [line for line in lines if not line[0].startswith(FOREIGN)]
    theirs = (line for line in near if not line[0].startswith(WINDROW))  # what adapts somebody's code is not it
    return next(theirs, near[0] if near else otherwise or (lines[0] if lines else NOWHERE))
