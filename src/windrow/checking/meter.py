"""How long an environment keeps the event loop to itself, and where.

Promises: what counts as blocking is time in which the thread slept although its loop had work; waiting for a processor
on a busy machine does not count (Linux says how long that was), its own or that of a thread that it starts, nor does a
first time, when packages are loaded. Where it blocks is looked up only when it has been seen to block, so that a
healthy environment costs nothing.

Between two looks of the loop at its files and timers nobody but the environment runs, so that is what is measured; it
holds for whatever tasks the environment makes, too.
"""

import os
import resource
import selectors
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from windrow.loading.places import of_frame, spelt
from windrow.types import Value

BLOCKED_S = 0.01
"""A thread that sleeps longer than this between two looks of its loop blocks it."""
BLIND_S = 0.2
"""The same where the system does not say how long a thread waited for a processor."""
HOGGED_S = 0.25
"""Longest time of pure computing that others can be asked to wait."""
SAMPLE_EVERY_S = 0.002
SEEN_OFTEN = 3
"""Looks at the same place that make it the place: what only a busy machine holds up is not seen so often."""


class Stall(Value, frozen=True):
    """Once that the loop was held up."""

    rule: str
    seconds: float
    place: str
    """Empty if nobody looked yet."""


class Meter:
    """Watches the thread that runs the event loop, while an environment is asked."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self._thread = threading.get_ident()
        self._delays = _Delays()
        self._sampler: Sampler | None = None
        self._asked = False
        self._began = (0.0, 0.0, 0.0, 0)

    def __enter__(self) -> Self:
        self._asked = True
        self.go_on()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.pause()
        self._asked = False

    def watch(self) -> None:
        """From now on, look where it stalls."""
        if self._sampler is None:
            self._sampler = Sampler(self._thread)
            self._sampler.start()

    def stop(self) -> None:
        """Look no more."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        self._delays.close()

    def go_on(self) -> None:
        """The loop is about to run something."""
        if self._asked:
            self._began = (time.perf_counter(), time.thread_time(), self._delays.read(), _sleeps())
            if self._sampler is not None:
                self._sampler.begin()

    def pause(self) -> None:
        """The loop looks at its files and timers."""
        if not self._asked:
            return
        place = "" if self._sampler is None else self._sampler.end()
        passed = time.perf_counter() - self._began[0]
        if passed < BLOCKED_S:
            return
        computed = time.thread_time() - self._began[1]
        blocked = passed - computed - (self._delays.read() - self._began[2])
        enough = max(computed, BLOCKED_S if self._delays.are_known else BLIND_S)  # mostly asleep, not mostly at work
        if blocked > enough and _sleeps() > self._began[3]:
            self.stalls.append(Stall("blocking", blocked, place))
        elif computed > HOGGED_S:
            self.stalls.append(Stall("hogs", computed, place))


class MeteredSelector(selectors.DefaultSelector):
    """Tells a meter when the loop runs and when it waits."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._meter.pause()
        try:
            return super().select(timeout)
        finally:
            self._meter.go_on()


class Sampler:
    """Looks now and then where a thread is, while it is told to."""

    def __init__(self, thread: int) -> None:
        self._watched = thread
        self._running = threading.Event()
        self._over = False
        self._seen: Counter[tuple[str, int]] = Counter()
        self._looker = threading.Thread(target=self._look, name="sampler", daemon=True)

    def start(self) -> None:
        self._looker.start()

    def stop(self) -> None:
        self._over = True
        self._running.set()
        self._looker.join()

    def begin(self) -> None:
        self._seen = Counter()
        self._running.set()

    def end(self) -> str:
        """Where it was most of the time; empty if it was not seen often enough to tell."""
        self._running.clear()
        common = self._seen.most_common(1)
        return spelt(common[0][0]) if common and common[0][1] >= SEEN_OFTEN else ""

    def _look(self) -> None:
        pause = threading.Event()
        while self._running.wait() and not self._over:
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001 -- the one way to see it
            if not _starts_a_thread(frame):
                self._seen[of_frame(frame)] += 1
            pause.wait(SAMPLE_EVERY_S)


def _starts_a_thread(frame: FrameType | None) -> bool:
    """Whether it waits for a thread of its own to begin: that one waits for a processor, and so does this."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "start" and code.co_filename == threading.__file__:
            return True
        frame = frame.f_back
    return False


class _Delays:
    """How long the current thread has waited for a processor so far, as Linux counts it."""

    def __init__(self) -> None:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self.are_known = path.exists()
        self._file = os.open(path, os.O_RDONLY) if self.are_known else -1

    def read(self) -> float:
        """In seconds; always 0 where nobody counts."""
        return int(os.pread(self._file, 64, 0).split()[1]) / 1e9 if self.are_known else 0.0

    def close(self) -> None:
        if self.are_known:
            os.close(self._file)
            self.are_known = False


def _sleeps() -> int:
    """How often this thread gave its processor back by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
