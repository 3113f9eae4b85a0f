"""Two thousand environments in processes of their own, all alive at once, of which one in eight goes wrong."""

import asyncio
import gc
import os
import time
from pathlib import Path

from tests.isolation.kit import Born, eventually, open_files, parent_of
from tests.soak.kit import Mixed, Report, play_all

from windrow.envs import places
from windrow.envs.places import PlaceSettings, open_place

EPISODES = int(os.environ.get("SOAK_EPISODES", "2000"))
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "3"))
AHEAD = 2
HANG_S = 10.0
LATE_S = 1.0
"""A hang ends within its deadline and this."""
GROWTH_KB = 1024
"""What our process may grow by in a round and still be called flat; a leak of 1 kB per episode is twice that."""


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_a_crowd_of_which_one_in_eight_goes_wrong_disturbs_nobody_and_leaves_nothing(monkeypatch, born: Born):
    monkeypatch.setattr(places, "DYING_S", 60.0)  # so that the end of a hang is the death of its process
    asyncio.run(soak(born))
    assert born() == set()


async def soak(born: Born) -> None:
    before = open_files()
    place = open_place(Mixed, PlaceSettings(name="mixed", isolation="process", memory_mb=48, ahead=AHEAD))
    sizes: list[int] = []
    nests: list[int] = []
    files: list[int] = []
    for number in range(ROUNDS + 1):  # the first one is to warm up
        began = time.monotonic()
        report = await play_all(place, EPISODES, hang_s=HANG_S)
        took = time.monotonic() - began
        gc.collect()
        sizes.append(resident_kb(os.getpid()))
        files.append(open_files())
        tell(number, report, took, sizes[-1], files[-1])
        check(report)
        await eventually(lambda: len(born()) == 1 + AHEAD)  # the nest, and what is ready
        nests.extend(resident_kb(pid) for pid in born() if parent_of(pid) == os.getpid())
    await place.close()
    assert len(set(files[1:])) == 1, f"open files after each round: {files}"
    assert sizes[-1] - sizes[0] <= GROWTH_KB * ROUNDS, f"kB after each round: {sizes}"
    assert nests[-1] - nests[0] <= GROWTH_KB * ROUNDS, f"kB of the nest after each round: {nests}"
    assert open_files() <= before + 1  # the event loop's pool of threads may have begun


def check(report: Report) -> None:
    assert report.wrong == []
    assert report.alive_at_once == EPISODES
    assert report.counts == {
        "ok": EPISODES * 88 // 100,
        "crash": EPISODES * 5 // 100,
        "hang": EPISODES * 5 // 100,
        "memory": EPISODES * 2 // 100,
    }
    assert max(report.late_s) < LATE_S
    assert max(report.dead_s) < LATE_S


def tell(number: int, report: Report, took: float, size: int, files: int) -> None:
    print(  # noqa: T201 -- the figures are what it is run for
        f"round {number}: {dict(report.counts)} in {took:.1f} s; hangs ended {max(report.late_s) * 1e3:.0f} ms after "
        f"their deadline at most, their processes were dead {max(report.dead_s) * 1e3:.0f} ms after it at most; "
        f"{size} kB, {files} files",
        flush=True,
    )
