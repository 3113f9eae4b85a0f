"""The file system that programs see: what Python needs to read, three devices, and a scratch folder.

Promises: the room is built once, by the warden, in a mount namespace that nobody else sees; nothing of it is on a disk
and it is gone with the warden. Everything in it can only be read. Each program sees a copy with a scratch folder of its
own, limited in bytes and in files, which is gone with the program.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from windrow.sandbox import kernel

SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
"""Where shared libraries and time zones are, on one system or another."""
SYSTEM_PREFIXES = ("/usr", "/usr/local")
"""A Python that lives elsewhere brings shared libraries of its own."""
PACKAGES = ("site-packages", "dist-packages")
"""What was installed beside Python: none of a program's business, and it may know the answers."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
SCRATCH = "/tmp"  # noqa: S108 -- of the room, not of the machine
BUILDING_SITES = ("/mnt", "/media", "/srv", "/opt", "/var", "/tmp")  # noqa: S108 -- covered, not written
"""Where the room may be put together before it becomes the root."""

READ_ONLY = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID


def needed() -> list[str]:
    """The folders that Python reads, none inside another."""
    wanted = [*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), *SYSTEM]
    if sys.base_prefix not in SYSTEM_PREFIXES:
        wanted.append(str(sysconfig.get_config_var("LIBDIR")))
    found: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if os.path.isdir(path)}, key=len):  # noqa: PTH100, PTH112
        if not any(_inside(path, outer) for outer in found):
            found.append(path)
    return found


def hidden(folders: Sequence[str]) -> list[str]:
    """What in these folders is no part of Python."""
    patterns = [pattern for name in PACKAGES for pattern in (name, f"python*/{name}")]
    return sorted({str(path) for folder in folders for pattern in patterns for path in Path(folder).glob(pattern)})


def build(folders: Sequence[str]) -> None:
    """Move this process, which has a mount namespace of its own, into a new room."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    room = _building_site(folders)
    kernel.mount("tmpfs", room, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=256k,nr_inodes=256,mode=755")
    for folder in folders:
        Path(room + folder).mkdir(parents=True, exist_ok=True)
        kernel.mount(folder, room + folder, "", kernel.MS_BIND | kernel.MS_REC)
        kernel.restrict_mount(room + folder, READ_ONLY | kernel.ATTR_NODEV, below=True)
    for folder in hidden(folders):
        kernel.mount(
            "tmpfs", room + folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k,nr_inodes=2,mode=555"
        )
        kernel.restrict_mount(room + folder, READ_ONLY, below=False)
    Path(room + "/dev").mkdir()
    for device in DEVICES:
        Path(room + device).touch()
        kernel.mount(device, room + device, "", kernel.MS_BIND)
        kernel.restrict_mount(room + device, READ_ONLY | kernel.ATTR_NOEXEC, below=False)  # as a file, not as a device
    Path(room + SCRATCH).mkdir()
    Path(room + "/dev/shm").symlink_to(SCRATCH)  # noqa: S108 -- where the C library puts shared memory
    kernel.move_into(room)
    kernel.restrict_mount("/", READ_ONLY | kernel.ATTR_NODEV | kernel.ATTR_NOEXEC, below=False)


def furnish(scratch_bytes: int, scratch_files: int) -> None:
    """Put a fresh scratch folder into this program's copy of the room, and stand in it."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", SCRATCH, "tmpfs", flags, f"size={scratch_bytes},nr_inodes={scratch_files + 1},mode=700")
    os.chdir(SCRATCH)


def _inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer.rstrip("/") + "/")


def _building_site(folders: Sequence[str]) -> str:
    """A folder that can be covered without covering what is needed."""
    for site in BUILDING_SITES:
        if os.path.isdir(site) and not any(_inside(os.path.realpath(folder), site) for folder in folders):  # noqa: PTH112
            return site
    raise OSError(f"none of {', '.join(BUILDING_SITES)} can be covered by a mount")
