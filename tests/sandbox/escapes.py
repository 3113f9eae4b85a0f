"""Programs that try to get out of the sandbox, to harm the machine, or to look better than they are.

Each prints ESCAPED if it succeeds in what it tries. What stands in braces is filled in by the test: things outside that
a program has no business with.
"""

from dataclasses import dataclass, field

from windrow.sandbox.values import Limits, Outcome

ESCAPED = "ESCAPED"

CALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = x86 if platform.machine() == "x86_64" else arm
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(ctypes.c_long(number), *wide) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("ESCAPED")
"""


@dataclass(frozen=True)
class Escape:
    """One attempt, and how it must end."""

    name: str
    source: str
    outcome: Outcome = "error"
    """In namespaces of its own."""
    landlocked: Outcome | None = None
    """Without namespaces; the same if not given."""
    prints: str = ""
    """Part of what it must have printed, to have tried at all."""
    works_outside: bool = False
    """Does no harm, and succeeds where there are no walls: what it tries is real."""
    only_in_namespaces: bool = False
    """Landlock alone does not hold it."""
    limits: Limits = field(default=Limits(cpu_s=1, wall_s=30, memory_mb=128, scratch_mb=4, scratch_files=100))


QUICK = Limits(cpu_s=1, wall_s=1.0, memory_mb=128)

NETWORK = [
    Escape("tcp to a server of this machine", """
import socket
socket.create_connection(("127.0.0.1", {tcp}), timeout=2)
print("ESCAPED")
""", works_outside=True),
    Escape("udp to a server of this machine", """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", {udp}))
print("ESCAPED")
""", works_outside=True),
    Escape("tcp over the sixth version", """
import socket
socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
print("ESCAPED")
""", works_outside=True),
    Escape("a name looked up", """
import socket
socket.getaddrinfo("example.com", 80)
print("ESCAPED")
"""),
    Escape("a page fetched", """
import urllib.request
urllib.request.urlopen("http://127.0.0.1:{tcp}/", timeout=1)
print("ESCAPED")
"""),
    Escape("a server of its own", """
import socket
server = socket.socket()
server.bind(("0.0.0.0", 0))
server.listen()
print("ESCAPED")
""", works_outside=True),
    Escape("a socket in the file system", """
import socket
socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("{unix}")
print("ESCAPED")
""", works_outside=True),
    Escape("an abstract socket", """
import socket
socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\\0{abstract}")
print("ESCAPED")
""", works_outside=True),
    Escape("a pair of sockets, one turned elsewhere", """
import socket
one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.sendto(b"out", "{datagrams}")
print("ESCAPED")
""", works_outside=True),
    Escape("raw packets", """
import socket
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)
print("ESCAPED")
"""),
    Escape("the kernel's own socket", """
import socket
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))
print("ESCAPED")
""", works_outside=True),
]  # fmt: skip

READING = [
    Escape("a file outside", """
print(open("{canary}").read())
print("ESCAPED")
""", works_outside=True),
    Escape("a file outside, through a folder that was opened", """
import os
folder = os.open("/", os.O_PATH)
open(os.open("..{canary}", os.O_RDONLY, dir_fd=folder)).read()
print("ESCAPED")
""", works_outside=True),
    Escape("a file outside, by climbing", """
import os
open("../" * 40 + "{canary}".lstrip("/")).read()
print("ESCAPED")
""", works_outside=True),
    Escape("the users of the machine", """
open("/etc/passwd").read()
print("ESCAPED")
""", works_outside=True),
    Escape("the homes of the machine", """
import os
print(os.listdir(os.path.dirname("{home}")), "ESCAPED")
""", works_outside=True),
    Escape("what there is at the root", """
import os
print(os.listdir("/"), "ESCAPED")
""", works_outside=True),
    Escape("the environment of whoever runs it", """
open("/proc/{parent}/environ").read()
print("ESCAPED")
""", works_outside=True),
    Escape("its own environment, from the kernel", """
open("/proc/self/environ").read()
print("ESCAPED")
""", works_outside=True),
    Escape("its environment", """
import os
print(dict(os.environ))
if "CANARY" in os.environ or set(os.environ) - {{"HOME"}}:
    print("ESCAPED")
""", outcome="ok", prints="HOME"),
    Escape("the root of its own process", """
open("/proc/self/root{canary}").read()
print("ESCAPED")
""", works_outside=True),
    Escape("the root of the first process", """
open("/proc/1/root{canary}").read()
print("ESCAPED")
"""),
    Escape("the memory of whoever runs it", """
open("/proc/{parent}/mem", "rb").read(1)
print("ESCAPED")
"""),
    Escape("the processes of the machine", """
import os
if [name for name in os.listdir("/proc") if name.isdigit()]:
    print("ESCAPED")
""", works_outside=True),
    Escape("files that were left open", """
import os, stat
print("looking")
for file in range(3, 4096):
    try:
        print(file, stat.filemode(os.fstat(file).st_mode), "ESCAPED")
    except OSError:
        pass
""", outcome="ok", prints="looking"),
    Escape("a folder above what it was given", """
import os
os.chdir("/")
os.chroot(".")
for _ in range(40):
    os.chdir("..")
open("{canary}".lstrip("/")).read()
print("ESCAPED")
"""),
    Escape("a link out of its folder", """
import os
os.symlink("{canary}", "link")
open("link").read()
print("ESCAPED")
"""),
    Escape("a second name for a file outside", """
import os
os.link("{canary}", "link")
print("ESCAPED")
"""),
    Escape("who changes a file outside", CALL + """
call(294, 26, 0)  # inotify_init1
"""),
    Escape("a file outside, by its handle", CALL + """
call(304, 265, -100, b"x" * 64, 0)  # open_by_handle_at
"""),
    Escape("what is installed beside Python", """
import os
for top, _, names in os.walk("{packages}"):
    for name in names[:2]:
        try:
            open(os.path.join(top, name), "rb").read(1)
            print("ESCAPED")
        except OSError:
            pass
print("looked")
""", outcome="ok", prints="looked", works_outside=True),
    Escape("whether a file outside is there", """
import os
print(os.stat("{canary}").st_size, "ESCAPED")
""", works_outside=True, only_in_namespaces=True),
    Escape("what surrounds it in its own process", """
import sys
frame = sys._getframe()
print("looking")
while frame is not None:
    for name in list(frame.f_locals):
        if "expected" in name or "canary" in name:
            print("ESCAPED")
    frame = frame.f_back
import windrow
print("ESCAPED")
""", prints="looking"),
]  # fmt: skip

WRITING = [
    Escape("writes a file outside", """
open("{canary}", "a").write("changed")
print("ESCAPED")
"""),
    Escape("empties a file outside", """
import os
os.truncate("{canary}", 0)
print("ESCAPED")
"""),
    Escape("empties a file outside by opening it", """
import os
os.open("{canary}", os.O_RDONLY | os.O_TRUNC)
print("ESCAPED")
"""),
    Escape("removes a file outside", """
import os
os.unlink("{canary}")
print("ESCAPED")
"""),
    Escape("renames a file outside", """
import os
os.rename("{canary}", "{canary}.gone")
print("ESCAPED")
"""),
    Escape("changes the mode of a file outside", """
import os
os.chmod("{canary}", 0o777)
print("ESCAPED")
"""),
    Escape("changes the times of a file outside", """
import os
os.utime("{canary}", (1, 1))
print("ESCAPED")
"""),
    Escape("marks a file outside", """
import os
os.setxattr("{canary}", "user.mark", b"here")
print("ESCAPED")
"""),
    Escape("makes a file beside one outside", """
open("{folder}/new", "w").write("new")
print("ESCAPED")
"""),
    Escape("writes at home", """
open("{home}/windrow-was-here", "w").write("new")
print("ESCAPED")
"""),
    Escape("leaves something in the folder for everybody's scratch", """
open("/tmp/windrow-was-here", "w").write("new")
print("wrote")
""", outcome="ok", landlocked="error"),
    Escape("leaves something in shared memory", """
open("/dev/shm/windrow-was-here", "w").write("new")
print("wrote")
""", outcome="ok", landlocked="error"),
    Escape("changes Python for those who come after", """
import os
open(os.path.join(os.path.dirname(os.__file__), "windrow_was_here.py"), "w").write("new")
print("ESCAPED")
"""),
    Escape("fills the disk with one file", """
with open("large", "wb") as file:
    while True:
        file.write(b"x" * 65536)
"""),
    Escape("fills the disk with a file full of nothing", """
import os
file = os.open("large", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(file, 0, 1 << 40)
print("ESCAPED")
"""),
    Escape("fills the disk with many files", """
for number in range(10_000_000):
    open(f"small{{number}}", "w").write("x" * 4000)
"""),
    Escape("fills the disk with large files", """
for number in range(1000):
    open(f"large{{number}}", "wb").write(b"x" * 1_000_000)
"""),
    Escape("uses up all names of files", """
import os
for number in range(10_000_000):
    os.mkdir(f"folder{{number}}")
"""),
    Escape("writes into physical memory", """
open("/dev/mem", "r+b").write(b"x")
print("ESCAPED")
"""),
    Escape("writes into the kernel's log", """
open("/dev/kmsg", "w").write("windrow was here")
print("ESCAPED")
"""),
    Escape("says what to do with core dumps", """
open("/proc/sys/kernel/core_pattern", "w").write("|/bin/sh")
print("ESCAPED")
"""),
    Escape("presses the magic key", """
open("/proc/sysrq-trigger", "w").write("h")
print("ESCAPED")
"""),
    Escape("makes a device", """
import os, stat
os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
print("ESCAPED")
"""),
    Escape("leaves memory that outlives it", CALL + """
call(29, 194, 0x57494E44, 4096, 0o1600)  # shmget
"""),
    Escape("leaves a queue that outlives it", CALL + """
call(240, 180, b"windrow-was-here", 0o102, 0o600, None)  # mq_open
"""),
]  # fmt: skip

PROCESSES = [
    Escape("forks without end", """
import os
while True:
    os.fork()
"""),
    Escape("forks without end and never gives up", """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
""", outcome="timeout", limits=QUICK),
    Escape("starts threads without end", """
import threading, time
for _ in range(1_000_000):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""),
    Escape("lives on as a daemon", """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0), os.close(1), os.close(2)
        time.sleep(1000)
    os._exit(0)
os.wait()
print("gone")
""", outcome="ok", landlocked="error"),
    Escape("kills whoever runs it", """
import os
os.kill({parent}, 9)
print("ESCAPED")
"""),
    Escape("kills its warden", """
import os
os.kill({warden}, 9)
print("ESCAPED")
"""),
    Escape("kills everybody", """
import os
os.kill(-1, 9)
print("ESCAPED")
"""),
    Escape("signals everybody one by one", """
import os
for pid in [*range(2, 400), {parent}, {warden}]:
    try:
        os.kill(pid, 0)
    except OSError:
        continue
    if pid != os.getpid():
        print("ESCAPED")
print("tried")
""", outcome="ok", prints="tried", works_outside=True),
    Escape("has a signal sent by a pipe", """
import fcntl, os, signal
read, write = os.pipe()
fcntl.fcntl(read, fcntl.F_SETOWN, {parent})
fcntl.fcntl(read, fcntl.F_SETSIG, 9)
print("ESCAPED")
"""),
    Escape("takes memory from whoever runs it, by a limit", """
import resource
resource.prlimit({parent}, resource.RLIMIT_AS, (1, 1))
print("ESCAPED")
"""),
    Escape("slows down whoever runs it", """
import os
os.setpriority(os.PRIO_PROCESS, {parent}, 19)
print("ESCAPED")
"""),
    Escape("starts a shell", """
import subprocess
print(subprocess.run(["/bin/sh", "-c", "echo ESCAPED"], capture_output=True, check=True).stdout)
""", works_outside=True),
    Escape("becomes a shell", """
import os
os.execv("/bin/sh", ["sh", "-c", "echo ESCAPED"])
""", works_outside=True),
    Escape("starts another Python", """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "print('ESCAPED')"], capture_output=True, check=True).stdout)
""", works_outside=True),
    Escape("starts a program that it wrote", """
import os
open("tool", "w").write("#!/bin/sh\\necho ESCAPED")
os.chmod("tool", 0o700)
os.execv("./tool", ["tool"])
"""),
    Escape("starts a program that is only in memory", """
import os
file = os.memfd_create("tool", 0)
os.write(file, b"#!/bin/sh\\necho ESCAPED")
os.execve(file, ["tool"], {{}})
""", works_outside=True),
    Escape("traces whoever runs it", CALL + """
call(101, 117, 16, {parent}, 0, 0)  # ptrace attach
"""),
    Escape("asks to be traced", CALL + """
call(101, 117, 0, 0, 0, 0)  # ptrace traceme
"""),
    Escape("reads the memory of whoever runs it", CALL + """
call(310, 270, {parent}, None, 0, None, 0, 0)  # process_vm_readv
"""),
    Escape("takes an open file from whoever runs it", CALL + """
call(434, 434, {parent}, 0)  # pidfd_open
"""),
    Escape("lives on when its warden dies", CALL + """
call(157, 167, 1, 0, 0, 0, 0)  # prctl, no signal when the parent dies
"""),
]  # fmt: skip

PRIVILEGES = [
    Escape("is root in a namespace of users", CALL + """
call(272, 97, 0x10000000)  # unshare
"""),
    Escape("has mounts of its own", CALL + """
call(272, 97, 0x00020000)  # unshare
"""),
    Escape("forks into namespaces", CALL + """
call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)  # clone
"""),
    Escape("forks into namespaces, the new way", CALL + """
call(435, 435, b"\\0" * 64, 64)  # clone3
"""),
    Escape("enters the namespaces of the machine", CALL + """
call(308, 268, 0, 0)  # setns
"""),
    Escape("mounts", CALL + """
call(165, 40, b"proc", b"/", b"proc", 0, None)  # mount
"""),
    Escape("unmounts what covers the machine", CALL + """
call(166, 39, b"/", 2)  # umount2
"""),
    Escape("takes another root", CALL + """
call(155, 41, b".", b".")  # pivot_root
"""),
    Escape("is root", """
import os
os.setuid(0)
print("ESCAPED")
"""),
    Escape("joins a group", """
import os
os.setgroups([0])
print("ESCAPED")
"""),
    Escape("takes privileges back", CALL + """
call(126, 91, b"\\x22\\x05\\x08\\x20" + b"\\0" * 4, b"\\xff" * 24)  # capset
"""),
    Escape("runs a program in the kernel", CALL + """
call(321, 280, 0, b"\\0" * 128, 128)  # bpf
"""),
    Escape("has the kernel do it, unseen", CALL + """
call(425, 425, 8, b"\\0" * 120)  # io_uring_setup
"""),
    Escape("handles the faults of the kernel", CALL + """
call(323, 282, 0)  # userfaultfd
"""),
    Escape("counts what others do", CALL + """
call(298, 241, b"\\0" * 128, 0, -1, -1, 0)  # perf_event_open
"""),
    Escape("looks at the keys of the machine", CALL + """
call(250, 219, 0, -3, 1)  # keyctl
"""),
    Escape("loads a module", CALL + """
call(175, 105, b"", 0, b"")  # init_module
"""),
    Escape("reboots", CALL + """
call(169, 142, 0, 0, 0, None)  # reboot, with wrong numbers
"""),
    Escape("sets the clock", """
import time
time.clock_settime(time.CLOCK_REALTIME, time.time())
print("ESCAPED")
"""),
    Escape("names the machine", """
import socket
socket.sethostname("windrow-was-here")
print("ESCAPED")
"""),
    Escape("calls the kernel by the numbers of another machine", """
import ctypes, mmap, platform
if platform.machine() != "x86_64":
    raise OSError("there is one numbering here")
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid, once); int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))(), "ESCAPED")
""", outcome="crashed"),
    Escape("calls the kernel by its third numbering", CALL + """
call(0x40000000 + 39, 1 << 30)  # getpid, x32
"""),
    Escape("lifts its limits", """
import resource
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("ESCAPED")
"""),
]  # fmt: skip

RESOURCES = [
    Escape("takes all memory", """
held = []
while True:
    held.append(bytearray(1 << 20))
""", outcome="memory"),
    Escape("takes all memory at once", """
print(len(bytearray(1 << 40)))
print("ESCAPED")
""", outcome="memory"),
    Escape("takes all memory, shared with its children", """
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 1 << 24))
    held[-1].write(b"x" * (1 << 24))
""", outcome="memory"),
    Escape("takes all memory in files without a name", """
import os
while True:
    os.write(os.memfd_create("hidden"), b"x" * (1 << 24))
"""),
    Escape("unpacks a bomb", """
import zlib
small = zlib.compress(bytes(1 << 24), 9)
print(len(zlib.decompress(small + small)))
held = [zlib.decompress(small) for _ in range(1000)]
print("ESCAPED")
""", outcome="memory"),
    Escape("counts too far", """
print(len(str(3 ** (3 ** 30))), "ESCAPED")
""", outcome="cpu"),
    Escape("computes without end", """
while True:
    pass
""", outcome="cpu"),
    Escape("searches without end, where nobody can interrupt", """
import re
re.match("(a*)*b", "a" * 40)
print("ESCAPED")
""", outcome="cpu"),
    Escape("sleeps without end", """
import time
while True:
    time.sleep(1000)
""", outcome="timeout", limits=QUICK),
    Escape("does not want to end", """
import signal, time
for number in set(range(1, 65)) - {{9, 19, 32, 33}}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
""", outcome="timeout", limits=QUICK),
    Escape("waits for words that never come", """
import os, select
read, _ = os.pipe()
select.select([read], [], [])
""", outcome="timeout", limits=QUICK),
    Escape("speaks without end", """
while True:
    print("x" * 1000)
""", outcome="output"),
    Escape("complains without end", """
import sys
while True:
    sys.stderr.write("x" * 1000)
""", outcome="output"),
    Escape("speaks without end and listens to nobody", """
import os
while True:
    try:
        os.write(1, b"x" * 65536)
    except OSError:
        os.write(2, b"no more\\n")
        raise SystemExit(0)
""", outcome="output"),
    Escape("speaks one very long word", """
print("x" * 50_000_000)
""", outcome="output"),
    Escape("calls itself without end", """
def again():
    return again()
again()
"""),
    Escape("calls itself deeper than there is room", """
import sys
sys.setrecursionlimit(10 ** 9)
one = other = ()
for _ in range(700_000):
    one, other = (one,), (other,)
try:
    one == other
except RecursionError:  # a newer Python sees it coming
    import os
    os.abort()
print("ESCAPED")
""", outcome="crashed", limits=Limits(cpu_s=10, wall_s=60)),
    Escape("opens files without end", """
held = []
while True:
    held.append(open("/dev/null"))
"""),
    Escape("fills pipes without end", """
import fcntl, os
held = []
while True:
    held.append(os.pipe())
    fcntl.fcntl(held[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(held[-1][1], b"x" * (1 << 20))
"""),
    Escape("touches memory that is not there", """
import ctypes
ctypes.string_at(0)
print("ESCAPED")
""", outcome="crashed"),
    Escape("aborts", """
import os
os.abort()
""", outcome="crashed"),
    Escape("writes a core dump", """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
ctypes.string_at(0)
"""),
]  # fmt: skip

PRETENDING = [
    Escape("leaves at once as if all were well", """
import os
os._exit(0)
""", outcome="ok"),
    Escape("ends well after it failed", """
import atexit, os
atexit.register(os._exit, 0)
raise ValueError("this is a failure")
""", outcome="ok", prints=""),
    Escape("closes its output", """
import os
os.close(1)
os.close(2)
print("ESCAPED")
"""),
    Escape("writes nonsense where its words go", """
import os
os.write(1, bytes(range(256)) * 8)
""", outcome="ok"),
    Escape("shortens what it has said", """
import os
os.write(1, b"said")
os.ftruncate(1, 0)
print("ESCAPED")
"""),
    Escape("says it is somewhere else", """
import os
os.lseek(1, 1 << 40, 0)
os.write(1, b"far away")
""", outcome="output"),
    Escape("says that the sandbox is broken", """
import os
for file in range(3, 256):
    try:
        os.write(file, b"OSError: the sandbox is broken")
        print("ESCAPED")
    except OSError:
        pass
raise SystemExit(1)
"""),
    Escape("says that it ran out of memory", """
raise MemoryError
""", outcome="memory"),
    Escape("puts its own words in the place of Python's", """
import builtins, json, sys, os
for name in list(sys.modules):
    if name not in ("sys", "builtins"):
        sys.modules[name] = None
builtins.exec = builtins.compile = builtins.print = None
json.dumps = json.loads = None
""", outcome="ok"),
    Escape("breaks what runs at its end", """
import sys, threading, os
threading._shutdown = None
sys.stdout = None
os._exit = None
raise SystemExit(3)
"""),
    Escape("kills itself while it is taken apart", """
import gc
class Last:
    def __del__(self):
        while True:
            pass
import sys
sys.modules["last"] = Last()
gc.collect()
""", outcome="ok"),
]  # fmt: skip

SHARING = [
    Escape("a lock on a file of the machine", """
import fcntl, os
fcntl.flock(os.open("/dev/null", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("ESCAPED")
""", works_outside=True),
    Escape("the time of a device", """
import os
os.utime("/dev/null")
print("ESCAPED")
"""),
    Escape("a longer input", """
import os
os.lseek(0, 0, os.SEEK_END)
os.write(0, b"x" * (1 << 20))
print("ESCAPED")
"""),
    Escape("another input", """
import os
os.ftruncate(0, 1 << 20)
print("ESCAPED")
"""),
    Escape("all timers of its user", """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
create = 222 if platform.machine() == "x86_64" else 107
for _ in range(2000):
    if libc.syscall(create, 1, None, ctypes.byref(ctypes.c_int())) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
print("ESCAPED")
"""),
]  # fmt: skip
"""What is not a program's own alone."""

ESCAPES = [*NETWORK, *READING, *WRITING, *PROCESSES, *PRIVILEGES, *RESOURCES, *PRETENDING, *SHARING]
