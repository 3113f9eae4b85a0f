"""The Linux calls that Python has no words for: namespaces, mounts, capabilities, a fork into new namespaces.

Promises: whatever fails raises OSError with what was tried. Nothing here knows what it is used for. The standard
library is enough, because the warden runs without any other package.
"""

import ctypes
import functools
import os
import platform
import sys

from windrow.linux import libc, prctl

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

ATTR_RDONLY = 1
ATTR_NOSUID = 2
ATTR_NODEV = 4
ATTR_NOEXEC = 8
AT_FDCWD = -100
AT_RECURSIVE = 0x8000

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
CAPABILITIES_V3 = 0x20080522
SIGCHLD = 17

NUMBERS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91},
}
"""Of the calls that have another number on each kind of machine."""
MOUNT_SETATTR = 442


def machine() -> str:
    """The kind of processor, if it is one whose call numbers are known here; else empty."""
    name = platform.machine()
    return name if sys.platform == "linux" and sys.byteorder == "little" and name in NUMBERS else ""


def call(name: str, *arguments: int | bytes | ctypes.c_void_p | None) -> int:
    """Call a function of the C library."""
    library = libc()
    if library is None:
        raise OSError(f"{name}: there is no Linux here")
    return _checked(name, int(getattr(library, name)(*map(_wide, arguments))))


def syscall(name: str, number: int, *arguments: int | bytes | ctypes.c_void_p | None) -> int:
    """Call the kernel by number."""
    library = libc()
    if library is None:
        raise OSError(f"{name}: there is no Linux here")
    return _checked(name, int(library.syscall(ctypes.c_long(number), *map(_wide, arguments))))


def number(name: str) -> int:
    """The number of a call on this kind of machine."""
    kind = machine()
    if not kind:
        raise OSError(f"{name}: its number on {platform.machine()} is not known")
    return NUMBERS[kind][name]


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())


def restrict_mount(target: str, attributes: int, *, below: bool) -> None:
    """Add `ATTR_…` to a mount, and to all mounts below it if so wanted."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    at = AT_RECURSIVE if below else 0
    pointer = ctypes.cast(wanted, ctypes.c_void_p)
    syscall("mount_setattr", MOUNT_SETATTR, AT_FDCWD, target.encode(), at, pointer, ctypes.sizeof(wanted))


def move_into(root: str) -> None:
    """Make a mount the root of this mount namespace; nothing of the old one can be reached any more."""
    os.chdir(root)
    syscall("pivot_root", number("pivot_root"), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def map_ids(proc: int, user: int, group: int, inside: int) -> None:
    """Give this process, which is alone in its user namespace, an identity there; `proc` is /proc, opened."""
    for name, words in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {user} 1"),
        ("gid_map", f"{inside} {group} 1"),
    ):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, words.encode())
        finally:
            os.close(file)


def become(user: int) -> None:
    """Be another, ordinary user for good."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise OSError(error.errno, f"root cannot become user {user}: {error.strerror}") from error
    prctl(PR_SET_DUMPABLE, 1)  # else its own files in /proc belong to root


def be_private() -> None:
    """Leave no picture of this process's memory anywhere, not even with whoever the system gives crashes to."""
    prctl(PR_SET_DUMPABLE, 0)


def give_up_privileges() -> None:
    """No capability, and none to be had again."""
    if not prctl(PR_SET_NO_NEW_PRIVS, 1):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    pointers = [ctypes.cast(each, ctypes.c_void_p) for each in (header, nothing)]
    syscall("capset", number("capset"), *pointers)


def fork(flags: int) -> int:
    """Like `os.fork`, into new namespaces."""
    python = _python()
    python.PyOS_BeforeFork()
    child = int(python.syscall(ctypes.c_long(number("clone")), ctypes.c_ulong(flags | SIGCHLD), 0, 0, 0, 0))
    if child == 0:
        python.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError(error, f"clone: {os.strerror(error)}")
    return child


@functools.cache
def _python() -> ctypes.PyDLL:
    """The interpreter as a library; calls keep its lock, as a fork has to. One for all: each is memory for ever."""
    return ctypes.PyDLL(None, use_errno=True)


def _wide(argument: int | bytes | ctypes.c_void_p | None) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(name: str, answer: int) -> int:
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return answer
