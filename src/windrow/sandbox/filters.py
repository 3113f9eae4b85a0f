"""Which system calls a program may make: a seccomp filter that lets through what is listed and refuses the rest.

Promises: no socket but a pair of connected ones, no other program, no namespace, no mount, no tracing, no signal to
anybody outside, no sharing of memory with anybody outside. What is refused is an error that the program sees
(`PermissionError`), never the end of the program. Calls that came to Linux with number 424 or later are answered "not
implemented", which is how a C library learns to do without them.

There are two of these filters. In namespaces of its own a program may have processes and threads and may change the
mode of its files; without them it stays one thread, signals itself alone and changes no file's mode or time, which
Landlock would not stop.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence

from windrow.linux import prctl_pointer
from windrow.sandbox.kernel import machine

ANYBODY = """
    read=0,63 write=1,64 readv=19,65 writev=20,66 pread64=17,67 pwrite64=18,68 preadv=295,69 pwritev=296,70
    preadv2=327,286 pwritev2=328,287 open=2 openat=257,56 close=3,57 close_range=436,436 dup=32,23 dup2=33 dup3=292,24
    pipe=22 pipe2=293,59 lseek=8,62 stat=4 fstat=5,80 lstat=6 newfstatat=262,79 statx=332,291 access=21
    faccessat=269,48 faccessat2=439,439 readlink=89 readlinkat=267,78 getdents=78 getdents64=217,61 getcwd=79,17
    chdir=80,49 fchdir=81,50 rename=82 renameat=264,38 renameat2=316,276 mkdir=83 mkdirat=258,34 rmdir=84 unlink=87
    unlinkat=263,35 link=86 linkat=265,37 symlink=88 symlinkat=266,36 truncate=76,45 ftruncate=77,46 fallocate=285,47
    fsync=74,82 fdatasync=75,83 statfs=137,43 fstatfs=138,44 fadvise64=221,223 sendfile=40,71
    copy_file_range=326,285 umask=95,166
    poll=7 ppoll=271,73 select=23 pselect6=270,72 epoll_create=213 epoll_create1=291,20 epoll_ctl=233,21 epoll_wait=232
    epoll_pwait=281,22 eventfd=284 eventfd2=290,19 timerfd_create=283,85 timerfd_settime=286,86 timerfd_gettime=287,87
    shutdown=48,210 sendto=44,206 recvfrom=45,207 sendmsg=46,211 recvmsg=47,212 getsockopt=55,209 getsockname=51,204
    getpeername=52,205
    mmap=9,222 mprotect=10,226 munmap=11,215 brk=12,214 mremap=25,216 madvise=28,233 msync=26,227
    rt_sigaction=13,134 rt_sigprocmask=14,135 rt_sigreturn=15,139 rt_sigpending=127,136 rt_sigtimedwait=128,137
    rt_sigsuspend=130,133 sigaltstack=131,132 pause=34 alarm=37 getitimer=36,102 setitimer=38,103 timer_create=222,107
    timer_settime=223,110 timer_gettime=224,108 timer_delete=226,111 timer_getoverrun=225,109
    nanosleep=35,101 clock_nanosleep=230,115 clock_gettime=228,113 clock_getres=229,114 gettimeofday=96,169 time=201
    getpid=39,172 getppid=110,173 gettid=186,178 getuid=102,174 geteuid=107,175 getgid=104,176 getegid=108,177
    getgroups=115,158 getresuid=118,148 getresgid=120,150 getpgrp=111 getpgid=121,155 getsid=124,156
    getpriority=140,141 getrusage=98,165 getrlimit=97,163 setrlimit=160,164 times=100,153 sysinfo=99,179 uname=63,160
    sched_yield=24,124 sched_getaffinity=204,123 getcpu=309,168 getrandom=318,278 membarrier=324,283
    futex=202,98 set_robust_list=273,99 set_tid_address=218,96 rseq=334,293 arch_prctl=158 restart_syscall=219,128
    wait4=61,260 waitid=247,95 exit=60,93 exit_group=231,94
"""
"""What any program may call, with its number on x86_64 and on aarch64 if it exists there."""

IN_NAMESPACES = """
    fork=57 vfork=58 kill=62,129 tkill=200,130 tgkill=234,131 setpgid=109,154 setsid=112,157 chmod=90 fchmod=91,52
    fchmodat=268,53 utimensat=280,88 utime=132 utimes=235 futimesat=261
"""
"""What does no harm where a program sees nothing but itself."""

WITH_CARE = {
    "clone": (56, 220), "fcntl": (72, 25), "ioctl": (16, 29), "kill": (62, 129), "prctl": (157, 167),
    "prlimit64": (302, 261), "socketpair": (53, 199), "tgkill": (234, 131),
}  # fmt: skip
"""What is looked at more closely."""

FIRST_NEW = 424
FORBIDDEN_CLONES = 0x7E020000 | 0x8000 | 0x2000
"""New namespaces, a child of one's parent, a traced child."""
FCNTL = [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032]
"""Copies, flags, locks and the size of pipes; no owner of signals, no lease, no seal."""
IOCTL = [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]
"""Is it a terminal, how large, how much is there to read, blocking, closed on exec."""
PRCTL = [3, 15, 16, 0x53564D41]
"""Its name, and names for its memory; not what happens when the warden dies."""
AF_UNIX, SOCK_STREAM = 1, 1
SOCK_KINDS = 0xF

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_NUMBERING = 0x40000000  # x32, on x86_64
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
PR_SET_SECCOMP, MODE_FILTER = 22, 2

LOAD, RETURN, AND = 0x20, 0x06, 0x54
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

Rule = tuple[int, int, int, int]
"""One instruction: code, steps to jump if true, if false, operand."""


def compiled(*, namespaces: bool, process: int) -> bytes:
    """The filter for this machine; `process` is who may be signalled where a program has no namespace of its own."""
    kind = machine()
    column = ["x86_64", "aarch64"].index(kind)
    rules: list[Rule] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (IF_EQUAL, 1, 0, ARCHITECTURES[kind]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    for name, body in _careful(process, namespaces=namespaces):
        rules += [(IF_EQUAL, 0, len(body), WITH_CARE[name][column]), *body]
    rules += _search(_ranges(_numbers(ANYBODY + (IN_NAMESPACES if namespaces else ""), column)))
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def install(program: bytes) -> None:
    """Put this process under a filter, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    if not prctl_pointer(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(head)):
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {errno.errorcode.get(error, error)}")


def _numbers(table: str, column: int) -> list[int]:
    entries = [entry.partition("=")[2].split(",") for entry in table.split()]
    return [int(numbers[column]) for numbers in entries if column < len(numbers)]


def _ranges(allowed: Iterable[int]) -> list[tuple[int, int]]:
    """Where each run of numbers with the same answer begins, and that answer."""
    listed = {*allowed}
    answers = dict.fromkeys(listed, ALLOW)
    changes: list[tuple[int, int]] = []
    for number in range(max(FIRST_NEW, *listed) + 2):
        answer = answers.get(number, REFUSE | (errno.ENOSYS if number >= FIRST_NEW else errno.EPERM))
        if not changes or changes[-1][1] != answer:
            changes.append((number, answer))
    return [*changes, (OTHER_NUMBERING, REFUSE | errno.EPERM)]


def _search(ranges: Sequence[tuple[int, int]]) -> list[Rule]:
    """Halve the ranges until one is left; the kernel tries a filter on every number when it is installed."""
    if len(ranges) == 1:
        return [(RETURN, 0, 0, ranges[0][1])]
    middle = len(ranges) // 2
    low, high = _search(ranges[:middle]), _search(ranges[middle:])
    return [(IF_AT_LEAST, 0, len(high), ranges[middle][0]), *high, *low]


def _careful(process: int, *, namespaces: bool) -> list[tuple[str, list[Rule]]]:
    """The rules for each call that is looked at more closely; every one of them ends in an answer."""
    bodies = [
        ("fcntl", _one_of(1, FCNTL, errno.EPERM)),
        ("ioctl", _one_of(1, IOCTL, errno.ENOTTY)),
        ("prctl", _one_of(0, PRCTL, errno.EPERM)),
        ("prlimit64", _one_of(0, [0], errno.EPERM)),
        ("socketpair", _pairs()),
    ]
    if namespaces:
        return [*bodies, ("clone", _clones())]
    return [*bodies, ("kill", _one_of(0, [process], errno.EPERM)), ("tgkill", _one_of(0, [process], errno.EPERM))]


def _one_of(argument: int, values: Sequence[int], otherwise: int) -> list[Rule]:
    tests = [rule for value in values for rule in _answer_if(IF_EQUAL, value, ALLOW)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, REFUSE | otherwise)]


def _pairs() -> list[Rule]:
    """Connected streams alone: a pair of datagram sockets could be sent elsewhere."""
    return [
        (LOAD, 0, 0, ARGUMENTS_AT),
        (IF_EQUAL, 0, 4, AF_UNIX),
        (LOAD, 0, 0, ARGUMENTS_AT + 8),
        (AND, 0, 0, SOCK_KINDS),
        (IF_EQUAL, 0, 1, SOCK_STREAM),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
    ]


def _clones() -> list[Rule]:
    return [
        (LOAD, 0, 0, ARGUMENTS_AT),
        *_answer_if(IF_ANY_BIT, FORBIDDEN_CLONES, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _answer_if(test: int, operand: int, answer: int) -> Iterable[Rule]:
    return [(test, 0, 1, operand), (RETURN, 0, 0, answer)]
