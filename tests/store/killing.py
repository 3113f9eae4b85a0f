"""A program that saves checkpoints, is killed while it does, and says what was left each time.

Usage: killing.py FOLDER everywhere | FOLDER export | FOLDER KILLS SEED. It has one thread, so that it may fork.
"""

import json
import logging
import os
import random
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.store.given import parts, steps_told

from windrow.store.checkpoints import Checkpoints, Keep
from windrow.store.export import export
from windrow.store.run import RunFolder

BEST = 0
"""The step with the highest score, which must always be there."""
MOST = 5
"""The best, the last, the one before it, and what one kill leaves of a save and of a removal."""


class Damage(logging.Handler):
    """Counts what the store complains about."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, parts(step), score=1.0 if step == BEST else 0.5, meta={"step": step})


def look(checkpoints: Checkpoints, at_least: int, at_most: int) -> int:
    """Check everything that is promised; the step that a run would go on from."""
    latest, best = checkpoints.latest(), checkpoints.best()
    assert latest is not None, f"nothing is left after step {at_least}"
    assert at_least <= latest.step <= at_most, f"step {latest.step} is not within {at_least} and {at_most}"
    assert steps_told(latest) == {latest.step}, "parts of different steps"
    assert latest.meta == {"step": latest.step}
    assert best is not None
    assert best.step == BEST, "the best was lost"
    left = [path.name for path in checkpoints.folder.iterdir()]
    assert len(left) <= MOST, f"what killed saves leave heaps up: {left}"
    return latest.step


def killed_before(count: int, work: Callable[[], object]) -> bool:
    """Work in a child that is killed before its operation number `count` on files; whether it came to that."""
    child = os.fork()
    if child == 0:
        _work_until(count, work)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _work_until(count: int, work: Callable[[], object]) -> NoReturn:
    seen = 0

    def hook(event: str, _args: object) -> None:
        nonlocal seen
        if event == "open" or event.startswith(("os.", "shutil.")):
            seen += 1
            if seen == count + 1:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    work()
    os._exit(0)


def everywhere(checkpoints: Checkpoints) -> int:
    """Kill once before every operation of a save, then let one come to its end; how many kills that were."""
    save(checkpoints, BEST)
    whole, kills = BEST, 0
    while killed_before(kills, partial(save, checkpoints, whole + 1)):
        kills += 1
        whole = look(checkpoints, whole, whole + 1)
    look(checkpoints, whole + 1, whole + 1)
    return kills


def exporting(folder: Path) -> int:
    """Kill once before every operation of an export: what it makes is whole or not there; how many kills."""
    with RunFolder.create(folder / "runs", "demo", "") as run:
        run.checkpoints.save(1, parts(1))
    kills = 0
    while killed_before(kills, partial(export, run, folder / f"{kills}")):
        found = [path.name for path in (folder / f"{kills}").rglob("*")]
        assert sorted(found) in ([], ["config.json", "nested", "weights.bin"]), f"half a model: {found}"
        kills += 1
    return kills


def at_random(checkpoints: Checkpoints, kills: int, rng: random.Random) -> int:
    """Kill at any time; what was reported as saved must be there."""
    save(checkpoints, BEST)
    whole = BEST
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _save_for_ever(checkpoints, whole + 1, writing)
        os.close(writing)
        os.read(reading, 4)  # the first is saved
        select.select([], [], [], rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rest = b""
        while got := os.read(reading, 4096):
            rest += got
        os.close(reading)
        reported = whole + 1 + len(rest) // 4
        whole = look(checkpoints, reported, reported + 1)
    return whole


def _save_for_ever(checkpoints: Checkpoints, step: int, writing: int) -> NoReturn:
    while True:
        save(checkpoints, step)
        os.write(writing, step.to_bytes(4, "big"))
        step += 1


def main() -> None:
    folder, how, *seed = sys.argv[1:]
    damage = Damage()
    logging.getLogger("windrow").addHandler(damage)
    checkpoints = Checkpoints(Path(folder), Keep(last=1, best=1))
    if how == "everywhere":
        found = {"kills": everywhere(checkpoints)}
    elif how == "export":
        found = {"kills": exporting(Path(folder))}
    else:
        found = {"steps": at_random(checkpoints, int(how), random.Random(int(seed[0])))}
    sys.stdout.write(
        json.dumps({**found, "damage": damage.said, "left": [path.name for path in Path(folder).iterdir()]})
    )


if __name__ == "__main__":
    main()
