"""What Linux offers to keep a child process in order; elsewhere each of these does nothing and says so.

Promises: nothing here raises because the platform lacks something; whoever needs to know looks at the answer.
"""

import ctypes
import functools
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MEGABYTE = 1 << 20


@functools.cache
def libc() -> ctypes.CDLL | None:
    """The C library of this process; None where there is no Linux."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def prctl(option: int, argument: int) -> bool:
    """Set an option of this process; false if it could not be set."""
    library = libc()
    return library is not None and library.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) == 0


def prctl_pointer(option: int, argument: int, address: int) -> bool:
    """The same for an option that is described by a structure in memory."""
    library = libc()
    arguments = (ctypes.c_ulong(argument), ctypes.c_void_p(address))
    return library is not None and library.prctl(option, *arguments, 0, 0) == 0


def die_with_parent() -> bool:
    """Be killed when the parent ends, however it ends."""
    return prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> bool:
    """Descendants whose parent ends become children of this process rather than of init."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def limit(what: int, most: int) -> None:
    """Set a resource limit (`resource.RLIMIT_…`), or as much of it as may be set."""
    _, hard = resource.getrlimit(what)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (wanted, wanted))
