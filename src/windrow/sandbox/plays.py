"""A program's own part of its process: read it, run it as Python runs a file, end.

Promises: nothing here is trusted by anybody. What it does wrong looks like a fault of the program, what the program
does to it harms the program alone.
"""

import atexit
import gc
import json
import linecache
import os
import sys
import threading
import traceback
import types
from typing import NoReturn

NAME = "program.py"
LEAVE = os._exit  # a program may put something else in its place
FLUSH_FAILED = 120
"""What Python itself exits with when its last words cannot be written."""


def play(file: int, home: str) -> NoReturn:
    """Run the program that a file holds and end the process."""
    code = 1
    try:
        gc.enable()
        os.environ.clear()
        os.environ["HOME"] = home
        with open(file, encoding="utf-8") as job:
            work = json.load(job)
        code = _end(_run(work["source"], work["args"]))
    finally:
        LEAVE(code)


def _run(source: str, args: list[str]) -> int:
    module = types.ModuleType("__main__")
    module.__file__ = NAME
    sys.modules["__main__"] = module
    sys.argv = [NAME, *args]
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- what all this is for
    except SystemExit as leaving:
        return _code(leaving)
    except BaseException as error:  # noqa: BLE001 -- the end of a program, as Python itself tells it
        _tell(error)
        return 1
    return 0


def _code(leaving: SystemExit) -> int:
    match leaving.code:
        case None:
            return 0
        case int(code):
            return code & 0xFF
        case words:
            os.write(2, f"{words}\n".encode(errors="replace"))
            return 1


def _tell(error: BaseException) -> None:
    trace = error.__traceback__
    if isinstance(error, MemoryError):
        os.write(2, b"MemoryError\n")  # there may be no memory to say more
        return
    traceback.print_exception(type(error), error, trace.tb_next if trace else None)


def _end(code: int) -> int:
    """What the interpreter does before it ends, without tearing itself down."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 -- waits for threads, as at any end of Python
    atexit._run_exitfuncs()  # noqa: SLF001 -- so that what a program registered is called
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return FLUSH_FAILED
    return code
