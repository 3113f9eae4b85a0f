"""The whole rollout path over real Ray actors, on one virtual clock, seen from the test as if it were here.

```
test, driver                    office, a Ray actor          players, Ray actors          engines, Ray actors
Rig ── RolloutScheduler ─────── GroupQueueManager ────────── EnvWorker ────────────────── Watched
  engines, queue, machine: asked of the actors when the test looks; logs and what a filter kept: files
```

Real are the processes, Ray's calls and its object store, the wires between players and engines, and everything that is
ours. What differs from a run of a user: the event loops are on one clock (`one_clock`), hosts are started before they
are needed and are not placed on devices, and they count what they send.

What it does not do: a test that puts an object of its own into a host finds a copy of it there.
"""

import asyncio
import os
import pickle
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import Here, Key
from tests.rollout.ray import far_hosts
from tests.rollout.ray.far_hosts import calls, install, is_alive, pool, see, sit_down
from tests.rollout.ray.next_door import Rooms, _ship
from tests.rollout.ray.one_clock import Clock, ClockedLoop, Page

from windrow.cluster.local import Cluster
from windrow.cluster.ray.hosts import Remote
from windrow.rollout.queue import GroupQueueManager
from windrow.rollout.ray import offices
from windrow.rollout.ray.engines import ENGINE
from windrow.rollout.ray.offices import OFFICE, RemoteTenancy
from windrow.rollout.scheduler import RolloutScheduler
from windrow.trajectory import Trajectory

AFTERWARDS_S = 15.0
"""In which what was told of an end comes to its own; virtual time costs nothing."""


# what a test sees


NOTHING: dict[str, Any] = {"sampled": 0, "_runs": {}}
"""What is known of an engine whose host is gone."""


class FarEngine:
    """An engine in its host."""

    def __init__(self, remote: Remote) -> None:
        vars(self)["_remote"] = remote

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in NOTHING and not is_alive(self._remote):
            return NOTHING[name]
        kind, found = see(self._remote, ENGINE, lambda engine: _described(getattr(engine, name)))
        if kind == "awaited":
            return lambda *given: self._remote.call(f"{ENGINE}.{name}", *given)
        if kind == "called":
            return lambda *given: see(self._remote, ENGINE, lambda engine: getattr(engine, name)(*given))
        return FarDict(self._remote, name) if kind == "dict" else found

    def __reduce__(self) -> Any:
        return FarEngine, (self._remote,)

    def __setattr__(self, name: str, value: Any) -> None:
        see(self._remote, ENGINE, lambda engine: setattr(engine, name, value))


def _described(found: Any) -> tuple[str, Any]:
    if asyncio.iscoroutinefunction(found):
        return "awaited", None
    if callable(found):
        return "called", None
    return ("dict", None) if isinstance(found, dict) else ("value", found)


class FarDict(MutableMapping[Any, Any]):
    """A dictionary of an engine."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote = remote
        self._name = name

    def _do(self, what: Callable[[Any], Any]) -> Any:
        name = self._name
        return see(self._remote, ENGINE, lambda engine: what(getattr(engine, name)))

    def __getitem__(self, key: Any) -> Any:
        return self._do(lambda found: found[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do(lambda found: found.__setitem__(key, value))

    def __delitem__(self, key: Any) -> None:
        self._do(lambda found: found.__delitem__(key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._do(list))

    def __len__(self) -> int:
        return int(self._do(len))


class FarQueue(GroupQueueManager):
    """The queue in its office; what was seen last once that is gone."""

    def __init__(self, remote: Remote, mode: str) -> None:
        self._remote = remote
        self._mode = mode
        self._last: dict[str, Any] = {}

    def _see(self, what: str, look: Callable[[Any], Any]) -> Any:
        if is_alive(self._remote):
            mode = self._mode
            self._last[what] = see(self._remote, OFFICE, lambda office: look(office._places[mode].queue))
        return self._last[what]

    @property
    def is_open(self) -> bool:
        return bool(self._see("open", lambda queue: isinstance(queue, GroupQueueManager)))

    @property
    def machine(self) -> Any:  # type: ignore[override]  # a copy each time
        return self._see("machine", lambda queue: queue.machine)

    @property
    def _dispatch(self) -> Any:  # type: ignore[override]  # as above
        return self._see("dispatch", lambda queue: _Shelved(len(queue._dispatch.shelf)))

    @property
    def fleet(self) -> Any:  # type: ignore[override]  # as above
        return _Fleet(self)

    @property
    def crew(self) -> Any:  # type: ignore[override]  # as above
        return self._see("crew", lambda queue: _Crew(queue.crew.failure))


class _Fleet:
    def __init__(self, queue: FarQueue) -> None:
        self._queue = queue

    def lose(self, engine: str, why: str) -> None:
        self._queue._see("loss", lambda queue: queue.fleet.lose(engine, why))


class _Shelved:
    def __init__(self, length: int) -> None:
        self.shelf = range(length)


class _Crew:
    def __init__(self, failure: BaseException | None) -> None:
        self.failure = None if failure is None else repr(failure)


class FarLog:
    """An `EnvLog` that all processes write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __getstate__(self) -> Any:
        return self._path

    def __setstate__(self, path: Any) -> None:
        self._path = path

    def note(self, *words: object) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, first: str) -> list[str]:
        found = [line.partition(" ") for line in self._path.read_text().splitlines()]
        return [rest for word, _, rest in found if word == first]

    def __getattr__(self, name: str) -> Any:
        if name not in ("made", "steps", "closing"):
            raise AttributeError(name)
        return len(self.lines(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("made", "steps", "closing"):
            self.note(name)
        else:
            super().__setattr__(name, value)

    @property
    def open(self) -> "FarSet":
        return FarSet(self)

    @property
    def plays(self) -> "FarPlays":
        return FarPlays(self)


class FarSet:
    """Environments that are open."""

    def __init__(self, log: FarLog) -> None:
        self._log = log

    def add(self, env: object) -> None:
        self._log.note("opened", os.getpid(), id(env))

    def discard(self, env: object) -> None:
        self._log.note("closed", os.getpid(), id(env))

    def _all(self) -> Counter[str]:
        return Counter(self._log.lines("opened")) - Counter(self._log.lines("closed"))

    def __eq__(self, other: object) -> bool:
        return set(self._all()) == other

    __hash__ = None  # type: ignore[assignment]  # as of any set

    def __len__(self) -> int:
        return self._all().total()


class FarPlays(Counter[int]):
    """How often each task was started."""

    def __init__(self, log: FarLog) -> None:
        super().__init__(map(int, log.lines("play")))
        self._log = log

    def __setitem__(self, ordinal: int, count: int) -> None:
        if hasattr(self, "_log"):
            self._log.note("play", ordinal)
        super().__setitem__(ordinal, count)


class FarKept:
    """What a filter in the office has seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __call__(self, group: list[Trajectory]) -> bool:
        with self._path.open("ab") as file:
            pickle.dump([*group], file)
        return True

    def all(self) -> dict[Key, Trajectory]:
        kept = kit.Kept()
        with self._path.open("rb") as file:
            while file.peek(1):
                kept(pickle.load(file))  # noqa: S301 -- our own
        return kept.all()


class OnRay(Here):
    """Engines, queue and players are Ray actors."""

    devices = Rooms
    turns = 2
    buries = True
    every = 1 if "WINDROW_SOAK" in os.environ else 6
    kills = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._queues: dict[RolloutScheduler, FarQueue] = {}
        self._has_run = False
        self._sit_down()

    def _file(self) -> Path:
        self._files += 1
        return self._folder / str(self._files)

    def log(self) -> Any:
        return FarLog(self._file())

    def kept(self) -> Any:
        return FarKept(self._file())

    def engines(self, cluster: Cluster[Any, Any]) -> Any:
        return [FarEngine(host) for host in cluster.hosts.values()]

    def queue(self, scheduler: RolloutScheduler) -> Any:
        place = scheduler._place
        assert isinstance(place, RemoteTenancy)
        found = self._queues.setdefault(scheduler, FarQueue(place._office, scheduler.mode))
        return found if found.is_open else None

    def run(self, scene: Any) -> None:
        """In place of a run on the kit's own virtual time."""
        clock = self._sit_down() if self._has_run else far_hosts.clock
        self._has_run = True
        self._queues.clear()

        async def on_the_clock() -> None:
            try:
                await scene
            finally:
                clock.let_go(asyncio.get_running_loop())

        with asyncio.Runner(loop_factory=lambda: ClockedLoop(clock)) as runner:
            runner.run(on_the_clock())

    def _sit_down(self) -> Clock:
        page = Page(self._file())
        return sit_down(page, page.seat())

    async def end(self, cluster: Cluster[Any, Any]) -> None:
        await asyncio.sleep(AFTERWARDS_S)
        for queue in self._queues.values():
            if queue.is_open:
                _ = queue.machine, queue._dispatch, queue.crew
        office = cluster.office
        pool.give_back([*cluster.hosts.values(), office])


@contextmanager
def on_ray() -> Iterator[OnRay]:
    """Inside, hosts that are started are Ray actors on the clock of the test."""
    folder = Path(tempfile.mkdtemp(prefix="windrow-on-ray-", dir="/dev/shm"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            install(patch)
            patch.setattr(offices, "ship", _ship)
            yield OnRay(folder)
    finally:
        far_hosts.clock.close()
        calls.clear()
        shutil.rmtree(folder)
