"""Landlock: which files this process and its children may touch; everything else is refused.

Promises: what is not listed can be neither read, written, made, removed nor run, whoever owns it. What Landlock does
not watch (whether a file exists, how large it is) stays visible where a program has no root of its own.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence

from windrow.sandbox.kernel import syscall

CREATE, ADD, RESTRICT = 444, 445, 446
ASK_VERSION = 1
RULE_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Everything there is to forbid about files, by version; later versions forbid the same."""
NETWORK = 3
"""Binding and connecting TCP, from version 4 on."""
SCOPES = 3
"""Abstract sockets and signals to others, from version 6 on."""

READ = READ_FILE | READ_DIR
WITHOUT_TRUNCATE = 2
"""Versions up to this one do not stop a program from emptying files."""


def version() -> int:
    """Of Landlock in this kernel; 0 if it has none."""
    try:
        return syscall("landlock", CREATE, None, 0, ASK_VERSION)
    except OSError:
        return 0


class Ruleset:
    """What may be touched, to be filled before it is enforced; processes that are forked can enforce it too."""

    def __init__(self) -> None:
        known = version()
        self._everything = ALL_BY_VERSION[min(known, max(ALL_BY_VERSION))] if known else ALL_BY_VERSION[1]
        fields = [self._everything, *([NETWORK] if known >= 4 else []), *([SCOPES] if known >= 6 else [])]
        wanted = struct.pack(f"={len(fields)}Q", *fields)
        self.file = syscall("landlock_create_ruleset", CREATE, wanted, len(wanted), 0)

    def may_read(self, folders: Iterable[str], hidden: Iterable[str] = ()) -> None:
        """All that is in these folders, but of what is hidden in them only the names."""
        for folder in folders:
            inside = [path for path in hidden if path.startswith(f"{folder}/")]
            _allow(self.file, folder, READ_DIR if inside else READ)
            for path in _around(folder, inside) if inside else ():
                _allow(self.file, path, READ)

    def may_use(self, files: Iterable[str]) -> None:
        """These files, for reading and writing."""
        for path in files:
            _allow(self.file, path, READ_FILE | WRITE_FILE)

    def may_own(self, folder: str) -> None:
        """Everything in a folder but running it."""
        _allow(self.file, folder, self._everything & ~EXECUTE)

    def enforce(self) -> None:
        """From now on touch nothing else."""
        syscall("landlock_restrict_self", RESTRICT, self.file, 0)


def _around(folder: str, hidden: Sequence[str]) -> Iterator[str]:
    """The largest trees in a folder that have nothing hidden in them."""
    for entry in os.scandir(folder):
        if entry.path in hidden:
            continue
        if any(path.startswith(f"{entry.path}/") for path in hidden):
            yield from _around(entry.path, hidden)
        else:
            yield entry.path


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= EXECUTE | WRITE_FILE | READ_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
        syscall("landlock_add_rule", ADD, rules, RULE_BENEATH, ctypes.cast(rule, ctypes.c_void_p), 0)
    finally:
        os.close(place)
